/* Every field that clients of rerankers send, and what becomes of it. null means "not given" everywhere. */
#include <stddef.h>

#include "server/rerank/request.h"

#define AT(field) offsetof(qn_api_request, field)
#define BOTH (QN_RERANK_ROUTE | QN_SCORE_ROUTE)
#define RANK QN_RERANK_ROUTE
#define SCORE QN_SCORE_ROUTE

static const char never_cut[] = "a text that is too long is refused, never cut";

const qn_field qn_rerank_fields[] = {
    {"model", BOTH, QN_FIELD_TEXT, AT(model), 0, 0, NULL, NULL, NULL},
    {"query", RANK, QN_FIELD_JSON, AT(query), 0, 0, NULL, NULL, NULL},
    {"documents", RANK, QN_FIELD_JSON, AT(documents), 0, 0, NULL, NULL, NULL},
    {"texts", RANK, QN_FIELD_JSON, AT(texts), 0, 0, NULL, NULL, NULL},
    {"text_1", SCORE, QN_FIELD_JSON, AT(query), 0, 0, NULL, NULL, NULL},
    {"text_2", SCORE, QN_FIELD_JSON, AT(documents), 0, 0, NULL, NULL, NULL},
    {"queries", SCORE, QN_FIELD_JSON, AT(query), 0, 0, NULL, NULL, NULL},
    {"documents", SCORE, QN_FIELD_JSON, AT(documents), 0, 0, NULL, NULL, NULL},
    {"instruction", BOTH, QN_FIELD_TEXT, AT(instruction), 0, 0, NULL, NULL, NULL},
    {"top_n", RANK, QN_FIELD_INT, AT(top_n), 1, INT32_MAX, NULL, NULL, NULL},
    {"return_documents", RANK, QN_FIELD_BOOL, AT(returns_texts), 0, 0, NULL, NULL, NULL},
    {"return_text", RANK, QN_FIELD_BOOL, AT(returns_texts), 0, 0, NULL, NULL, NULL},
    {"raw_scores", RANK, QN_FIELD_BOOL, AT(raw_scores), 0, 0, NULL, NULL, NULL},

    /* taken and reported */
    {"user", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "is not used"},
    {"encoding_format", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "is not used: scores are numbers"},

    /* refused, but for values that ask for nothing */
    {"rank_fields", RANK, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "documents are texts"},
    {"max_chunks_per_doc", RANK, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, never_cut},
    {"max_tokens_per_doc", RANK, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, never_cut},
    {"truncate", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", never_cut},
    {"truncation", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", never_cut},
    {"truncate_prompt_tokens", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, never_cut},
    {0},
};
