#include "model/adapter/adapter_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json/json_write.h"
#include "base/mem.h"
#include "format/files/folder_writer.h"
#include "format/files/mmap.h"
#include "model/adapter/adapter_file.h"
#include "model/weights/row_order.h"
#include "quant/types.h"

enum { NAME_BYTES = QN_TENSOR_NAME_MAX + 64, CONFIG_BYTES_MAX = 1 << 20 };

/* What has a pair of tensors in the file: a module; of experts in mlx_lm's layout each of its roles. */
typedef struct {
    const qn_adapter_part *part;
    int i_role;            /* -1: all */
    char path[NAME_BYTES]; /* of the tensors, as the library has it that the layout is for */
    char name[NAME_BYTES]; /* in the configuration */
} item;

typedef struct {
    const qn_model_config *config;
    const qn_adapter_form *form;
    const qn_module *all;
    const qn_adapter_part *parts;
    int64_t n_all, n_parts;
    item *items;
    int64_t n_items;
} writing;

/* ---- paths -------------------------------------------------------------------------------------------- */

/* Where a library has the decoder that files have at some other place, and the head. */
typedef struct {
    const char *decoder, *head;
} place;

/* Files of models that see images were published under several names; the libraries know one each. */
static place place_of(const writing *w)
{
    const char *name = NULL;
    for (int64_t i = 0; i < w->n_all && !name; i++)
        if (w->all[i].layer >= 0) name = w->all[i].name;
    if (!w->config->vision.family && !(name && strstr(name, "language_model.")))
        return (place){"model.", "lm_head"};
    if (w->form->layout == QN_ADAPTER_PEFT) return (place){"model.language_model.", "lm_head"};
    return (place){"language_model.model.", "language_model.lm_head"};
}

