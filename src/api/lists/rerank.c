/* qn_rerank: each pair is a row, and its last position tells how relevant the document is. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/lists/list_parts.h"
#include "backend/registry.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

typedef struct {
    qn_prompt_row row;
    int32_t *types; /* [row.n_ids], of a cross-encoder; NULL: all 0 */
    double logit;   /* yes-no: that of yes less that of no */
} item;

typedef struct {
    qn_model *model;
    const qn_pair *pairs;
    const qn_rerank_options *o;
    qn_rerank_fn *fn;
    void *user; /* of fn */
    int64_t context, n_types;
    int yes_no;
    int32_t yes, no; /* ids of the answers, with yes_no */
} job;

const char *qn_rerank_kind_name(qn_rerank_kind kind)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_RERANK_KIND_LIST(NAME)
#undef NAME
    };
    return (size_t)kind < QN_RERANK_KIND_COUNT ? names[kind] : "unknown kind";
}

/* ---- the question, as the model card of Qwen3-Reranker has it ---- */

static const char head[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n";
static const char tail[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char instruction[] =
    "Given a web search query, retrieve relevant passages that answer the query";

/* Appends the ids of a text. */
static qn_status put_ids(const qn_model *model, const char *text, size_t n_bytes, int special, qn_buf *out)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    QN_TRY(qn_model_encode(model, text, n_bytes, &(qn_encode_options){.special = special}, &ids, &n));
    qn_buf_append(out, ids, (size_t)n * sizeof *ids);
    qn_buffer_free(ids);
    return out->status;
}

static void put_text(qn_buf *b, const char *name, const char *text, size_t n_bytes)
{
    qn_buf_puts(b, name);
    qn_buf_append(b, text, n_bytes ? n_bytes : strlen(text));
}

static qn_status put_question(const job *j, const qn_pair *p, qn_buf *ids)
{
    qn_buf text = {0};
    put_text(&text, "<Instruct>: ", j->o->instruction ? j->o->instruction : instruction, 0);
    put_text(&text, "\n<Query>: ", p->query, p->query_bytes);
    put_text(&text, "\n<Document>: ", p->document, p->document_bytes);
    qn_status status = text.status;
    if (status == QN_OK) status = put_ids(j->model, head, sizeof head - 1, 1, ids);
    if (status == QN_OK) status = put_ids(j->model, text.data, text.length, 0, ids);
    if (status == QN_OK) status = put_ids(j->model, tail, sizeof tail - 1, 1, ids);
    qn_buf_free(&text);
    return status;
}

/* The answer's token; of a vocabulary too small for the word, that of its first letter. */
static qn_status find_answer(const qn_model *model, const char *word, int32_t *out)
{
    for (size_t n_bytes = strlen(word); n_bytes; n_bytes = n_bytes > 1 ? 1 : 0) {
        int32_t *ids = NULL;
        int64_t n = 0;
        QN_TRY(qn_model_encode(model, word, n_bytes, NULL, &ids, &n));
        if (n == 1) *out = ids[0];
        qn_buffer_free(ids);
        if (n == 1) return QN_OK;
    }
    return qn_fail(QN_E_UNSUPPORTED,
                   "the model cannot judge by yes and no: its tokenizer has no token \"%s\"", word);
}

/* ---- items of the list ---- */

/* What the tokenizer makes of two texts; types are the item's. */
static qn_status put_pair(const job *j, const qn_pair *p, item *t, qn_buf *ids)
{
    qn_pair sized = *p;
    int32_t *made = NULL;
    int64_t n = 0;
    if (!sized.query_bytes) sized.query_bytes = strlen(sized.query);
    if (!sized.document_bytes) sized.document_bytes = strlen(sized.document);
    if (!j->model->backend->encode_pair) return qn_backend_fail_missing(j->model->backend, "pairs of texts");
    QN_TRY(j->model->backend->encode_pair(j->model->object, &sized, &made, &t->types, &n));
    qn_buf_append(ids, made, (size_t)n * sizeof *made);
    qn_free(made);
    return ids->status;
}

static qn_status copy_types(const job *j, const qn_pair *p, item *t)
{
    if (j->yes_no) return qn_fail(QN_E_ARG, "types: only a cross-encoder has token types");
    for (int64_t i = 0; i < p->n_ids; i++)
        if (p->types[i] < 0 || (p->types[i] && p->types[i] >= j->n_types))
            return qn_fail(QN_E_ARG, "token type %d at position %lld: the model has %lld types",
                           (int)p->types[i], (long long)i, (long long)j->n_types);
    t->types = qn_alloc_array((size_t)p->n_ids, sizeof *t->types);
    if (!t->types) return QN_E_NOMEM;
    memcpy(t->types, p->types, (size_t)p->n_ids * sizeof *t->types);
    return QN_OK;
}

static qn_status put_ids_of(const job *j, const qn_pair *p, item *t, qn_buf *ids)
{
    if (p->ids) {
        qn_buf_append(ids, p->ids, (size_t)p->n_ids * sizeof *p->ids);
        if (ids->status != QN_OK) return ids->status;
        return p->types ? copy_types(j, p, t) : QN_OK;
    }
    if (!p->query || !p->document) return qn_fail(QN_E_ARG, "the pair has neither two texts nor ids");
    return j->yes_no ? put_question(j, p, ids) : put_pair(j, p, t, ids);
}

static qn_status prepare(void *user, size_t i_pair, void *made)
{
    const job *j = user;
    item *t = made;
    qn_buf ids = {0};
    qn_status status = put_ids_of(j, &j->pairs[i_pair], t, &ids);
    if (status == QN_OK) {
        const qn_ids row = {(const int32_t *)(const void *)ids.data, (int64_t)(ids.length / sizeof(int32_t))};
        qn_prompt_row_make(j->model, &(qn_prompt){.rows = &row, .n_rows = 1}, j->context, &t->row);
        status = t->row.status;
    }
    qn_buf_free(&ids);
    return status;
}

static int64_t add_rows(void *user, int pass, void *made, qn_wanted_row *rows)
{
    const job *j = user;
    item *t = made;
    if (rows)
        *rows = (qn_wanted_row){.ids = {t->row.ids, t->row.n_ids},
                                .first = t->row.n_ids - 1,
                                .owner = &t->row,
                                .types = j->n_types ? t->types : NULL};
    return 1;
}

/* Logits of the last position, or the head's only one. */
static qn_status take(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *logits)
{
    const job *j = user;
    item *t = (item *)row->owner;
    t->logit = j->yes_no ? (double)logits[j->yes] - (double)logits[j->no] : (double)logits[0];
    if (isnan(t->logit))
        qn_prompt_row_fail(&t->row,
                           qn_fail(QN_E_INTERNAL, "the model gave logits that are not finite numbers"));
    return QN_OK;
}

static qn_status give(void *user, size_t i_pair, void *made)
{
    const job *j = user;
    const item *t = made;
    qn_rerank_result r = {.i_pair = i_pair,
                          .status = t->row.status,
                          .message = qn_prompt_row_message(&t->row),
                          .n_tokens = t->row.n_ids};
    if (r.status == QN_OK) {
        r.probability = 1 / (1 + exp(-t->logit));
        r.score = j->yes_no ? r.probability : t->logit;
    }
    return j->fn(j->user, &r);
}

static void end(void *made)
{
    qn_free(((item *)made)->types);
}

/* How the model is to judge, and what that needs. */
static qn_status choose_kind(job *j, const qn_model_info *info)
{
    const qn_rerank_kind kind = j->o->kind;
    j->yes_no = kind == QN_RERANK_YES_NO || (kind == QN_RERANK_AUTO && !info->num_labels);
    if (!j->yes_no && info->num_labels != 1)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "kind: a cross-encoder has a classification head with one label; that of this model has %lld",
            (long long)info->num_labels);
    if (j->yes_no && info->is_encoder)
        return qn_fail(
            QN_E_UNSUPPORTED,
            info->num_labels
                ? "kind: an encoder cannot be asked for yes or no; this one is a cross-encoder"
                : "kind: the model is an encoder without a classification head; it cannot judge pairs");
    if (!j->yes_no && j->o->instruction)
        return qn_fail(QN_E_ARG,
                       "instruction: only a model that is asked for yes or no has a task; this one judges "
                       "by its classification head");
    j->n_types = info->num_token_types;
    j->context = info->context_size;
    if (!j->yes_no) return QN_OK;
    QN_TRY(find_answer(j->model, "yes", &j->yes));
    return find_answer(j->model, "no", &j->no);
}

