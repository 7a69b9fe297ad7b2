/* quern fuse: an adapter added to a model's weights, as a model of its own, and how near it comes to the
 * model with the adapter. */
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/options/options.h"
#include "cli/term/fold.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_arg_list adapters;
    const char *out_path;
    const char *type, *embedding_type;
    int no_check, json;
} fuse_options;

/* What both are compared on. */
enum { CHECK_TOKENS_MAX = 96 };
static const char check_text[] =
    "A miller keeps two stones: the lower one lies still and the upper one turns. Grain runs in at the eye, "
    "is "
    "cut between the furrows and leaves at the rim as meal. How fine it gets depends on the gap, which a "
    "screw sets: 0.2 mm for flour, 1.5 mm for feed. Q: Which stone turns? A: The upper one. "
    "for (int i = 0; i < n; i++) sum += grain[i] * weight[i];";

typedef struct {
    int64_t n_tokens, n_same; /* positions, and those with the same best token */
    double kl;                /* mean, in nats, of the fused model's distribution from the other's */
    int loses_images;         /* 1: the fused model takes no pictures, as the other did */
} comparison;

#define AT(field) offsetof(fuse_options, field)
static const qn_arg fuse_args[] = {
    {"--adapter", 0, QN_ARG_LIST, AT(adapters), 0, 0, "DIR[:SCALE]",
     "adapter to merge (PEFT or mlx_lm), times SCALE; may be given several times, and all are merged; "
     "without one, "
     "the model is only converted to another format or type"},
    {"--output", 'o', QN_ARG_TEXT, AT(out_path), 0, 0, "PATH", "new folder or new GGUF file to write"},
    {"--type", 0, QN_ARG_TEXT, AT(type), 0, 0, "TYPE",
     "type of the weights: keep (default: each tensor keeps its type), f32, f16, bf16; for matrices in a "
     "GGUF file also q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, mxfp4"},
    {"--embedding-type", 0, QN_ARG_TEXT, AT(embedding_type), 0, 0, "TYPE",
     "type of the embedding and the output head in a GGUF file (default: that of --type)"},
    {"--no-check", 0, QN_ARG_FLAG, AT(no_check), 0, 0, NULL,
     "do not compare the new model with the old one on a short text"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

static const qn_arg_group fuse_groups[] = {{NULL, fuse_args, 0, NULL}, {0}};
const qn_arg_spec qn_fuse_spec = {
    "quern fuse MODEL [--adapter DIR[:SCALE]]... -o PATH [options]",
    "Merges an adapter into the model's weights and writes the result as a new model, which needs no\n"
    "adapter. The sums are computed in f32. If MODEL is a directory with safetensors, PATH is a folder,\n"
    "and the other files are copied; or PATH is a file NAME.gguf, which also holds the tokenizer and the\n"
    "chat template. If MODEL is a GGUF file, the result is a GGUF file too. Then the command runs the\n"
    "model with the adapter and the fused model over a short text. It prints the KL divergence between\n"
    "their distributions of the next token, and how often both have the same most likely token. With\n"
    "several adapters nothing is compared, since a model computes with one adapter at a time.",
    fuse_groups,
    1,
    1,
    NULL};

/* ---- comparison ---------------------------------------------------------------------------------------- */

typedef struct {
    int32_t *ids; /* [n] by the first model; both see them */
    int64_t n;
    float *logits; /* [CHECK_TOKENS_MAX, vocab_size] of the first model */
    int64_t vocab_size;
    int takes_images;
    comparison *sums; /* NULL: the first model runs */
} check;

static int64_t best_of(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double log_sum(const float *x, int64_t n)
{
    const double top = (double)x[best_of(x, n)];
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

static qn_status take_logits(void *user, int64_t row, int64_t position, int64_t n_positions,
                             const float *logits)
{
    check *c = user;
    const int64_t n = c->vocab_size;
    if (qn_interrupt_taken()) return qn_fail(QN_E_CANCELLED, "cancelled; the fused model is written");
    for (int64_t i = 0; i < n_positions; i++) {
        float *first = c->logits + (position + i) * n;
        const float *own = logits + i * n;
        if (!c->sums) {
            memcpy(first, own, (size_t)n * sizeof *own);
            continue;
        }
        const double from = log_sum(first, n), to = log_sum(own, n);
        for (int64_t k = 0; k < n; k++) {
            const double p = (double)first[k] - from;
            c->sums->kl += exp(p) * (p - ((double)own[k] - to));
        }
        c->sums->n_same += best_of(first, n) == best_of(own, n);
        c->sums->n_tokens++;
    }
    return QN_OK;
}

static qn_status run_first(qn_model *model, check *c)
{
    qn_model_info info;
    QN_TRY(qn_model_get_info(model, &info));
    QN_TRY(qn_model_encode(model, check_text, strlen(check_text), NULL, &c->ids, &c->n));
    if (c->n > CHECK_TOKENS_MAX) c->n = CHECK_TOKENS_MAX;
    c->vocab_size = info.vocab_size;
    c->takes_images = info.takes_images;
    c->logits = qn_alloc_array((size_t)CHECK_TOKENS_MAX, (size_t)c->vocab_size * sizeof *c->logits);
    return c->logits ? QN_OK : QN_E_NOMEM;
}

/* adapter NULL: none. */
static qn_status run_model(const char *path, const qn_adapter_options *adapter, check *c)
{
    qn_model *model = NULL;
    const qn_model_options options = {.device = "cpu",
                                      .adapter_path = adapter ? adapter->path : NULL,
                                      .adapter_scale = adapter ? adapter->scale : 0};
    qn_status status = qn_model_open(path, &options, &model);
    if (status == QN_OK && !c->sums) status = run_first(model, c);
    qn_model_info info = {0};
    if (status == QN_OK && c->sums) status = qn_model_get_info(model, &info);
    if (status == QN_OK && c->sums) c->sums->loses_images = c->takes_images && !info.takes_images;
    const qn_ids row = {c->ids, c->n};
    if (status == QN_OK) status = qn_model_logits(model, &row, 1, NULL, take_logits, c);
    qn_model_close(&model);
    return status;
}

static qn_status compare(const char *path, const fuse_options *o, const qn_adapter_options *adapter,
                         comparison *out)
{
    comparison sums = {0};
    check c = {0};
    qn_status status = run_model(path, o->adapters.n ? adapter : NULL, &c);
    c.sums = &sums;
    if (status == QN_OK) status = run_model(o->out_path, NULL, &c);
    qn_buffer_free(c.ids);
    qn_free(c.logits);
    if (sums.n_tokens) sums.kl /= (double)sums.n_tokens;
    if (status == QN_OK) *out = sums;
    return status;
}

/* ---- the command --------------------------------------------------------------------------------------- */

/* On a terminal a line that is written over. */
static qn_status show_progress(void *user, size_t done, size_t total)
{
    int *shown = user, percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    if (qn_interrupt_taken()) return qn_fail(QN_E_CANCELLED, "cancelled; nothing was written");
    if (*shown == percent || !qn_out_has_style(stderr)) return QN_OK;
    *shown = percent;
    fprintf(stderr, "\rfusing %3d%%\033[K", percent);
    fflush(stderr);
    return QN_OK;
}

/* "PATH: " and what it is; frees text. */
static qn_status print_made(const char *path, qn_buf *text)
{
    qn_buf b = {.status = text->status};
    const int at = qn_out_put_shown(&b, path, strlen(path), 0);
    qn_buf_puts(&b, ": ");
    if (text->status == QN_OK) qn_fold_put(&b, text->data, at + 2, 2, qn_fold_terminal(stdout), 0);
    qn_buf_free(text);
    return qn_out_line(&b);
}

/* c NULL: not compared. */
static qn_status print_result(const fuse_options *o, const qn_fuse_result *r, const comparison *c)
{
    char size[32];
    const char *path = o->out_path;
    qn_buf b = {0};
    if (o->json) {
        qn_json_open(&b, '{');
        qn_json_put_text(&b, "output", path);
        qn_json_put_int(&b, "tensors", r->n_tensors);
        qn_json_put_int(&b, "merged", r->n_merged);
        qn_json_put_int(&b, "size_bytes", (int64_t)r->size_bytes);
        qn_json_key(&b, "check");
        if (c) {
            qn_json_open(&b, '{');
            qn_json_put_int(&b, "n_tokens", c->n_tokens);
            qn_json_put_int(&b, "n_same_best", c->n_same);
            qn_json_put_real(&b, "kl", c->kl);
            qn_json_close(&b, '}');
        } else {
            qn_buf_puts(&b, "null");
        }
        qn_json_close(&b, '}');
        return qn_out_line(&b);
    }
    qn_buf_printf(&b, "%s in %lld tensors", qn_out_size_text(r->size_bytes, size, sizeof size),
                  (long long)r->n_tensors);
    if (o->adapters.n)
        qn_buf_printf(&b, ", %lld matrices merged with the adapter%s", (long long)r->n_merged,
                      o->adapters.n > 1 ? "s" : "");
    QN_TRY(print_made(path, &b));
    if (!c) return QN_OK;
    if (c->loses_images)
        qn_out_note("the tower for pictures is not in the GGUF file: the fused model takes none, unless its "
                    "mmproj file lies beside it");
    qn_buf_printf(
        &b, "compared with the model%s over %lld tokens: KL %.2g nats, the same best token for %lld",
        o->adapters.n ? " with the adapter" : "", (long long)c->n_tokens, c->kl, (long long)c->n_same);
    return qn_fold_out_line(&b, 2);
}

/* Paths and scales of --adapter; the texts lie in paths. */
static qn_status read_adapters(const fuse_options *o, qn_buf *paths, qn_adapter_options *out)
{
    size_t at[QN_ARG_LIST_MAX];
    for (size_t i = 0; i < o->adapters.n; i++) {
        const char *text = o->adapters.items[i];
        const size_t n = qn_load_read_scale(text, &out[i].scale);
        if (!n) return qn_fail(QN_E_ARG, "--adapter: '%s' names no folder", text);
        if (out[i].scale == 0) return qn_fail(QN_E_ARG, "--adapter: '%s': the scale must not be 0", text);
        at[i] = paths->length;
        qn_buf_append(paths, text, n);
        qn_buf_append(paths, "", 1);
    }
    for (size_t i = 0; i < o->adapters.n && paths->status == QN_OK; i++) out[i].path = paths->data + at[i];
    return paths->status;
}

int qn_cmd_fuse(int argc, char **argv)
{
    fuse_options o = {.json = 0};
    qn_adapter_options adapters[QN_ARG_LIST_MAX] = {{.name = NULL}};
    qn_buf paths = {0};
    qn_fuse_result result;
    comparison c;
    const char *path;
    int n, code, shown = -1;
    if (qn_args_parse(&qn_fuse_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (!o.out_path || !*o.out_path)
        return qn_args_fail("fuse", "-o PATH is missing: the folder or file for the model");
    qn_interrupt_start_for_files(); /* there is a folder to remove */
    qn_fuse_options options = {.type = o.type && strcmp(o.type, "keep") == 0 ? NULL : o.type,
                               .embedding_type = o.embedding_type,
                               .progress = show_progress,
                               .user = &shown};
    qn_buf found = {0};
    qn_status status = qn_model_name_take(&path, &found);
    if (status == QN_OK) status = read_adapters(&o, &paths, adapters);
    options.more = adapters;
    options.n_more = (int64_t)o.adapters.n;
    if (status == QN_OK) status = qn_model_fuse(path, NULL, o.out_path, &options, &result);
    if (shown >= 0) fprintf(stderr, "\r\033[K");
    const int is_compared = !o.no_check && o.adapters.n < 2;
    if (status == QN_OK && is_compared) status = compare(path, &o, adapters, &c);
    if (status == QN_OK) status = print_result(&o, &result, is_compared ? &c : NULL);
    code = status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    qn_buf_free(&found);
    qn_buf_free(&paths);
    return status == QN_E_CANCELLED ? QN_EXIT_INTERRUPTED : code;
}
