/* What the files of qn_bench_run share: the run, its prompt, one generation from opening to end. One thread.
 */
#ifndef QN_API_BENCH_PARTS_H
#define QN_API_BENCH_PARTS_H

#include <quern/bench.h>

/* One run. o: with the defaults filled in; ids: the prompt of each sequence, one behind the other. */
typedef struct {
    qn_model *model;
    qn_bench_options o;
    int64_t n_vocab, context;
    int32_t *ids;
    int64_t n_salts; /* made so far */
    qn_bench_report *report;
} qn_bench;

/* Room for what qn_bench_salt writes. */
enum { QN_BENCH_SALT = 48 };

/* A cache_salt that nobody has used. */
const char *qn_bench_salt(qn_bench *b, char salt[QN_BENCH_SALT]);

/* The ids that a generation from a text would begin with. *ids: qn_buffer_free. */
qn_status qn_bench_encode(qn_bench *b, const char *text, int32_t **ids, int64_t *n_ids);

/* What one row answered. */
typedef struct {
    int32_t *ids; /* room for the most tokens that can come */
    int64_t n_ids;
} qn_bench_row;

/* Generates from rows to the end. answers: one for each row, or NULL. stats may be NULL. QN_E_CANCELLED when
 * the generation is cancelled. */
qn_status qn_bench_generate(qn_bench *b, const qn_ids *rows, int64_t n_rows, const qn_generate_options *o,
                            qn_bench_row *answers, qn_generation_stats *stats);

/* Adds a check that value is bound, or where `most` at most that. */
void qn_bench_check_add(qn_bench *b, const char *name, const char *rule, double value, double bound,
                        int most);
/* The share of ids that are equal, of as many as the longer one has. */
double qn_bench_equal(const int32_t *x, int64_t n_x, const int32_t *y, int64_t n_y);

/* The median, the least and the most of values, which are put in order. */
qn_bench_spread qn_bench_summary(double *values, int n);

/* The parts; each adds itself to the report's where it could be measured. */
qn_status qn_bench_speed(qn_bench *b);
qn_status qn_bench_prompt_cache(qn_bench *b);
qn_status qn_bench_state(qn_bench *b);
qn_status qn_bench_probes(qn_bench *b);
qn_status qn_bench_quality(qn_bench *b);

#endif