/* "q_proj" of "model.layers.3.self_attn.q_proj". */
static const char *last_name(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

/* "layers.3.self_attn.q_proj" of it. */
static const char *name_in_decoder(const qn_module *m)
{
    const char *at = m->layer < 0 ? NULL : strstr(m->name, "layers.");
    return at ? at : last_name(m->name);
}

/* 1: the factors are those of parameters (PEFT's target_parameters). */
static int is_parameter(const writing *w, const item *t)
{
    return t->part->module->n_experts && w->form->layout == QN_ADAPTER_PEFT;
}

/* The module that holds a parameter; where it has another with factors, the first is wrapped by it. */
static void name_parameter(const writing *w, item *t)
{
    const qn_module *m = t->part->module;
    const char *dot = strrchr(t->name, '.');
    int is_inner = 0;
    for (int64_t i = 0; i < w->n_parts && m->roles[0] != QN_WEIGHT_EXPERT_DOWN; i++)
        is_inner |=
            w->parts[i].module->layer == m->layer && w->parts[i].module->roles[0] == QN_WEIGHT_EXPERT_DOWN;
    snprintf(t->path, NAME_BYTES, "%.*s%s", (int)(dot - t->name), t->name, is_inner ? ".base_layer" : "");
}

static qn_status add_item(writing *w, const qn_adapter_part *part, int i_role)
{
    const place to = place_of(w);
    const qn_module *m = part->module;
    item *t = &w->items[w->n_items++];
    char module[QN_TENSOR_NAME_MAX];
    *t = (item){.part = part, .i_role = i_role};
    if (m->roles[0] == QN_WEIGHT_LM_HEAD)
        snprintf(t->name, NAME_BYTES, "%s", to.head);
    else if (i_role < 0)
        snprintf(t->name, NAME_BYTES, "%s%s", to.decoder, name_in_decoder(m));
    else if (qn_family_expert_module(w->config->family, QN_EXPERTS_STACKED, to.decoder, m->roles[i_role],
                                     m->layer, module, NULL))
        snprintf(t->name, NAME_BYTES, "%s", module);
    else
        return qn_fail(QN_E_UNSUPPORTED, "%s: mlx_lm is not known to hold matrices of these experts",
                       m->name);
    snprintf(t->path, NAME_BYTES, "%s", t->name);
    if (is_parameter(w, t)) name_parameter(w, t);
    return QN_OK;
}

static qn_status make_items(writing *w)
{
    int64_t n = 0;
    for (int64_t i = 0; i < w->n_parts; i++) n += w->parts[i].module->n_roles;
    w->items = qn_alloc_array((size_t)n, sizeof *w->items);
    if (!w->items) return QN_E_NOMEM;
    for (int64_t i = 0; i < w->n_parts; i++) {
        const qn_module *m = w->parts[i].module;
        const int apart = m->n_experts && w->form->layout == QN_ADAPTER_MLX;
        for (int k = apart ? 0 : -1; k < (apart ? m->n_roles : 0); k++) QN_TRY(add_item(w, &w->parts[i], k));
    }
    return QN_OK;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static void tensor_name(const writing *w, const item *t, int which, char name[2 * NAME_BYTES])
{
    snprintf(name, 2 * NAME_BYTES, "%s%s%s", qn_adapter_layouts[w->form->layout].prefix, t->path,
             qn_adapter_layouts[w->form->layout].ending[which]);
}

/* Outputs of an item, and in *first where they begin in the module. */
static int64_t rows_of(const item *t, int64_t *first)
{
    const qn_module *m = t->part->module;
    *first = 0;
    if (t->i_role < 0) return m->n_rows;
    for (int i = 0; i < t->i_role; i++) *first += m->n_out[i];
    return m->n_out[t->i_role];
}

/* Returns the number of dimensions. */
static int tensor_shape(const writing *w, const item *t, int which, int64_t shape[3])
{
    const qn_module *m = t->part->module;
    int64_t first, rank = w->form->rank;
    const int64_t n = which == QN_ADAPTER_A ? m->n_in : rows_of(t, &first);
    int rank_first = (which == QN_ADAPTER_A) == (w->form->layout == QN_ADAPTER_PEFT), at = 0;
    shape[0] = n;
    if (which == QN_ADAPTER_M) return 1;
    if (is_parameter(w, t)) {
        rank *= m->n_experts;
    } else if (m->n_experts) {
        shape[at++] = m->n_experts;
        rank_first = which == QN_ADAPTER_A;
    }
    shape[at] = rank_first ? rank : n;
    shape[at + 1] = rank_first ? n : rank;
    return at + 2;
}

static int64_t tensor_elements(const writing *w, const item *t, int which)
{
    int64_t shape[3], n = 1;
    for (int i = tensor_shape(w, t, which, shape) - 1; i >= 0; i--) n *= shape[i];
    return n;
}

/* 1: files have the outputs of a module's two roles turn by turn. */
static int takes_turns(const writing *w, const item *t)
{
    char name[QN_TENSOR_NAME_MAX];
    unsigned layout = 0;
    const qn_module *m = t->part->module;
    return is_parameter(w, t) &&
           qn_family_expert_module(w->config->family, QN_EXPERTS_PARAMETER, "", m->roles[0], m->layer, name,
                                   &layout) &&
           layout & QN_EXPERTS_TURNS;
}

/* The model's rows of an item in the order of files. */
static void list_rows(const writing *w, const item *t, int64_t *rows)
{
    const qn_module *m = t->part->module;
    const int turns = takes_turns(w, t);
    int64_t first = 0, n = 0;
    for (int i = 0; i < m->n_roles; i++) {
        for (int64_t r = 0; (t->i_role < 0 || t->i_role == i) && r < m->n_out[i]; r++, n++)
            rows[turns ? m->n_roles * r + i : n] =
                first + qn_row_order_place(w->config, m->roles[i], m->layer, r);
        first += m->n_out[i];
    }
}

/* The same for each expert: B of a parameter has the experts of a rank side by side. */
static void arrange_experts(const writing *w, const item *t, int which, const int64_t *rows, float *out)
{
    const qn_module *m = t->part->module;
    int64_t first, rank = w->form->rank, n_rows = rows_of(t, &first);
    const int is_peft = is_parameter(w, t);
    if (which == QN_ADAPTER_A) {
        memcpy(out, t->part->a, (size_t)(m->n_experts * rank * m->n_in) * sizeof *out);
        return;
    }
    for (int64_t e = 0; e < m->n_experts; e++)
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t k = 0; k < rank; k++)
                out[is_peft ? (r * rank + k) * m->n_experts + e : (e * n_rows + r) * rank + k] =
                    t->part->b[(e * m->n_rows + rows[r]) * rank + k];
}

/* A tensor as the file has it; rows: of list_rows. */
static void arrange(const writing *w, const item *t, int which, const int64_t *rows, float *out)
{
    const qn_adapter_part *p = t->part;
    const int64_t rank = w->form->rank, n_in = p->module->n_in, n_rows = p->module->n_rows;
    const int is_mlx = w->form->layout == QN_ADAPTER_MLX;
    if (p->module->n_experts) {
        arrange_experts(w, t, which, rows, out);
        return;
    }
    if (which == QN_ADAPTER_A)
        for (int64_t k = 0; k < rank; k++)
            for (int64_t i = 0; i < n_in; i++) out[is_mlx ? i * rank + k : k * n_in + i] = p->a[k * n_in + i];
    if (which == QN_ADAPTER_B)
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t k = 0; k < rank; k++)
                out[is_mlx ? k * n_rows + r : r * rank + k] = p->b[rows[r] * rank + k];
    if (which == QN_ADAPTER_M)
        for (int64_t r = 0; r < n_rows; r++) out[r] = p->m[rows[r]];
}

