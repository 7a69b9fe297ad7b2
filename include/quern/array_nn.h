/* Losses and optimisers over arrays.
 *
 * A loss is a lazy function of a prediction and of what it should have been; its gradient is qn_vjp's. An
 * optimiser's step is a lazy function too: it gives the new parameters and the new state, and changes
 * nothing. As everywhere among arrays, NULL in gives NULL out, and the scope keeps the first error.
 *
 *     qn_array *loss = qn_loss_mse(s, prediction, target, NULL);
 *     qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
 *     for (int i = 0; i < n; i++) w[i] = qn_optimizer_update(s, &o, step, w[i], gradient[i], &state[i]);
 *
 * Narrow types (f16, bf16) are computed in f32; losses are f32, and parameters come back in their own type.
 */
#ifndef QUERN_ARRAY_NN_H
#define QUERN_ARRAY_NN_H

#include <quern/array.h>
#include <quern/train.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- losses ------------------------------------------------------------------------------------------- */

/* What becomes of the loss of each element (of each row, where a row has one): MEAN, a number: sum(weight *
 * loss) / sum(weight), NaN where all weights are 0; SUM, a number: sum(weight * loss); BATCH_MEAN: that sum
 * over the size of the first dimension; EACH: weight * loss, not summed. Without weights they are 1. */
typedef enum { QN_LOSS_MEAN, QN_LOSS_SUM, QN_LOSS_BATCH_MEAN, QN_LOSS_EACH } qn_loss_reduction;

/* All zero: the mean. */
typedef struct {
    qn_loss_reduction reduction;
    /* Any numbers (a mask: 0 and 1), broadcast to the losses; NULL: 1. Nothing is differentiated by it. */
    qn_array *weight;
} qn_loss_options;

typedef struct {
    qn_loss_reduction reduction;
    qn_array *weight;       /* of each row, or a mask; NULL: 1 */
    qn_array *class_weight; /* [classes]: multiplies a row's weight by that of its target; NULL: 1 */
    double label_smoothing; /* e in [0, 1): the target's share is 1 - e, and all classes share e */
    int64_t ignored;        /* rows with this target count nothing */
    int has_ignored;
} qn_class_options;

/* -log softmax(logits)[target], over the last dimension (torch.nn.functional.cross_entropy). logits [..,
 * classes]; targets [..] of integers, or [.., classes] of floats that are the target's distribution (without
 * class_weight then). A row whose target is no class has the loss NaN, unless it is ignored or weighs 0. With
 * smoothing and class weights the shares of all classes are weighed, as torch does. The losses have the
 * targets' shape. options NULL: all zero. */
QN_API qn_array *qn_loss_cross_entropy(qn_scope *s, qn_array *logits, qn_array *targets,
                                       const qn_class_options *options);
/* The same of logarithms of probabilities: -log_probs[target]. */
QN_API qn_array *qn_loss_nll(qn_scope *s, qn_array *log_probs, qn_array *targets,
                             const qn_class_options *options);

/* (x - target)^2 */
QN_API qn_array *qn_loss_mse(qn_scope *s, qn_array *x, qn_array *target, const qn_loss_options *options);
/* |x - target|, whose slope at 0 is 0 */
QN_API qn_array *qn_loss_l1(qn_scope *s, qn_array *x, qn_array *target, const qn_loss_options *options);
/* With d = |x - target|: d^2 / 2 up to delta, delta (d - delta / 2) beyond (Huber 1964). delta > 0. */
QN_API qn_array *qn_loss_huber(qn_scope *s, qn_array *x, qn_array *target, double delta,
                               const qn_loss_options *options);
/* That over beta: d^2 / (2 beta) up to beta, d - beta / 2 beyond (Girshick 2015). beta 0: l1. */
QN_API qn_array *qn_loss_smooth_l1(qn_scope *s, qn_array *x, qn_array *target, double beta,
                                   const qn_loss_options *options);
/* -(t log p + (1 - t) log(1 - p)) with p = sigmoid(x), from x without overflow: softplus(x) - t x. positive
 * multiplies the part of t (1: none). */
QN_API qn_array *qn_loss_binary_cross_entropy(qn_scope *s, qn_array *logits, qn_array *target,
                                              double positive, const qn_loss_options *options);
/* The same of probabilities; logarithms are at least -100, as torch has it. */
QN_API qn_array *qn_loss_binary_probabilities(qn_scope *s, qn_array *p, qn_array *target,
                                              const qn_loss_options *options);
/* target (log target - log_probs), the elements of the Kullback-Leibler divergence; is_log: the target is
 * given by its logarithm. Where the target is 0 the element is 0. */
QN_API qn_array *qn_loss_kl_div(qn_scope *s, qn_array *log_probs, qn_array *target, int is_log,
                                const qn_loss_options *options);
/* 1 - a . b / max(|a| |b|, eps) over the last dimension. eps 0: 1e-8. */
QN_API qn_array *qn_loss_cosine(qn_scope *s, qn_array *a, qn_array *b, double eps,
                                const qn_loss_options *options);

/* ---- optimisers --------------------------------------------------------------------------------------- */

/* ADAMW (Loshchilov, Hutter 2017): m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, w = w (1 -
 * rate weight_decay) - rate m' / (sqrt(v') + eps), where m' and v' are m / (1 - beta1^step) and v / (1 -
 * beta2^step), or m and v themselves with no_bias_correction. Adam is that without decay. SGD: m = momentum m
 * + g, w = w (1 - rate weight_decay) - rate m. Zeros mean zero here: begin with qn_optimizer_defaults. */
typedef struct {
    qn_optimizer_kind kind;
    double rate, beta1, beta2, eps, weight_decay, momentum;
    int no_bias_correction;
} qn_optimizer_options;

/* ADAMW: rate 1e-5, betas 0.9 and 0.999, eps 1e-8, decay 0.01, with bias correction. SGD: rate 1e-5. */
QN_API qn_optimizer_options qn_optimizer_defaults(qn_optimizer_kind kind);

/* What an optimiser remembers of one array, in f32; all NULL before the first step. The arrays belong to the
 * scope: what is to live on is kept (qn_keep). */
typedef struct {
    qn_array *m, *v; /* AdamW: means of gradients and of their squares; SGD: m, the momentum */
} qn_optimizer_state;

/* The parameters after step `step` (the first is 1) with gradient g of w's shape; *state goes on to what they
 * are after it, and is left alone on failure. The arithmetic is that of `quern train`
 * (qn_optimizer_options). */
QN_API qn_array *qn_optimizer_update(qn_scope *s, const qn_optimizer_options *o, int64_t step, qn_array *w,
                                     qn_array *g, qn_optimizer_state *state);

/* Gradients g[0..n) times min(1, max_norm / (norm + 1e-6)), where norm is the root of the sum of all their
 * squares, into out[0..n), which may be g; NULL among them stays NULL. *norm (may be NULL) is that number. */
QN_API void qn_clip_gradients(qn_scope *s, int n, qn_array *const *g, double max_norm, qn_array **out,
                              qn_array **norm);

#ifdef __cplusplus
}
#endif
#endif
