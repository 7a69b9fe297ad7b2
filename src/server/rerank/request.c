#include "server/rerank/request.h"

#include "base/mem.h"

static int missing(qn_api_error *error, const char *param)
{
    return qn_api_fail(error, 400, "missing_parameter", param, "%s is missing", param);
}

/* What the client calls the two sides. */
static const char *first_field(const qn_api_request *r)
{
    if (r->route == QN_RERANK_ROUTE) return "query";
    return json_object_get(r->body, "queries") ? "queries" : "text_1";
}

static const char *second_field(const qn_api_request *r)
{
    if (r->route == QN_RERANK_ROUTE) return r->texts ? "texts" : "documents";
    return json_object_get(r->body, "documents") ? "documents" : "text_2";
}

static int finish(qn_api_request *r, qn_api_error *error)
{
    if (r->texts && r->documents)
        return qn_api_fail(error, 400, "invalid_value", "texts", "texts excludes documents");
    if (!r->query) return missing(error, first_field(r));
    if (!r->documents && !r->texts) return missing(error, second_field(r));
    if (r->route == QN_RERANK_ROUTE && !json_is_string(r->query))
        return qn_api_fail(error, 400, "invalid_type", "query", "query must be a string");
    if (r->returns_texts < 0) r->returns_texts = r->texts == NULL;
    return 0;
}

int qn_rerank_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                   qn_api_request *out, qn_api_error *error)
{
    int refused = qn_api_request_read_fields(text, n, qn_rerank_fields, route, limits, out, error);
    if (!refused) refused = finish(out, error);
    if (refused) return refused;
    return out->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, out->warnings.status);
}

/* How many texts a side has. */
static size_t count(const json_t *side)
{
    return json_is_array(side) ? json_array_size(side) : 1;
}

/* The i-th text of a side; of one text, that. A document may be {"text": ...}. NULL: it is none. */
static const json_t *text_at(const json_t *side, size_t i)
{
    const json_t *value =
        json_is_array(side) ? json_array_get(side, json_array_size(side) > 1 ? i : 0) : side;
    if (json_is_object(value)) value = json_object_get(value, "text");
    return json_is_string(value) ? value : NULL;
}

static int check_counts(const qn_api_request *r, size_t n_first, size_t n_second, qn_api_error *error)
{
    const char *first = first_field(r), *second = second_field(r);
    if (!n_first) return qn_api_fail(error, 400, "invalid_value", first, "%s has no texts", first);
    if (!n_second) return qn_api_fail(error, 400, "invalid_value", second, "%s has no texts", second);
    if (n_first > QN_RERANK_PAIRS_MAX || n_second > QN_RERANK_PAIRS_MAX)
        return qn_api_fail(error, 400, "invalid_value", second, "%s has %zu texts, at most %d are allowed",
                           second, n_first > n_second ? n_first : n_second, (int)QN_RERANK_PAIRS_MAX);
    if (n_first > 1 && n_first != n_second)
        return qn_api_fail(error, 400, "invalid_value", first, "%s has %zu texts, and %s has %zu", first,
                           n_first, second, n_second);
    return 0;
}

int qn_rerank_make_pairs(const qn_api_request *r, qn_pair **pairs, size_t *n, qn_api_error *error)
{
    const json_t *second = r->texts ? r->texts : r->documents;
    const size_t n_second = count(second);
    int refused = check_counts(r, count(r->query), n_second, error);
    qn_pair *made = refused ? NULL : qn_calloc(n_second, sizeof *made);
    if (refused) return refused;
    if (!made) return qn_api_fail_status(error, QN_E_NOMEM);
    for (size_t i = 0; i < n_second; i++) {
        const json_t *query = text_at(r->query, i), *document = text_at(second, i);
        if (!query || !document) {
            const char *field = query ? second_field(r) : first_field(r);
            qn_free(made);
            return qn_api_fail(error, 400, "invalid_type", field,
                               "%s must be a string, or an array of strings", field);
        }
        made[i] = (qn_pair){.query = json_string_value(query),
                            .query_bytes = json_string_length(query),
                            .document = json_string_value(document),
                            .document_bytes = json_string_length(document)};
    }
    *pairs = made;
    *n = n_second;
    return 0;
}