static int n_tensors(const writing *w)
{
    return w->form->dora ? QN_ADAPTER_PARTS : QN_ADAPTER_M;
}

static qn_status check_numbers(const writing *w)
{
    const int is_bf16 = w->form->dtype == QN_DTYPE_BF16;
    char name[2 * NAME_BYTES];
    for (int64_t i = 0; i < w->n_items; i++)
        for (int which = 0; which < n_tensors(w); which++) {
            const qn_adapter_part *p = w->items[i].part;
            const float *x = which == QN_ADAPTER_A ? p->a : which == QN_ADAPTER_B ? p->b : p->m;
            const int64_t experts = p->module->n_experts ? p->module->n_experts : 1,
                          each = which == QN_ADAPTER_A   ? p->module->n_in * w->form->rank
                                 : which == QN_ADAPTER_B ? p->module->n_rows * w->form->rank
                                                         : p->module->n_rows;
            for (int64_t k = 0; k < experts * each; k++) {
                if (isfinite(is_bf16 ? qn_bf16_to_f32(qn_f32_to_bf16(x[k])) : x[k])) continue;
                tensor_name(w, &w->items[i], which, name);
                return qn_fail(QN_E_ARG, "tensor %s has the value %g, which an adapter cannot hold", name,
                               (double)x[k]);
            }
        }
    return QN_OK;
}

static qn_status declare(const writing *w, qn_st_writer *st)
{
    char name[2 * NAME_BYTES];
    QN_TRY(qn_st_writer_metadata(st, "format", w->form->layout == QN_ADAPTER_PEFT ? "pt" : "mlx"));
    for (int64_t i = 0; i < w->n_items; i++)
        for (int which = 0; which < n_tensors(w); which++) {
            int64_t shape[3];
            const int n_dims = tensor_shape(w, &w->items[i], which, shape);
            tensor_name(w, &w->items[i], which, name);
            QN_TRY(qn_st_writer_add(st, name, w->form->dtype, n_dims, shape, NULL));
        }
    return qn_st_writer_begin(st);
}

/* values, rows: room for the largest tensor and for its rows. */
static qn_status fill(const writing *w, qn_st_writer *st, float *values, int64_t *rows)
{
    int64_t index = 0;
    for (int64_t i = 0; i < w->n_items; i++) {
        list_rows(w, &w->items[i], rows);
        for (int which = 0; which < n_tensors(w); which++, index++) {
            const int64_t n = tensor_elements(w, &w->items[i], which);
            size_t size = sizeof *values;
            arrange(w, &w->items[i], which, rows, values);
            if (w->form->dtype == QN_DTYPE_BF16) {
                uint16_t *halves = (uint16_t *)(void *)values;
                size = sizeof *halves;
                for (int64_t k = 0; k < n; k++) {
                    const uint16_t half = qn_f32_to_bf16(values[k]); /* at or before what is still to come */
                    memcpy(halves + k, &half, sizeof half);
                }
            }
            QN_TRY(qn_st_writer_write(st, index, 0, values, (size_t)n * size));
        }
    }
    return QN_OK;
}

