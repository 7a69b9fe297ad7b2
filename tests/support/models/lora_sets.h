/* Training on the sets of fixtures/lora, which peft and torch have done before, and slopes of losses through
 * all layers of a model: on any device. Failures end the running test. One thread at a time. */
#ifndef QUERN_TESTS_LORA_SETS_H
#define QUERN_TESTS_LORA_SETS_H

#include <jansson.h>

#include "format/safetensors/safetensors.h"
#include "train/step/trainer.h"

/* A file of a set, in a buffer that the eighth next fixture reuses. The test is left out when it is missing.
 */
const char *qn_lora_path(const char *set, const char *file);

/* One folder of fixtures/lora with a trainer on its base. */
typedef struct {
    const char *name;
    json_t *expected, *run;
    qn_safetensors *tensors;
    qn_train_base base;
    qn_trainer *trainer;
    qn_train_batch batch;
    int32_t *row_begin, *rows, *targets;
    char *names;
} qn_lora_subject;

/* device as for qn_train_base_open. The test is left out when a file of the set is missing. */
void qn_lora_open(qn_lora_subject *s, const char *name, const char *device, int n_threads);
void qn_lora_close(qn_lora_subject *s);
/* As peft and torch trained the set. */
qn_trainer_options qn_lora_options(qn_lora_subject *s, int64_t max_rows, int64_t max_sequences);
/* The mean loss of its batch. */
double qn_lora_loss(qn_lora_subject *s);

/* How far losses and weights may be off, and gradients as a share of their largest number. */
typedef struct {
    const char *device;
    double loss, gradient, weight;
} qn_lora_bounds;
/* Losses, gradients, ten steps of AdamW and the weights after them. */
void qn_lora_check_set(const char *name, const qn_lora_bounds *bounds);

/* The loss changes along a direction as the gradient says; ending: of the arrays' names. */
void qn_lora_check_direction(qn_lora_subject *s, const char *what, const char *ending, double step);
/* Sequences of 7, 40 and 2 tokens of the vocabulary, every one but the first to be learned. */
void qn_lora_make_batch(qn_lora_subject *s);
/* Gradients through all layers of models/NAME are slopes of the loss: of factors A and B, both of which begin
 * with numbers, and of the whole model. */
void qn_lora_check_kind(const char *name);
/* The same gradients on another device are off by this share of each array's largest at most. */
void qn_lora_compare_kind(const char *name, const char *device, double share);

#endif
