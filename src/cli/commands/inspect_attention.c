#include "cli/commands/inspect_attention.h"

#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/term/input.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"
#include "format/safetensors/safetensors.h"
#include "media/heat_map.h"
#include "media/png_writer.h"

#define AT(field) offsetof(qn_attention_options, field)
const qn_arg qn_attention_args[] = {
    {"--prompt", 'p', QN_ARG_TEXT, AT(prompt), 0, 0, "TEXT", "prompt text, used as it is"},
    {"--chat", 0, QN_ARG_FLAG, AT(chat), 0, 0, NULL,
     "render the text as a chat message with the model's template"},
    {"--special", 0, QN_ARG_FLAG, AT(special), 0, 0, NULL, "recognise special tokens in the text"},
    {"--ids", 0, QN_ARG_TEXT, AT(ids_path), 0, 0, "FILE",
     "file with one row of token ids, {\"ids\":[...]}, instead of a text"},
    {"--layer", 0, QN_ARG_LIST, AT(layers), 0, 0, "N",
     "show only this layer; the first is 0; may be repeated"},
    {"--queries", 0, QN_ARG_FLAG, AT(queries), 0, 0, NULL, "also record queries"},
    {"--hidden", 0, QN_ARG_FLAG, AT(hidden), 0, 0, NULL, "also record hidden states"},
    {"--output", 'o', QN_ARG_TEXT, AT(out_path), 0, 0, "FILE",
     "safetensors file to write: ids, keys.I, attention.I, queries.I, hidden.I"},
    {"--png", 0, QN_ARG_TEXT, AT(png_path), 0, 0, "FILE",
     "picture to write: attention heat maps, one panel per layer and head"},
    {"--mean", 0, QN_ARG_FLAG, AT(mean), 0, 0, NULL, "with --png: show the mean of each layer's heads"},
    {"--use", 0, QN_ARG_TEXT, AT(adapter), 0, 0, "NAME",
     "name of the adapter to use; `none`: the model without an adapter"},
    {0},
};

const qn_arg_rule qn_attention_rules[] = {
    {NULL, .needs = "--attention"},
    {"--attention", .needs = "--prompt --ids"},
    {"--ids", .excludes = "--prompt --chat --special"},
    {"--chat", .excludes = "--special", .why = "the messages of a chat are plain text"},
    {0},
};

/* ---- the file of tensors ------------------------------------------------------------------------------ */

/* What may stand in the file, in order. */
typedef enum { IDS, KEYS, ATTENTION, QUERIES, HIDDEN, N_KINDS } kind;

typedef struct {
    char name[40];
    qn_dtype dtype;
    int n_dims;
    int64_t shape[3];
    const void *data;
    size_t size_bytes;
} tensor;

static tensor make(const char *what, int64_t i, const float *data, int n_dims, int64_t n0, int64_t n1,
                   int64_t n2)
{
    tensor t = {.dtype = QN_DTYPE_F32, .n_dims = n_dims, .shape = {n0, n1, n2}, .data = data};
    snprintf(t.name, sizeof t.name, "%s.%lld", what, (long long)i);
    t.size_bytes = (size_t)(n0 * n1 * (n_dims == 3 ? n2 : 1)) * sizeof *data;
    return t;
}

/* Tensor i of a kind; one without data is not there. */
static tensor tensor_of(const qn_attention_snapshot *s, kind k, int64_t i)
{
    const int64_t n = s->seq_len;
    if (k == IDS)
        return i ? (tensor){.data = NULL}
                 : (tensor){"ids", QN_DTYPE_I32, 1, {n}, s->ids, (size_t)n * sizeof *s->ids};
    if (k == HIDDEN) return make("hidden", i, s->hidden ? s->hidden[i] : NULL, 2, n, s->hidden_size, 1);
    if (i == s->n_layers) return (tensor){.data = NULL};
    const qn_attention_layer *l = &s->layers[i];
    if (k == KEYS) /* once, where layers share them */
        return make("keys", i,
                    l->kv_layer == i || !s->layers[l->kv_layer < 0 ? i : l->kv_layer].keys ? l->keys : NULL,
                    3, l->num_key_value_heads, n, l->head_dim);
    if (k == QUERIES) return make("queries", i, l->queries, 3, l->num_attention_heads, n, l->query_dim);
    return make("attention", i, l->attention, 3, l->num_attention_heads, n, n);
}

