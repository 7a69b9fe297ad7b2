/* Rerankers: how relevant each document is to a query. See classify.h for how lists are worked through, which
 * holds here too. Any thread. */
#ifndef QUERN_RERANK_H
#define QUERN_RERANK_H

#include <quern/classify.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a model judges a pair: X(NAME, "name"). */
#define QN_RERANK_KIND_LIST(X)                                                                     \
    X(AUTO, "auto") /* cross-encoder if the model has a classification head, else yes-no */        \
    X(CROSS_ENCODER,                                                                               \
      "cross-encoder")  /* an encoder reads query and document together, its head gives a logit */ \
    X(YES_NO, "yes-no") /* a language model is asked, as Qwen3-Reranker, whether the document fits */

typedef enum {
#define QN_RERANK_KIND_ENUM(name, text) QN_RERANK_##name,
    QN_RERANK_KIND_LIST(QN_RERANK_KIND_ENUM)
#undef QN_RERANK_KIND_ENUM
        QN_RERANK_KIND_COUNT
} qn_rerank_kind;

/* A query with a document: two texts, or token ids as they are if ids is not NULL. */
typedef struct {
    const char *query, *document;       /* UTF-8. Special tokens written out in them are text */
    size_t query_bytes, document_bytes; /* 0: up to the NUL */
    const int32_t *ids;                 /* [n_ids] */
    int64_t n_ids;
    const int32_t *types; /* [n_ids] token types, of a cross-encoder that has them; NULL: all 0 */
} qn_pair;

typedef struct {
    qn_rerank_kind kind;
    const char
        *instruction; /* of yes-no: the task. NULL: "Given a web search query, retrieve relevant passages that
                                answer the query" */
    /* As in qn_generate_options. */
    const char *adapter, *tenant;
    int32_t priority;
    const qn_cancel *cancel; /* NULL: none */
} qn_rerank_options;

typedef struct {
    size_t i_pair;
    qn_status status; /* QN_OK, or the fields below are zero but n_tokens */
    const char *message;
    int64_t n_tokens;   /* of the pair; 0 where it could not be encoded */
    double score;       /* cross-encoder: the head's logit. yes-no: the probability */
    double probability; /* cross-encoder: 1 / (1 + exp(-score)). yes-no: that of "yes", of the two answers */
} qn_rerank_result;
typedef qn_status qn_rerank_fn(void *user, const qn_rerank_result *result);

/* A score for each pair. A pair that is longer than the context has the status QN_E_ARG; nothing is cut.
 * QN_E_UNSUPPORTED: the model cannot judge in this way. options may be NULL. */
QN_API qn_status qn_rerank(qn_model *model, const qn_pair *pairs, size_t n_pairs,
                           const qn_rerank_options *options, qn_rerank_fn *fn, void *user);
/* "yes-no". Static storage. */
QN_API const char *qn_rerank_kind_name(qn_rerank_kind kind);

#ifdef __cplusplus
}
#endif
#endif
