/* Encoders: hidden states and scores of whole sequences, and the refusal of all that generates. Vectors for texts, of any
 * model. */
#include <string.h>

#include "backend/native/native_parts.h"
#include "base/mem.h"
#include "engine/clients/encode.h"

qn_status qn_native_check_generates(const native_model *m, const char *what)
{
    if (!qn_engine_encodes(m->engine)) return QN_OK;
    return qn_fail(
        QN_E_UNSUPPORTED,
        "%s: a %s is an encoder, which generates no text, so there are no %s (embed gives vectors)", m->path,
        qn_engine_config(m->engine)->architecture, what);
}

typedef struct {
    const int64_t *first; /* NULL: all */
    int last_only, scores;
    int64_t width;
    qn_logits_fn *fn;
    void *user;
} sink;

static qn_status pass_on(void *user, int64_t i, int64_t n, const float *values)
{
    const sink *s = user;
    const int64_t first = s->scores ? 0 : s->first ? s->first[i] : s->last_only ? n - 1 : 0;
    return s->fn(s->user, i, first, n - first, values + first * s->width);
}

/* types: NULL, or one for each row, of which ids may be NULL. */
static qn_status make_rows(native_model *m, const qn_ids *ids, const qn_ids *types, int64_t n,
                           const qn_logits_options *o, qn_encode_row *rows, int64_t *n_held)
{
    for (; *n_held < n; ++*n_held) {
        const int64_t i = *n_held;
        const char *own = o->row_adapters ? o->row_adapters[i] : NULL;
        rows[i] = (qn_encode_row){.ids = ids[i].ids, .n_ids = ids[i].n_ids};
        if (types && types[i].ids && types[i].n_ids != ids[i].n_ids)
            return qn_fail(QN_E_ARG, "row %lld has %lld tokens, but %lld token types", (long long)i,
                           (long long)ids[i].n_ids, (long long)types[i].n_ids);
        if (types) rows[i].types = types[i].ids;
        QN_TRY(qn_adapters_hold(qn_engine_adapters(m->engine), own ? own : o->adapter, &rows[i].adapter));
    }
    return QN_OK;
}

static qn_status encode(native_model *m, const qn_ids *ids, const qn_ids *types, int64_t n, int scores,
                        const qn_logits_options *o, qn_logits_fn *fn, void *user)
{
    qn_encode_row *rows = qn_alloc_array((size_t)n, sizeof *rows);
    int64_t n_held = 0;
    if (!rows) return QN_E_NOMEM;
    sink s = {.first = o->row_first,
              .last_only = o->last_only,
              .scores = scores,
              .width = qn_engine_encoded_size(m->engine),
              .fn = fn,
              .user = user};
    const qn_encoding what = {.rows = rows, .n_rows = n, .scores = scores, .cancel = o->cancel};
    qn_status status = make_rows(m, ids, types, n, o, rows, &n_held);
    if (status == QN_OK) status = qn_encode(m->scheduler, m->engine, &what, pass_on, &s);
    while (n_held > 0) qn_adapters_release(qn_engine_adapters(m->engine), rows[--n_held].adapter);
    qn_free(rows);
    return status;
}

qn_status qn_native_hidden(native_model *m, const qn_ids *rows, int64_t n_rows,
                           const qn_logits_options *options, qn_logits_fn *fn, void *user)
{
    if (!options->hidden) return qn_native_check_generates(m, "logits of next tokens");
    return encode(m, rows, NULL, n_rows, 0, options, fn, user);
}

qn_status qn_native_scores(void *model, const qn_ids *rows, const qn_ids *types, int64_t n_rows,
                           const qn_logits_options *options, qn_logits_fn *fn, void *user)
{
    native_model *m = model;
    if (!qn_engine_config(m->engine)->encoder.num_labels)
        return qn_fail(QN_E_UNSUPPORTED, "%s: a %s without a head that scores sequences", m->path,
                       qn_engine_config(m->engine)->architecture);
    return encode(m, rows, types, n_rows, 1, options, fn, user);
}

/* ---- vectors for texts -------------------------------------------------------------------------------- */

qn_status qn_native_read_sentence(native_model *m, const qn_source *source)
{
    const char *config = qn_source_side_path(source, QN_SIDE_CONFIG),
               *slash = config ? strrchr(config, '/') : NULL;
    if (config) {
        char *folder = slash ? qn_strndup(config, (size_t)(slash - config)) : qn_strdup(".");
        if (!folder) return QN_E_NOMEM;
        m->sentence_status = qn_sentence_read(folder, qn_engine_encoded_size(m->engine), &m->sentence);
        qn_free(folder);
    } else if (qn_source_gguf(source)) {
        m->sentence_status = qn_sentence_read_gguf(source, qn_engine_encoded_size(m->engine), &m->sentence);
    }
    if (m->sentence_status == QN_OK || m->sentence_status == QN_E_NOMEM) return m->sentence_status;
    m->sentence_failure = qn_strdup(qn_last_error());
    return m->sentence_failure ? QN_OK : QN_E_NOMEM;
}

qn_status qn_native_get_embedding_info(void *model, qn_embedding_info *out)
{
    static const struct {
        unsigned bit;
        qn_pooling pooling;
    } all[] = {{QN_SENTENCE_CLS, QN_POOLING_CLS},
               {QN_SENTENCE_MAX, QN_POOLING_MAX},
               {QN_SENTENCE_MEAN, QN_POOLING_MEAN},
               {QN_SENTENCE_MEAN_SQRT, QN_POOLING_MEAN_SQRT},
               {QN_SENTENCE_WEIGHTED_MEAN, QN_POOLING_WEIGHTED_MEAN},
               {QN_SENTENCE_LAST, QN_POOLING_LAST}};
    const native_model *m = model;
    *out = (qn_embedding_info){0};
    if (m->sentence_failure) return qn_fail(m->sentence_status, "%s", m->sentence_failure);
    if (!m->sentence) return QN_OK;
    const qn_sentence_info *info = qn_sentence_get(m->sentence);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (info->poolings & all[i].bit) out->poolings |= 1u << all[i].pooling;
    out->leaves_prompt_out = info->leaves_prompt_out;
    out->normalises = info->normalises;
    if (info->n_dense) {
        out->n_pooled = info->n_in;
        out->n_values = info->n_out;
    }
    out->max_tokens = info->max_tokens;
    out->n_prompts = info->n_prompts;
    out->prompt_names = info->prompt_names;
    out->prompts = info->prompts;
    out->default_prompt_name = info->default_prompt;
    return QN_OK;
}

qn_status qn_native_embedding_project(void *model, const float *pooled, float *out)
{
    const native_model *m = model;
    float *scratch = qn_alloc_array(qn_sentence_scratch(m->sentence), sizeof *scratch);
    if (!scratch) return QN_E_NOMEM;
    qn_sentence_project(m->sentence, pooled, scratch, out);
    qn_free(scratch);
    return QN_OK;
}