static int next_tensor(const qn_attention_snapshot *s, int *k, int64_t *i, tensor *out)
{
    for (; *k < N_KINDS; ++*k, *i = 0)
        while (*i <= s->n_layers) {
            *out = tensor_of(s, (kind)*k, (*i)++);
            if (out->data) return 1;
        }
    return 0;
}

/* The text of each token, as a JSON array; without a tokenizer there is none. */
static qn_status add_tokens(qn_st_writer *w, const qn_model *model, const qn_attention_snapshot *s)
{
    qn_buf b = {0};
    qn_status status = QN_OK;
    qn_json_open(&b, '[');
    for (int64_t i = 0; status == QN_OK && i < s->seq_len; i++) {
        char *text = NULL;
        size_t n;
        status = qn_model_decode(model, &s->ids[i], 1, NULL, &text, &n);
        if (status == QN_OK) qn_json_text(&b, text, n);
        qn_buffer_free(text);
    }
    qn_json_close(&b, ']');
    if (status == QN_OK) status = b.status;
    if (status == QN_OK) status = qn_st_writer_metadata(w, "tokens", b.data);
    qn_buf_free(&b);
    return status == QN_E_NOT_FOUND ? QN_OK : status;
}

static qn_status write_tensors(const qn_model *model, const qn_attention_snapshot *s, const char *path)
{
    qn_st_writer *w = NULL;
    tensor t;
    int k = 0;
    int64_t i = 0, index = 0;
    qn_status status = qn_st_writer_new(path, &w);
    if (status == QN_OK) status = add_tokens(w, model, s);
    while (status == QN_OK && next_tensor(s, &k, &i, &t))
        status = qn_st_writer_add(w, t.name, t.dtype, t.n_dims, t.shape, NULL);
    qn_interrupt_start_for_files(); /* from here on there is a file to remove */
    if (status == QN_OK) status = qn_st_writer_begin(w);
    for (k = 0, i = 0; status == QN_OK && next_tensor(s, &k, &i, &t);)
        status = qn_interrupt_taken() ? qn_fail(QN_E_CANCELLED, "cancelled; nothing was written")
                                      : qn_st_writer_write(w, index++, 0, t.data, t.size_bytes);
    if (status == QN_OK) status = qn_st_writer_finish(w);
    qn_st_writer_free(w);
    return status;
}

/* ---- the picture -------------------------------------------------------------------------------------- */

typedef struct {
    const float **panels;
    const char **titles;
    int64_t *windows;
    char (*texts)[32];
    float *means; /* [rows, n, n]; NULL: panels are the heads' own */
    int64_t rows, columns;
} panels;

static int64_t layers_shown(const qn_attention_snapshot *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_layers; i++) n += s->layers[i].attention != NULL;
    return n;
}

static void put_mean(const qn_attention_layer *l, int64_t n, float *out)
{
    memset(out, 0, (size_t)(n * n) * sizeof *out);
    for (int64_t h = 0; h < l->num_attention_heads; h++)
        for (int64_t i = 0; i < n * n; i++)
            out[i] += l->attention[h * n * n + i] / (float)l->num_attention_heads;
}

static void free_panels(panels *p)
{
    qn_free(p->panels);
    qn_free(p->titles);
    qn_free(p->windows);
    qn_free(p->texts);
    qn_free(p->means);
}

