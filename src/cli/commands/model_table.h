/* The table of models that `models` and `list` print, line by line as they are found, or its JSON. One thread. */
#ifndef QN_CLI_COMMANDS_MODEL_TABLE_H
#define QN_CLI_COMMANDS_MODEL_TABLE_H

#include <quern/discover.h>

#include "base/buf.h"

typedef struct {
    int json;
    int64_t n_models, n_unusable, n_problems;
    qn_buf out;      /* JSON so far */
    qn_buf problems; /* JSON of the folders that could not be looked into */
} qn_model_table;

/* path: where was looked, for the JSON. */
void qn_model_table_begin(qn_model_table *t, int json, const char *path);
/* name NULL: the table shows the path, the JSON the name that was found. */
qn_status qn_model_table_put(qn_model_table *t, const qn_discovery *d, const char *name);
qn_status qn_model_table_finish(qn_model_table *t, const char *path);
void qn_model_table_free(qn_model_table *t);

#endif
