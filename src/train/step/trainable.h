/* What is trained: low-rank factors (LoRA, with magnitudes DoRA) beside chosen matrices, or the weights
 * themselves. Invariant: arrays are sorted by name, the path that published files give them, and everything
 * that goes over all of them (norms, files, updates) goes in that order. Their numbers are f32, those of
 * factors bf16 where the options say so, in buffers of the device that the graph reads in place: who changes
 * them between runs changes the next run. */
#ifndef QN_TRAIN_STEP_TRAINABLE_H
#define QN_TRAIN_STEP_TRAINABLE_H

#include <quern/train.h>

#include "model/adapter/modules.h"
#include "model/forward/trained.h"
#include "train/step/base.h"

typedef struct {
    qn_train_method method;
    /* Of LORA and DORA. targets: names or patterns of modules, with commas between; a name fits the end of a
     * module's path behind a dot ("q_proj", "self_attn.q_proj"), one with '*' or '?' the whole path. NULL:
     * all linear layers of the decoder's layers but those that choose experts, and those of the experts. */
    const char *targets;
    int32_t rank;
    float alpha; /* the factor is alpha / rank; with rslora alpha / sqrt(rank) */
    int rslora;
    float dropout; /* of what the factors read, [0, 1); 0: none */
    qn_train_init init;
    uint64_t seed;
    int64_t layer_begin, layer_end; /* layers [begin, end); end 0: to the last */
    int bf16; /* A and B are kept in bf16, half the bytes; magnitudes in f32. Of LORA and DORA */
} qn_trainable_options;

typedef struct {
    char name[QN_TENSOR_NAME_MAX + 32];
    qn_shape shape;
    int64_t n; /* elements */
    qn_buffer *buffer;
    qn_array *array; /* f32, of the buffer's numbers; the scope's */
    qn_dtype dtype;  /* F32 or BF16 */
    /* The buffer's numbers: one of the two, the other is NULL. */
    float *data;
    uint16_t *halves;
    /* FULL: the weight that it stands for. */
    qn_weight_role role;
    int64_t layer;
} qn_trainable_array;

typedef struct {
    qn_trainable_options options; /* targets NULL: not kept */
    float scale;
    qn_module *modules; /* [n_modules] with factors */
    int64_t n_modules;
    qn_array **squares; /* DORA: [n_modules] squared lengths of the rows of a module's matrices; else NULL */
    qn_trainable_array *arrays; /* [n] */
    int64_t n, n_elements;
    qn_trained *trained; /* for the graph */
    /* Of dropout, [3], read in each run: a number for the run in the first two, and whether there is any in
     * the third. */
    qn_buffer *key_buffer;
    int32_t *key;
    qn_array *key_array; /* NULL: no dropout */
} qn_trainable;

/* Arrays with their first numbers, which depend on seed and names alone. scope: of base->device; it must
 * outlive *out's use in graphs. QN_E_ARG: a pattern that fits no module (message: which), an empty range of
 * layers, a rank outside 1 to QN_LORA_RANK_MAX. Zeroed on failure. */
qn_status qn_trainable_new(const qn_train_base *base, qn_scope *scope, const qn_trainable_options *options,
                           qn_trainable *out);
/* What a graph in s computes with if arrays[i] [n], of the shapes of t's own, stand for those: qn_trained_free.
 */
qn_status qn_trainable_bind(const qn_trainable *t, const qn_train_base *base, qn_scope *s,
                            qn_array *const *arrays, qn_trained **out);
/* Accepts a zeroed one. The scope's arrays live on. */
void qn_trainable_free(qn_trainable *t);
/* Array i as the public functions describe it. QN_E_NOT_FOUND: there are fewer. */
qn_status qn_trainable_describe(const qn_trainable *t, int64_t i, qn_train_array *out);
/* All numbers of an array as they lie, and their bytes. */
void *qn_trainable_numbers(const qn_trainable_array *a);
size_t qn_trainable_bytes(const qn_trainable_array *a);
/* Numbers [begin, begin + n) of an array, and others in their place: in bf16 the nearest. */
void qn_trainable_read(const qn_trainable_array *a, int64_t begin, int64_t n, float *out);
void qn_trainable_write(qn_trainable_array *a, int64_t begin, int64_t n, const float *numbers);
/* In bf16 one of the two neighbours, the nearer one more likely, so that steps shorter than half the way to
 * the next are not lost: they add up on average. Which one depends on key and the number's index alone. */
void qn_trainable_write_drawn(qn_trainable_array *a, int64_t begin, int64_t n, const float *numbers,
                              uint64_t key);
/* NULL: none has the name. */
qn_trainable_array *qn_trainable_find(const qn_trainable *t, const char *name);

#endif
