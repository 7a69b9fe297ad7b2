/* What tests of whole models share: opening an engine under an instruction set, logits of a sequence however
 * it is cut into steps, greedy continuation, and the promise of the same bits. Whatever fails ends the
 * running test with the library's message. One thread at a time. */
#ifndef QUERN_TESTS_ENGINE_HELP_H
#define QUERN_TESTS_ENGINE_HELP_H

#include "engine/machine/engine.h"
#include "format/safetensors/safetensors.h"

/* Ends the running test with qn_last_error() unless status is QN_OK. */
void qn_test_ok(qn_status status);
/* The tensor whose name is fmt with i in it. */
const qn_tensor_view *qn_test_tensor(const qn_safetensors *st, const char *fmt, int i);
/* "high", "fast", "exact". */
const char *qn_test_precision_name(qn_precision precision);

/* Source, config and engine in one. A failure leaves nothing behind. */
qn_status qn_test_engine_try(const char *path, const qn_engine_options *o, qn_engine **out);
/* set: which instructions the engine uses, one of qn_kernels_names(); NULL: as the environment says. */
qn_engine *qn_test_engine(const char *path, const char *set, qn_engine_options o);
qn_sequence *qn_test_sequence(qn_engine *e);
int64_t qn_test_argmax(const float *x, int64_t n);
/* The logits [n, vocab_size] of a new sequence of ids, in steps of `piece` tokens (0: one step). */
void qn_test_logits(qn_engine *e, const int32_t *ids, int64_t n, int64_t piece, float *out);
/* Hashes [n] of the bits of each row of the logits of ids[0..n), fed to s in steps of `piece` tokens (0:
 * one). */
void qn_test_hashes(qn_engine *e, qn_sequence *s, const int32_t *ids, int64_t n, int64_t piece,
                    uint64_t *out);
/* Hash of the bits of the last token's logits of a new sequence of ids, fed in steps of `piece` tokens. */
uint64_t qn_test_last_hash(qn_engine *e, const int32_t *ids, int64_t n, int64_t piece);
/* The greedy continuation of ids[0..n): n_out tokens, one decode step each. */
void qn_test_greedy(qn_engine *e, const int32_t *ids, int64_t n, int32_t *out, int64_t n_out);

enum { QN_TEST_SEQUENCES = 17 };

/* The logits of 8 sequences of `longest` tokens and less must have the same bits alone and together, in
 * pieces of 1, 7, 64 and 512 tokens and whole, with 1, 2 and 3 threads, fed at once or token by token, and in
 * steps of 1 to QN_TEST_SEQUENCES sequences. */
typedef struct {
    const char *name, *path, *set; /* set as in qn_test_engine */
    qn_precision precision;
    int64_t longest;
    int32_t id_end; /* ids are drawn from [1, id_end) */
    int brief;      /* 1: a selection of these ways, for sets and types of which the code is shared */
    qn_kv_type kv_type;
} qn_test_bits;
void qn_test_same_bits(const qn_test_bits *b);

/* An engine as tests of adapters want it: exact, 64 positions, room for 8 sequences. set: the instruction set, or
 * NULL. */
qn_engine *qn_test_adapter_engine(const char *path, const char *set, int n_threads);
/* A hash of the bits of a sequence's logits with this adapter; "none": without one. */
uint64_t qn_test_adapter_hash(qn_engine *e, const char *adapter);

#endif