/* A row for each layer, with its heads or their mean. Means of layers stand side by side. */
static qn_status make_panels(const qn_attention_snapshot *s, int mean, panels *p)
{
    const int64_t n = s->seq_len, n_layers = layers_shown(s);
    int64_t heads = 1, i_panel = 0;
    for (int64_t i = 0; !mean && i < s->n_layers; i++)
        if (s->layers[i].num_attention_heads > heads) heads = s->layers[i].num_attention_heads;
    p->columns = mean ? 1 : heads;
    while (mean && p->columns * p->columns < n_layers) p->columns++;
    p->rows = mean ? (n_layers + p->columns - 1) / p->columns : n_layers;
    const size_t count = (size_t)(p->rows * p->columns);
    p->panels = qn_calloc(count, sizeof *p->panels);
    p->titles = qn_calloc(count, sizeof *p->titles);
    p->windows = qn_calloc(count, sizeof *p->windows);
    p->texts = qn_calloc(count, sizeof *p->texts);
    if (mean) p->means = qn_alloc_array((size_t)(n_layers * n), (size_t)n * sizeof *p->means);
    if (!p->panels || !p->titles || !p->windows || !p->texts || (mean && !p->means)) return QN_E_NOMEM;
    for (int64_t i = 0; i < s->n_layers; i++) {
        const qn_attention_layer *l = &s->layers[i];
        for (int64_t h = 0; l->attention && h < (mean ? 1 : heads); h++, i_panel++) {
            p->titles[i_panel] = p->texts[i_panel];
            p->windows[i_panel] = l->window;
            if (mean) {
                snprintf(p->texts[i_panel], sizeof *p->texts, "layer %lld", (long long)i);
                put_mean(l, n, p->means + i_panel * n * n);
                p->panels[i_panel] = p->means + i_panel * n * n;
            } else if (h < l->num_attention_heads) {
                snprintf(p->texts[i_panel], sizeof *p->texts, "layer %lld head %lld", (long long)i,
                         (long long)h);
                p->panels[i_panel] = l->attention + h * n * n;
            }
        }
    }
    return QN_OK;
}

static qn_status draw(const qn_attention_snapshot *s, const char *model, int mean, qn_picture *out)
{
    panels p = {0};
    char headline[200];
    const char *slash = strrchr(model, '/');
    if (layers_shown(s) == 0)
        return qn_fail(QN_E_ARG, "there is nothing to draw: none of the requested layers has attention");
    snprintf(headline, sizeof headline, "%.120s: attention%s, %lld tokens",
             slash && slash[1] ? slash + 1 : model, mean ? ", mean of each layer's heads" : "",
             (long long)s->seq_len);
    qn_status status = make_panels(s, mean, &p);
    const qn_heat_map map = {.headline = headline,
                             .rows = p.rows,
                             .columns = p.columns,
                             .n = s->seq_len,
                             .panels = p.panels,
                             .titles = p.titles,
                             .windows = p.windows};
    if (status == QN_OK) status = qn_heat_map_draw(&map, out);
    free_panels(&p);
    return status;
}

static qn_status write_picture(const qn_attention_snapshot *s, const char *model,
                               const qn_attention_options *o)
{
    qn_picture picture = {0};
    qn_buf file = {0};
    qn_status status = draw(s, model, o->mean, &picture);
    if (status == QN_E_FULL && !o->mean) {
        qn_out_note(
            "one panel per head would make the picture too large: it shows the mean of each layer's heads");
        status = draw(s, model, 1, &picture);
    }
    if (status == QN_OK) status = qn_png_encode(&picture, &file);
    if (status == QN_OK) status = qn_out_file(o->png_path, file.data, file.length, 0);
    qn_buf_free(&file);
    qn_picture_free(&picture);
    return status;
}

/* ---- what is printed ---------------------------------------------------------------------------------- */

static qn_status print_table(const qn_attention_snapshot *s)
{
    char size[32];
    qn_buf b = {0};
    qn_buf_printf(&b, "%lld token%s, %lld layers, hidden size %lld, %s\n", (long long)s->seq_len,
                  qn_out_plural(s->seq_len), (long long)s->n_layers, (long long)s->hidden_size,
                  qn_out_size_text(s->size_bytes, size, sizeof size));
    qn_buf_puts(&b, "  layer  heads  kv heads  head dim  window  keys of layer\n");
    for (int64_t i = 0; i < s->n_layers; i++) {
        const qn_attention_layer *l = &s->layers[i];
        if (l->kv_layer < 0)
            qn_buf_printf(&b, "  %5lld  no attention\n", (long long)i);
        else
            qn_buf_printf(&b, "  %5lld  %5lld  %8lld  %8lld  %6lld  %13lld\n", (long long)i,
                          (long long)l->num_attention_heads, (long long)l->num_key_value_heads,
                          (long long)l->head_dim, (long long)l->window, (long long)l->kv_layer);
    }
    qn_status status = b.status == QN_OK ? qn_out_write(b.data, b.length) : b.status;
    qn_buf_free(&b);
    return status;
}

