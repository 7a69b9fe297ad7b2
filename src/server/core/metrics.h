/* What /metrics tells, in Prometheus' text format. Loop thread only. */
#ifndef QN_SERVER_CORE_METRICS_H
#define QN_SERVER_CORE_METRICS_H

#include <stdint.h>

#include "base/buf.h"

enum { QN_HISTOGRAM_BUCKETS = 20, QN_METRICS_STATUSES = 256 };

/* Seconds; bucket i counts what took at most 0.5 ms * 2^i. */
typedef struct {
    int64_t counts[QN_HISTOGRAM_BUCKETS + 1]; /* the last: above all */
    double sum_s;
} qn_histogram;

/* What a rate was last computed from. */
typedef struct {
    double tokens, seconds;
} qn_rate;

typedef struct {
    struct {
        const char *route; /* static storage */
        int status;
        int64_t n;
    } answers[QN_METRICS_STATUSES];
    size_t n_answers;
    int64_t n_gone;                            /* clients that went before they had their answer */
    int64_t n_look_aheads;                     /* that were computed to their end */
    int64_t n_batch_answers, n_batch_failures; /* lines of batches that are stored */
    int64_t n_prompt_tokens, n_cached_tokens, n_generated_tokens;
    int64_t n_tokens_max;       /* of a sequence, with its prompt */
    double prefill_s, decode_s; /* of all sequences */
    qn_rate scraped_prompts, scraped_tokens;
    qn_histogram first_token, between_tokens, queue, whole;
} qn_server_metrics;

void qn_histogram_add(qn_histogram *h, double seconds);
void qn_histogram_write(const qn_histogram *h, const char *name, const char *help, qn_buf *out);
/* The same of counts made elsewhere: bucket i up to first_s * 2^i, the last of n what is above all. */
void qn_metrics_buckets(qn_buf *out, const char *name, const char *help, const int64_t *counts, int n,
                        double first_s, double sum_s);
void qn_metrics_count(qn_server_metrics *m, const char *route, int status);
/* One line of a family, and its head. label: "status=\"200\"", or NULL. */
void qn_metrics_head(qn_buf *out, const char *name, const char *type, const char *help);
void qn_metrics_value(qn_buf *out, const char *name, const char *label, double value);

#endif
