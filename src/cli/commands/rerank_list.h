/* Queries with their documents, as rerank reads them: a JSON object a line. */
#ifndef QN_CLI_COMMANDS_RERANK_LIST_H
#define QN_CLI_COMMANDS_RERANK_LIST_H

#include <jansson.h>
#include <quern/rerank.h>

#include "base/buf.h"

/* {"query":TEXT,"documents":[TEXT,...]}, or {"ids":[[...],...],"types":[[...],...]}, whose types may be missing. */
typedef struct {
    qn_pair *pairs; /* [n], in the order of the documents */
    size_t n;
    json_t *json; /* owns the texts */
    int32_t *ids; /* ids and types of all pairs */
    int64_t line; /* from 1 on */
} qn_rerank_line;

typedef struct {
    const char *name; /* of the file */
    qn_rerank_line *lines;
    size_t n;
} qn_rerank_list;

/* Reads all lines of text[0..n_bytes); an empty line is none. QN_E_FORMAT names file, line and field; QN_E_ARG: there
 * are none. name lives as long as the list, *out needs qn_rerank_list_free. */
qn_status qn_rerank_list_read(const char *name, const char *text, size_t n_bytes, qn_rerank_list *out);
void qn_rerank_list_free(qn_rerank_list *list);

#endif
