/* Random requests to a model of fixtures, and what they gave, for tests that ask whether company changes
 * answers. A request is a function of its seed and of the requests before it: it may begin with a prefix that
 * others share, or go on from the answer of an earlier one. */
#ifndef QUERN_TESTS_REQUESTS_H
#define QUERN_TESTS_REQUESTS_H

#include <quern/quern.h>

#include "base/buf.h"

enum {
    QN_TEST_REQUEST_ROWS = 3,
    QN_TEST_PROMPT_MAX = 300,
    QN_TEST_ANSWER_MAX = 64,
    QN_TEST_ALLOWED = 12,
    QN_TEST_TOP_MAX = 4,
    QN_TEST_TEXT_MAX = 4096
};

/* The model that all requests of one run go to. */
typedef struct {
    const char *path;
    qn_precision precision;
    qn_kv_type kv_type;
    int64_t context_size;
    int32_t id_end;          /* ids of prompts are drawn from [1, id_end) */
    const char *adapters[2]; /* folders, loaded as "one" and "two" */
} qn_test_world;

typedef struct {
    int64_t n_rows;
    int32_t ids[QN_TEST_REQUEST_ROWS][QN_TEST_PROMPT_MAX];
    qn_ids rows[QN_TEST_REQUEST_ROWS];
    const char *row_adapters[QN_TEST_REQUEST_ROWS];
    qn_logit_bias bias[2];
    int32_t bad[2], allowed[QN_TEST_ALLOWED];
    qn_ids bad_word;
    const char *stop;
    qn_generate_options o;
    int polls; /* it is read without waiting, where the model has a thread of its own */
    /* The caller ends it after so many tokens of all rows; negative: never. */
    int64_t end_after;
    int close; /* by closing, not by cancelling */
} qn_test_request;

/* Of one row. */
typedef struct {
    int64_t n;
    int32_t ids[QN_TEST_ANSWER_MAX];
    float logprobs[QN_TEST_ANSWER_MAX];
    qn_top_logprob top[QN_TEST_ANSWER_MAX][QN_TEST_TOP_MAX];
    int32_t n_top[QN_TEST_ANSWER_MAX];
    uint64_t prompt_sum;         /* of the figures of its prompt; 0: not asked for, or ended before */
    char text[QN_TEST_TEXT_MAX]; /* no block, so that allocations may fail meanwhile */
    size_t text_bytes;
    qn_end end; /* QN_END_NONE: closed before it came */
    qn_status status;
} qn_test_row;
typedef struct {
    qn_test_row rows[QN_TEST_REQUEST_ROWS];
    int is_whole;     /* nobody ended it from outside */
    int64_t n_cached; /* tokens of the prompts that were not computed */
} qn_test_answer;

/* Random numbers in their order. */
typedef struct {
    uint64_t seed, n;
} qn_test_draws;
/* Uniform in [0, n). */
int64_t qn_test_draw(qn_test_draws *d, int64_t n);

/* Opens the world's model; what o says of files, precision and context is replaced. */
qn_status qn_test_world_open(const qn_test_world *w, const qn_model_options *o, qn_model **out);
/* Writes a request. before[0..n_before) with their answers: some of which it may go on from. The request must
 * not be moved. */
void qn_test_request_make(const qn_test_world *w, uint64_t seed, const qn_test_request *before,
                          const qn_test_answer *answers, int64_t n_before, qn_test_request *out);
/* How a request is run. */
enum {
    QN_TEST_BACKGROUND = 1, /* the model has a thread of its own */
    QN_TEST_MAY_FAIL = 2    /* a call or a row may run out of memory */
};
/* Opens, runs and closes a generation. 0: a call failed that must not (`why` says how). */
int qn_test_request_run(qn_model *model, const qn_test_request *r, unsigned how, qn_test_answer *out,
                        qn_buf *why);
/* Whether `got` is what is expected, bit by bit, as far as it goes where somebody ended it. */
int qn_test_answer_agrees(const qn_test_request *r, const qn_test_answer *expected, const qn_test_answer *got,
                          qn_buf *why);

#endif