static qn_status write_tensors(const writing *w, const char *path)
{
    qn_st_writer *st = NULL;
    int64_t largest = 1, n_rows = 1;
    for (int64_t i = 0; i < w->n_items; i++) {
        const qn_module *m = w->items[i].part->module;
        if (m->n_rows > n_rows) n_rows = m->n_rows;
        for (int which = 0; which < n_tensors(w); which++) {
            const int64_t n = tensor_elements(w, &w->items[i], which);
            if (n > largest) largest = n;
        }
    }
    float *values = qn_alloc_array((size_t)largest, sizeof *values);
    int64_t *rows = qn_alloc_array((size_t)n_rows, sizeof *rows);
    qn_status status = values && rows ? qn_st_writer_new(path, &st) : QN_E_NOMEM;
    if (status == QN_OK) status = declare(w, st);
    if (status == QN_OK) status = fill(w, st, values, rows);
    if (status == QN_OK) status = qn_st_writer_finish(st);
    qn_st_writer_free(st);
    qn_free(values);
    qn_free(rows);
    return status;
}

/* ---- which modules ------------------------------------------------------------------------------------ */

static const qn_adapter_part *find_part(const writing *w, const char *module)
{
    for (int64_t begin = 0, end = w->n_parts; begin < end;) {
        const int64_t mid = begin + (end - begin) / 2;
        const int order = strcmp(module, w->parts[mid].module->name);
        if (!order) return &w->parts[mid];
        if (order < 0)
            end = mid;
        else
            begin = mid + 1;
    }
    return NULL;
}

static int has_last_name(const writing *w, const char *name)
{
    for (int64_t i = 0; i < w->n_parts; i++)
        if (strcmp(last_name(w->parts[i].module->name), name) == 0) return 1;
    return 0;
}

static int has_layer(const writing *w, int64_t layer)
{
    for (int64_t i = 0; i < w->n_parts; i++)
        if (w->parts[i].module->layer == layer) return 1;
    return 0;
}

static int64_t first_layer(const writing *w)
{
    for (int64_t i = 0; i < w->config->num_hidden_layers; i++)
        if (has_layer(w, i)) return i;
    return w->config->num_hidden_layers;
}

static int some_layers_only(const writing *w)
{
    for (int64_t i = 0; i < w->config->num_hidden_layers; i++)
        if (!has_layer(w, i)) return 1;
    return 0;
}

/* 1: the last names of the parts, in the layers of the parts, are these modules and no others. Where images
 * are seen or experts chosen there are more linear layers of such names. */
static int last_names_will_do(const writing *w)
{
    const int some = some_layers_only(w);
    if (strcmp(place_of(w).decoder, "model.") != 0 || w->config->experts.num_experts) return 0;
    for (int64_t i = 0; i < w->n_all; i++) {
        const qn_module *m = &w->all[i];
        const int named = has_last_name(w, last_name(m->name));
        if (find_part(w, m->name)) {
            if (some && m->layer < 0) return 0; /* layers_to_transform would leave it out */
        } else if (named && (m->layer < 0 ? !some : has_layer(w, m->layer))) {
            return 0;
        }
    }
    return 1;
}

typedef const char *(*name_of)(const writing *w, const item *t);

/* Of modules alone, and of parameters alone; NULL: it is of the other kind. */
static const char *whole_name(const writing *w, const item *t)
{
    return is_parameter(w, t) ? NULL : t->name;
}

static const char *parameter_name(const writing *w, const item *t)
{
    return is_parameter(w, t) ? t->name : NULL;
}

static const char *short_name(const writing *w, const item *t)
{
    return last_name(t->name);
}

/* "self_attn.q_proj". */
static const char *layer_name(const writing *w, const item *t)
{
    const qn_module *m = t->part->module;
    char layer[32];
    snprintf(layer, sizeof layer, "layers.%lld.", (long long)m->layer);
    const char *at = m->layer < 0 ? NULL : strstr(t->name, layer);
    return at ? at + strlen(layer) : t->name;
}

