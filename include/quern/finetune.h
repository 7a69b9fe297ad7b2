/* Fine-tuning by hand: an open model as a differentiable function of arrays.
 *
 * quern/train.h trains on a data set with one loss. Here the caller writes the loss: cross-entropy, distillation,
 * preferences (DPO), anything that can be built of the logits, the hidden states or the losses of tokens. The
 * model's weights are shared with the open model, which goes on answering requests meanwhile.
 *
 *     qn_finetune_open(model, &(qn_finetune_options){.rank = 8}, &f);
 *     while (...) {
 *         qn_scope *s = qn_scope_inner(qn_finetune_scope(f));
 *         qn_array *logits = qn_finetune_forward(f, s, NULL, ids, NULL);        [N, L, vocab_size]
 *         qn_array *loss = my_loss(s, logits);                                  one number
 *         qn_finetune_step(f, s, loss, &optimizer, 1, &report);
 *         qn_scope_close(s);
 *     }
 *     qn_finetune_save(f, "my-adapter", QN_ADAPTER_PEFT);
 *     qn_finetune_close(f);
 *
 * What is trained are arrays, sorted by name: A and B of each adapted matrix (and magnitudes), or the weights
 * themselves. qn_vjp differentiates by them as by any array.
 *
 * Precision. The forward pass is the engine's: with QN_PRECISION_EXACT the logits equal those of qn_model_logits
 * bit for bit if the model was opened with it, too. `high` and `fast` use the same products with the weights, but
 * keys and values are f32 here, while the engine rounds them to kv_type: with kv_type QN_KV_F32 the bits are the
 * same again.
 *
 * One thread at a time for a qn_finetune and its scopes; others may use the model at the same time. */
#ifndef QUERN_FINETUNE_H
#define QUERN_FINETUNE_H

#include <quern/array_nn.h>
#include <quern/model.h>
#include <quern/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zero or NULL: the default, in brackets. Fields that qn_train_options has, too, mean the same there. */
typedef struct {
    qn_train_method method; /* [QN_TRAIN_LORA]; QN_TRAIN_FULL: f32 copies of all weights are trained */
    const char *targets; /* modules that get factors [all linear layers but routers, indexes and experts] */
    int32_t rank;        /* [8] */
    float alpha;         /* [16] */
    int rslora;
    qn_train_init init;             /* how A begins; B is zero, so that nothing changes at first */
    int bf16_adapter;               /* factors are kept in bf16, and computed with in f32 */
    int64_t layer_begin, layer_end; /* layers [begin, end) [all] */
    const char *start_path;    /* an adapter to begin with; it must have the same modules and rank [none] */
    uint64_t seed;             /* of the first numbers */
    int checkpoint_layers;     /* layers are computed again for their gradients: less memory, the same bits */
    qn_precision precision;    /* of products with the model's weights [QN_PRECISION_HIGH] */
    int32_t n_threads;         /* [as many as the model has] */
    size_t memory_limit_bytes; /* of arrays and programs, beside what the model holds [none] */
} qn_finetune_options;

typedef struct qn_finetune qn_finetune;

/* The model must be of the backend native on the CPU; qn_model_close does nothing as long as *out is open.
 * QN_E_UNSUPPORTED: another backend or device; QN_E_ARG: options that cannot work (message: which). */
QN_API qn_status qn_finetune_open(qn_model *model, const qn_finetune_options *options, qn_finetune **out);
/* After its inner scopes. What was not saved is lost. NULL is accepted. */
QN_API void qn_finetune_close(qn_finetune *f);

/* The scope whose device all arrays are of. It lives as long as f; steps should use inner scopes. */
QN_API qn_scope *qn_finetune_scope(qn_finetune *f);

/* ---- what is trained ---------------------------------------------------------------------------------- */

/* Number of trained arrays. */
QN_API int64_t qn_finetune_count(const qn_finetune *f);
/* Name and shape of array i in [0, count). QN_E_NOT_FOUND: there are fewer. */
QN_API qn_status qn_finetune_get_array(const qn_finetune *f, int64_t i, qn_train_array *out);
/* Array i as f32, to differentiate by. It lives as long as f, and has the numbers of the moment at which a
 * graph that reads it is computed. NULL: there are fewer. */
QN_API qn_array *qn_finetune_array(const qn_finetune *f, int64_t i);
/* New numbers for the trained arrays: values[i] (NULL: as it is) of the shape of array i, computed if need be,
 * in scope s. All or none. QN_E_ARG: another shape, or a number that is not finite (message: which array). */
QN_API qn_status qn_finetune_set(qn_finetune *f, qn_scope *s, qn_array *const *values);

/* ---- the function ------------------------------------------------------------------------------------- */

/* All zero: a row sees itself and the rows before it. */
typedef struct {
    /* [N, 1, L, L] f32, 0 or -INFINITY, added to the scores in place of the causal order: row q of a sequence
     * sees row k where mask[n, 0, q, k] is 0. A layer with a sliding window still sees no further back than it.
     * The scores are held as a whole. QN_E_UNSUPPORTED: the model has recurrent layers. */
    qn_array *mask;
    int without_trained; /* 1: the model as it was opened, such as for the reference of DPO */
} qn_forward_options;

/* Logits [N, L, vocab_size] of ids [N, L] (integers; positions are 0 to L - 1 in each sequence), as a lazy
 * array. arrays [count] stand for the trained ones, such as the inputs of a function (qn_value_and_grad); NULL:
 * f's own. Shorter sequences are padded at their end with any id: no row sees what follows it. An id outside
 * the vocabulary is an error of the scope if ids are data; of ids that are computed later the nearest id is
 * taken. */
QN_API qn_array *qn_finetune_forward(qn_finetune *f, qn_scope *s, qn_array *const *arrays, qn_array *ids,
                                     const qn_forward_options *options);
/* The same without the head: hidden states after the final norm, [N, L, hidden_size]. */
QN_API qn_array *qn_finetune_hidden(qn_finetune *f, qn_scope *s, qn_array *const *arrays, qn_array *ids,
                                    const qn_forward_options *options);
/* -log of the probability of each target, [N, L], targets [N, L] of integers; 0 where the target is negative.
 * Logits are not held whole. */
QN_API qn_array *qn_finetune_losses(qn_finetune *f, qn_scope *s, qn_array *const *arrays, qn_array *ids,
                                    qn_array *targets, const qn_forward_options *options);

/* ---- steps -------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t step;     /* the first is 1 */
    double loss;      /* before the step */
    double grad_norm; /* before it was cut */
} qn_finetune_report;

/* Differentiates loss, an array of one number built in s, by all trained arrays, and changes them by one step of
 * an optimiser whose state f keeps (the kind must stay the same). clip_norm > 0: the gradient's length is cut to
 * it. report may be NULL. QN_E_DEVICE: loss or gradient is not finite (message: where), and nothing changed;
 * QN_E_ARG: the loss depends on no trained array. Arrays that it does not depend on stay as they are. */
QN_API qn_status qn_finetune_step(qn_finetune *f, qn_scope *s, qn_array *loss, const qn_optimizer_options *o,
                                  double clip_norm, qn_finetune_report *report);

/* Writes what is trained into folder path: an adapter, or with QN_TRAIN_FULL the model, each tensor in the
 * type that it had (of a quantised model QN_E_ARG). Whole or not at all. */
QN_API qn_status qn_finetune_save(qn_finetune *f, const char *path, qn_adapter_layout layout);

#ifdef __cplusplus
}
#endif
#endif
