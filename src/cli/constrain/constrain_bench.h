/* `quern constrain bench`: schemas with instances against the masks of a vocabulary, on one thread. */
#ifndef QN_CLI_CONSTRAIN_CONSTRAIN_BENCH_H
#define QN_CLI_CONSTRAIN_CONSTRAIN_BENCH_H

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

typedef struct {
    int json;  /* print one JSON object */
    int names; /* name each schema that does not pass, on standard error */
} qn_constrain_bench_options;

/* Each line of the file (gzip or plain) is {"name", "schema", "tests": [{"valid", "data"}]}. Prints the result. */
qn_status qn_constrain_bench(const char *path, const qn_tokenizer *t, const qn_constrain_bench_options *o);

#endif
