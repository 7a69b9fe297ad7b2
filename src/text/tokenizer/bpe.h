/* Byte-pair merging of one word into token ids.
 *
 * Two ways to rank a merge: by a list of pairs (tokenizer.json, GGUF "gpt2"), or by the score of the token
 * that a pair would make (SentencePiece, GGUF "llama"). Always the best-ranked pair first, the leftmost among
 * equals; long words use a priority queue, so time is n log n on any input. The model is built by one owner,
 * then read-only: any thread, each with its own scratch. */
#ifndef QN_TEXT_TOKENIZER_BPE_H
#define QN_TEXT_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/tokenizer/vocab.h"

typedef struct qn_bpe qn_bpe;
typedef struct qn_bpe_scratch qn_bpe_scratch;

/* A growing list of token ids; the first failure sticks. Zeroed is empty. data is freed with qn_free. */
typedef struct {
    int32_t *data;
    size_t n, capacity;
    qn_status status;
} qn_id_list;
void qn_id_list_push(qn_id_list *l, int32_t id);

typedef struct {
    int32_t unk_id;    /* stands for characters without a token; -1: they are dropped */
    int byte_fallback; /* characters without a token become <0xNN> tokens, if all of these exist */
    int fuse_unk;      /* a run of unknown characters is one unk */
    int ignore_merges; /* a word that is a token is that token, whatever the merges say */
    int by_score; /* merges are ranked by token scores; else by the list. Tokens with QN_TOKEN_WHOLE are then
                          taken wherever they stand, and QN_TOKEN_UNUSED ones are undone at the end */
} qn_bpe_options;

/* vocab is borrowed and must be complete (flags too) before qn_bpe_finish. */
qn_status qn_bpe_new(const qn_vocab *vocab, const qn_bpe_options *options, size_t expected_merges,
                     qn_bpe **out);
void qn_bpe_free(qn_bpe *b);
/* Replaces all but by_score. Before qn_bpe_finish. */
void qn_bpe_set_options(qn_bpe *b, const qn_bpe_options *options);
/* rank: lower merges first. A pair given twice keeps the later rank. */
qn_status qn_bpe_add_merge(qn_bpe *b, int32_t left, int32_t right, int32_t merged, uint32_t rank);
/* Asks for the memory that adding this pair will touch. */
void qn_bpe_prefetch_merge(const qn_bpe *b, int32_t left, int32_t right);
/* scores [n] by token id, borrowed during the call; only with by_score. QN_E_FORMAT: a score that is not a
 * number. */
qn_status qn_bpe_set_scores(qn_bpe *b, const float *scores, size_t n);
/* Last step of building: fills the tables of single characters. */
qn_status qn_bpe_finish(qn_bpe *b);

qn_bpe_scratch *qn_bpe_scratch_new(void);
void qn_bpe_scratch_free(qn_bpe_scratch *s);
/* Appends the ids of word[0..n), valid UTF-8, to *ids. */
qn_status qn_bpe_encode(const qn_bpe *b, const char *word, size_t n, qn_bpe_scratch *s, qn_id_list *ids);

#endif