/* The names of all items that have one, each once, sorted. */
static void put_names(const writing *w, qn_buf *b, const char *key, name_of name)
{
    const char *before = NULL;
    qn_json_key(b, key);
    qn_json_open(b, '[');
    for (;;) {
        const char *next = NULL;
        for (int64_t i = 0; i < w->n_items; i++) {
            const char *own = name(w, &w->items[i]);
            if (own && (!before || strcmp(own, before) > 0) && (!next || strcmp(own, next) < 0)) next = own;
        }
        if (!next) break;
        qn_json_text(b, next, strlen(next));
        before = next;
    }
    qn_json_close(b, ']');
}

static int has_parameters(const writing *w)
{
    for (int64_t i = 0; i < w->n_items; i++)
        if (is_parameter(w, &w->items[i])) return 1;
    return 0;
}

/* ---- configuration ------------------------------------------------------------------------------------ */

/* So that reading gives the same number. */
static void put_number(qn_buf *b, const char *key, double value)
{
    qn_json_key(b, key);
    qn_buf_printf(b, "%.17g", value);
}

static void put_nothing(qn_buf *b, const char *key, const char *how)
{
    qn_json_key(b, key);
    qn_buf_puts(b, how);
}

static void peft_config(const writing *w, qn_buf *b)
{
    const qn_adapter_form *f = w->form;
    const int short_list = last_names_will_do(w);
    qn_json_open(b, '{');
    put_nothing(b, "alpha_pattern", "{}");
    put_nothing(b, "auto_mapping", "null");
    qn_json_put_text(b, "base_model_name_or_path", f->base_model);
    qn_json_put_text(b, "bias", "none");
    qn_json_put_bool(b, "fan_in_fan_out", 0);
    qn_json_put_bool(b, "inference_mode", 1);
    qn_json_put_bool(b, "init_lora_weights", 1);
    put_nothing(b, "layers_pattern", "null");
    qn_json_key(b, "layers_to_transform");
    if (short_list && first_layer(w) < w->config->num_hidden_layers && some_layers_only(w)) {
        qn_json_open(b, '[');
        for (int64_t i = 0; i < w->config->num_hidden_layers; i++)
            if (has_layer(w, i)) qn_json_int(b, i);
        qn_json_close(b, ']');
    } else {
        qn_buf_puts(b, "null");
    }
    put_number(b, "lora_alpha", f->alpha);
    /* peft loads no factors of parameters where there was any; it says how training was, and changes no number */
    put_number(b, "lora_dropout", has_parameters(w) ? 0 : f->dropout);
    put_nothing(b, "modules_to_save", "null");
    qn_json_put_text(b, "peft_type", "LORA");
    qn_json_put_int(b, "r", f->rank);
    put_nothing(b, "rank_pattern", "{}");
    put_nothing(b, "revision", "null");
    put_names(w, b, "target_modules", short_list ? short_name : whole_name);
    if (has_parameters(w)) put_names(w, b, "target_parameters", parameter_name);
    qn_json_put_text(b, "task_type", "CAUSAL_LM");
    qn_json_put_bool(b, "use_dora", f->dora);
    qn_json_put_bool(b, "use_rslora", f->rslora);
    qn_json_close(b, '}');
}

/* mlx_lm puts factors into the last num_layers layers; those that the file has none for change nothing. */
static void mlx_config(const writing *w, qn_buf *b)
{
    const qn_adapter_form *f = w->form;
    const double rank = (double)f->rank;
    qn_json_open(b, '{');
    qn_json_put_text(b, "fine_tune_type", f->dora ? "dora" : "lora");
    qn_json_put_text(b, "model", f->base_model);
    qn_json_put_int(b, "num_layers", w->config->num_hidden_layers - first_layer(w));
    qn_json_key(b, "lora_parameters");
    qn_json_open(b, '{');
    qn_json_put_int(b, "rank", f->rank);
    put_number(b, "scale", f->alpha / (f->rslora ? sqrt(rank) : rank));
    put_number(b, "dropout", f->dropout);
    put_names(w, b, "keys", layer_name);
    qn_json_close(b, '}');
    qn_json_close(b, '}');
}

