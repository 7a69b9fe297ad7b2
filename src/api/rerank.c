/* qn_rerank: each pair is a row, and its last position tells how relevant the document is. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/list_parts.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

typedef struct {
    qn_prompt_row row;
    double probability;
} item;

typedef struct {
    qn_model *model;
    const qn_pair *pairs;
    const qn_rerank_options *o;
    qn_rerank_fn *fn;
    void *user; /* of fn */
    int64_t context;
    int32_t yes, no; /* ids of the answers */
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

static qn_status prepare(void *user, size_t i_pair, void *made)
{
    const job *j = user;
    const qn_pair *p = &j->pairs[i_pair];
    item *t = made;
    qn_buf made_ids = {0};
    qn_ids ids = {p->ids, p->n_ids};
    if (!p->ids) {
        if (!p->query || !p->document) return qn_fail(QN_E_ARG, "the pair has neither two texts nor ids");
        qn_status status = put_question(j, p, &made_ids);
        if (status != QN_OK) {
            qn_buf_free(&made_ids);
            return status;
        }
        ids = (qn_ids){(const int32_t *)(const void *)made_ids.data,
                       (int64_t)(made_ids.length / sizeof(int32_t))};
    } else if (p->types) {
        return qn_fail(QN_E_ARG, "types: only a cross-encoder has token types");
    }
    qn_prompt_row_make(j->model, &(qn_prompt){.rows = &ids, .n_rows = 1}, j->context, &t->row);
    qn_buf_free(&made_ids);
    return t->row.status;
}

static int64_t add_rows(void *user, int pass, void *made, qn_wanted_row *rows)
{
    item *t = made;
    if (rows)
        *rows =
            (qn_wanted_row){.ids = {t->row.ids, t->row.n_ids}, .first = t->row.n_ids - 1, .owner = &t->row};
    return 1;
}

static qn_status take(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *logits)
{
    const job *j = user;
    item *t = (item *)row->owner;
    const double margin = (double)logits[j->yes] - (double)logits[j->no];
    t->probability = 1 / (1 + exp(-margin));
    if (isnan(t->probability))
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
    if (r.status == QN_OK) r.score = r.probability = t->probability;
    return j->fn(j->user, &r);
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
    if (j.o->kind == QN_RERANK_CROSS_ENCODER)
        return qn_fail(QN_E_UNSUPPORTED,
                       "kind: the model has no classification head, which a cross-encoder needs");
    QN_TRY(qn_model_get_info(model, &info));
    QN_TRY(find_answer(model, "yes", &j.yes));
    QN_TRY(find_answer(model, "no", &j.no));
    j.context = info.context_size;
    const qn_logits_options logits = {
        .adapter = j.o->adapter, .tenant = j.o->tenant, .priority = j.o->priority, .cancel = j.o->cancel};
    const qn_list_work work = {.model = model,
                               .logits = &logits,
                               .item_bytes = sizeof(item),
                               .n_passes = 1,
                               .user = &j,
                               .prepare = prepare,
                               .add_rows = add_rows,
                               .take = take,
                               .give = give};
    return qn_list_work_run(&work, n_pairs);
}