qn_status qn_rerank(qn_model *model, const qn_pair *pairs, size_t n_pairs, const qn_rerank_options *options,
                    qn_rerank_fn *fn, void *user)
{
    const qn_rerank_options defaults = {0};
    qn_model_info info;
    job j = {.model = model, .pairs = pairs, .o = options ? options : &defaults, .fn = fn, .user = user};
    if (!model || !pairs || !fn) return qn_fail(QN_E_ARG, "qn_rerank: an argument is NULL");
    if (!n_pairs) return qn_fail(QN_E_ARG, "qn_rerank: no pairs");
    if ((unsigned)j.o->kind >= QN_RERANK_KIND_COUNT)
        return qn_fail(QN_E_ARG, "kind: %d is not a kind of reranker", (int)j.o->kind);
    QN_TRY(qn_model_get_info(model, &info));
    QN_TRY(choose_kind(&j, &info));
    const qn_logits_options logits = {
        .adapter = j.o->adapter, .tenant = j.o->tenant, .priority = j.o->priority, .cancel = j.o->cancel};
    const qn_list_work work = {.model = model,
                               .logits = &logits,
                               .scores = !j.yes_no,
                               .item_bytes = sizeof(item),
                               .n_passes = 1,
                               .user = &j,
                               .prepare = prepare,
                               .add_rows = add_rows,
                               .take = take,
                               .give = give,
                               .end = end};
    return qn_list_work_run(&work, n_pairs);
}