/* ---- the folder --------------------------------------------------------------------------------------- */

typedef enum { NONE, SAME, ANOTHER } found_config;

/* What lies where the configuration shall be. What cannot be read is another one. */
static qn_status look_at_config(const char *path, const qn_buf *config, found_config *out)
{
    char *text = NULL;
    size_t n = 0;
    const qn_status status = qn_file_read(path, CONFIG_BYTES_MAX, &text, &n);
    if (status == QN_E_NOMEM) return status;
    *out = ANOTHER;
    if (status == QN_E_NOT_FOUND) *out = NONE;
    if (status == QN_OK && n == config->length && memcmp(text, config->data, n) == 0) *out = SAME;
    qn_free(text);
    return QN_OK;
}

/* Into the folder as it is: what makes an adapter of it comes last. */
static qn_status write_into(const writing *w, const char *path, const qn_buf *config, int has_same)
{
    qn_buf name = {0};
    qn_buf_printf(&name, "%s/%s", path, qn_adapter_layouts[w->form->layout].file);
    qn_status status = name.status == QN_OK ? write_tensors(w, name.data) : name.status;
    qn_buf_reset(&name);
    if (!has_same) qn_buf_printf(&name, "%s/%s", path, QN_ADAPTER_CONFIG_NAME);
    if (status == QN_OK) status = name.status;
    if (status == QN_OK && !has_same) status = qn_file_write(name.data, config->data, config->length);
    qn_buf_free(&name);
    return status;
}

static qn_status write_anew(const writing *w, const char *path, const qn_buf *config)
{
    qn_folder_writer *folder = NULL;
    const char *file;
    QN_TRY(qn_folder_writer_new(path, &folder));
    for (int i = 0; i < QN_ADAPTER_LAYOUTS; i++) qn_folder_writer_drop(folder, qn_adapter_layouts[i].file);
    qn_status status = (file = qn_folder_writer_path(folder, qn_adapter_layouts[w->form->layout].file))
                           ? write_tensors(w, file)
                           : QN_E_NOMEM;
    if (status == QN_OK)
        status = (file = qn_folder_writer_path(folder, QN_ADAPTER_CONFIG_NAME))
                     ? qn_file_write(file, config->data, config->length)
                     : QN_E_NOMEM;
    if (status == QN_OK) status = qn_folder_writer_finish(folder);
    qn_folder_writer_free(folder);
    return status;
}

/* A folder that has no configuration, or this one already, can be filled file by file. */
static qn_status write_folder(const writing *w, const char *path, const qn_buf *config)
{
    struct stat about;
    qn_buf name = {0};
    found_config found = NONE;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) return write_anew(w, path, config);
    qn_buf_printf(&name, "%s/%s", path, QN_ADAPTER_CONFIG_NAME);
    qn_status status = name.status == QN_OK ? look_at_config(name.data, config, &found) : name.status;
    qn_buf_free(&name);
    if (status != QN_OK) return status;
    return found == ANOTHER ? write_anew(w, path, config) : write_into(w, path, config, found == SAME);
}

qn_status qn_adapter_write(const char *path, const qn_model_config *c, const qn_adapter_form *form,
                           const qn_module *all, int64_t n_all, const qn_adapter_part *parts, int64_t n_parts)
{
    writing w = {.config = c, .form = form, .all = all, .parts = parts, .n_all = n_all, .n_parts = n_parts};
    qn_buf config = {0};
    qn_status status = make_items(&w);
    if (status == QN_OK) status = check_numbers(&w);
    if (status == QN_OK) {
        if (form->layout == QN_ADAPTER_PEFT)
            peft_config(&w, &config);
        else
            mlx_config(&w, &config);
        qn_buf_putc(&config, '\n');
        status = config.status;
    }
    if (status == QN_OK) status = write_folder(&w, path, &config);
    qn_buf_free(&config);
    qn_free(w.items);
    return status == QN_OK ? QN_OK : qn_fail_prefix(status, "cannot write the adapter");
}
