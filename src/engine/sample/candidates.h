/* The tokens that a chain of sampling steps has left of a vocabulary, with their logits as they are now.
 *
 * Every filter keeps a front of the falling order (the larger logit first, the lower id first on a tie), so
 * what is left is known by a cut: the last logit and id that stay. Candidates have two forms:
 * - whole: the caller's logits, read in place block by block; a block that the penalty or a cut changes is
 *   copied to the stack and changed there. Nothing is as long as the vocabulary.
 * - listed: the few that matter in arrays. A filter lists what the steps to come can leave as soon as that
 *   is no more than a list holds.
 * Steps that keep no front edit: candidates that are whole are copied to the caller's space first.
 * Both keep the same tokens. Weights are exp(scale * (logit - the best's)) of the machine's instruction set.
 * Nothing is allocated after qn_candidates_new. One thread at a time. */
#ifndef QN_ENGINE_SAMPLE_CANDIDATES_H
#define QN_ENGINE_SAMPLE_CANDIDATES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

typedef struct qn_candidates qn_candidates;

/* What the step at hand and those after it, up to the next penalty or top_p, will leave at most: tokens
 * whose logit is at most `distance` below the best's, and the first `count` with those that equal the last.
 * INFINITY and INT64_MAX: no such bound. */
typedef struct {
    double distance;
    int64_t count;
} qn_candidates_rest;

/* kernels: the device's passes over logits. with_history: tokens can be marked. only_best: nothing but begin,
 * penalise and best will be called. */
qn_status qn_candidates_new(const qn_logits_kernels *kernels, int64_t n_vocab, int with_history,
                            int only_best, qn_candidates **out);
void qn_candidates_free(qn_candidates *c);
/* The most bytes that one holds. */
size_t qn_candidates_bytes(int64_t n_vocab);
/* Adds a token of the vocabulary to the history, which the penalty is for; nothing without with_history. */
void qn_candidates_mark(qn_candidates *c, int32_t id);
/* Takes it out. */
void qn_candidates_unmark(qn_candidates *c, int32_t id);
/* Sets where the editing functions copy whole candidates: [n_vocab], borrowed. The logits of begin may lie
 * there. */
void qn_candidates_set_space(qn_candidates *c, float *space);

/* All tokens; logits [n_vocab] are borrowed until the next begin, -inf is no candidate. QN_E_INTERNAL: one is
 * NaN or +inf, or none is finite; from here on the functions below may be called. */
qn_status qn_candidates_begin(qn_candidates *c, const float *logits);
/* Logits of marked tokens: times penalty if negative, else divided by it. Once at most after begin. Status as
 * begin. */
qn_status qn_candidates_penalise(qn_candidates *c, float penalty);
/* What logits are multiplied with from here on; 1 at the beginning, finite. */
void qn_candidates_set_scale(qn_candidates *c, float scale);
/* Filters; see sampler.h. log_p: the logarithm of min_p, at most 0. */
void qn_candidates_keep_top_p(qn_candidates *c, float p, qn_candidates_rest rest);
void qn_candidates_keep_min_p(qn_candidates *c, float log_p, qn_candidates_rest rest);
void qn_candidates_keep_top_k(qn_candidates *c, int64_t k, qn_candidates_rest rest);

/* Editing; each needs a space. Takes amount[i], finite, off the logit of ids[i]; ids rise strictly. Status as
 * begin. */
qn_status qn_candidates_subtract(qn_candidates *c, const int32_t *ids, const float *amount, int64_t n);
/* Keeps logits in [low, high]; one at least lies there. */
void qn_candidates_keep_between(qn_candidates *c, float low, float high);
/* Takes out all candidates before (logit, id) in falling order. */
void qn_candidates_keep_from(qn_candidates *c, float logit, int32_t id);

/* Looking. The candidates as they are now come in parts of at most QN_ROW_BLOCK; in a part -inf is none. */
typedef struct {
    const float *logit; /* [n] */
    const int32_t *id;  /* [n], or NULL: first and those that follow it */
    int32_t first;
    int64_t n;
} qn_candidates_part;
int64_t qn_candidates_count_parts(const qn_candidates *c);
/* buffer [QN_ROW_BLOCK] is where logits may lie. */
qn_candidates_part qn_candidates_get_part(const qn_candidates *c, int64_t i, float *buffer);
/* The largest logit, and the factor of all logits. */
float qn_candidates_best_logit(const qn_candidates *c);
float qn_candidates_scale(const qn_candidates *c);
/* weight[i] = exp(scale * (logit[i] - the best's)), i in [0, n). */
void qn_candidates_weigh(const qn_candidates *c, const float *logit, int64_t n, float *weight);
/* The sum of all weights. */
double qn_candidates_sum(qn_candidates *c);
/* The logit of a candidate as it is now; -inf if `id` is none. */
float qn_candidates_logit(const qn_candidates *c, int32_t id);
/* Lists the candidates whose logit is at least `least`, which takes the others out, and returns 1. 0: they are
 * too many, or listed already, and nothing is changed. */
int qn_candidates_list(qn_candidates *c, double least);
/* All are back: list took out too many. */
void qn_candidates_unlist(qn_candidates *c);

/* The first in falling order; whole candidates only. */
int32_t qn_candidates_best(const qn_candidates *c);
/* The one at `unit`, in [0, 1), of the weight of all. Whole: in order of ids. */
int32_t qn_candidates_pick(qn_candidates *c, double unit);
/* Probabilities [n_vocab], exactly 0 for what is no candidate. */
void qn_candidates_distribution(qn_candidates *c, float *probabilities);

#endif