static void put_path(qn_buf *b, const char *key, const char *path)
{
    qn_json_key(b, key);
    if (path)
        qn_json_text(b, path, strlen(path));
    else
        qn_buf_puts(b, "null");
}

static qn_status print_json(const qn_attention_snapshot *s, const char *path, const qn_attention_options *o)
{
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "path", path);
    qn_json_key(&b, "ids");
    qn_json_ids(&b, s->ids, s->seq_len);
    qn_json_put_int(&b, "n_layers", s->n_layers);
    qn_json_put_int(&b, "seq_len", s->seq_len);
    qn_json_put_int(&b, "hidden_size", s->hidden_size);
    qn_json_put_int(&b, "size_bytes", (int64_t)s->size_bytes);
    qn_json_key(&b, "layers");
    qn_json_open(&b, '[');
    for (int64_t i = 0; i < s->n_layers; i++) {
        const qn_attention_layer *l = &s->layers[i];
        qn_json_open(&b, '{');
        qn_json_put_int(&b, "kv_layer", l->kv_layer);
        qn_json_put_int(&b, "window", l->window);
        qn_json_put_int(&b, "chunk", l->chunk);
        qn_json_put_int(&b, "num_attention_heads", l->num_attention_heads);
        qn_json_put_int(&b, "num_key_value_heads", l->num_key_value_heads);
        qn_json_put_int(&b, "head_dim", l->head_dim);
        qn_json_put_int(&b, "query_dim", l->query_dim);
        qn_json_close(&b, '}');
    }
    qn_json_close(&b, ']');
    put_path(&b, "output", o->out_path);
    put_path(&b, "png", o->png_path);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

/* ---- the command -------------------------------------------------------------------------------------- */

static qn_status take(qn_model *model, const qn_attention_options *o, const qn_prompt *prompt,
                      const int64_t *layers, qn_attention_snapshot **out)
{
    qn_snapshot_options options = {.wanted = (o->queries ? QN_SNAPSHOT_QUERIES : 0u) |
                                             (o->hidden ? QN_SNAPSHOT_HIDDEN : 0u) |
                                             (o->out_path || o->png_path ? QN_SNAPSHOT_ATTENTION : 0u),
                                   .layers = o->layers.n ? layers : NULL,
                                   .n_layers = o->layers.n,
                                   .adapter = o->adapter};
    return qn_attention_snapshot_new(model, prompt, &options, out);
}

static qn_status inspect(const char *path, qn_load_options *load, const qn_attention_options *o,
                         const int64_t *layers, int json)
{
    qn_model *model = NULL;
    qn_attention_snapshot *s = NULL;
    qn_id_rows ids = {0};
    const qn_message message = {"user", o->prompt};
    qn_prompt prompt = {0};
    qn_status status = o->ids_path ? qn_input_ids(o->ids_path, &ids) : QN_OK;
    if (o->ids_path) {
        prompt.rows = ids.rows;
        prompt.n_rows = ids.n_rows;
    } else if (o->chat) {
        prompt.messages = &message;
        prompt.n_messages = 1;
    } else {
        prompt.text = o->prompt;
        prompt.special = o->special;
    }
    if (status == QN_OK) status = qn_load_open(path, load, &model);
    if (status == QN_OK) status = take(model, o, &prompt, layers, &s);
    if (status == QN_OK && o->out_path) status = write_tensors(model, s, o->out_path);
    if (status == QN_OK && o->png_path) status = write_picture(s, path, o);
    if (status == QN_OK) status = json ? print_json(s, path, o) : print_table(s);
    qn_attention_snapshot_free(s);
    qn_model_close(&model);
    qn_load_end(load);
    qn_id_rows_free(&ids);
    return status;
}

int qn_inspect_attention(const char *path, qn_load_options *load, const qn_attention_options *o, int json)
{
    int64_t layers[QN_ARG_LIST_MAX];
    for (size_t i = 0; i < o->layers.n; i++)
        if (!qn_args_read_int(o->layers.items[i], &layers[i]) || layers[i] < 0)
            return qn_args_fail("inspect", "--layer: %s is not a layer number", o->layers.items[i]);
    qn_status status = inspect(path, load, o, layers, json);
    if (status == QN_OK) return QN_EXIT_OK;
    int code = qn_out_fail();
    return status == QN_E_CANCELLED ? QN_EXIT_INTERRUPTED : code;
}
