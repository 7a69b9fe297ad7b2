/* Unigram (SentencePiece, XLM-RoBERTa, T5): the cover of a text by tokens whose scores add up to the most.
 *
 * Two libraries define it, with small differences: tokenizers adds in double precision; SentencePiece in
 * single precision, and takes user-defined pieces (QN_TOKEN_WHOLE) wherever they stand. A character that no
 * token covers alone counts as unk, ten below the lowest score. Built by one owner, then read-only: any
 * thread, each with its own scratch. */
#ifndef QN_TEXT_TOKENIZER_MODEL_UNIGRAM_H
#define QN_TEXT_TOKENIZER_MODEL_UNIGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/vocab.h"

typedef struct qn_unigram qn_unigram;

typedef struct {
    int32_t unk_id;    /* -1: text that needs it is a failure */
    int byte_fallback; /* unknown text becomes <0xNN> tokens, if all of these exist */
    int single;        /* as SentencePiece does it; else as tokenizers does */
    double min_score;  /* what unk lies ten below */
} qn_unigram_options;

/* vocab is borrowed and must be complete (flags too) before qn_unigram_finish. scores: [vocab's ids], owned by
 * the model on success. */
qn_status qn_unigram_new(const qn_vocab *vocab, const qn_unigram_options *options, double *scores,
                         qn_unigram **out);
void qn_unigram_free(qn_unigram *u);
/* Last step of building. Hidden and unused tokens never come of text. */
qn_status qn_unigram_finish(qn_unigram *u);

/* Zeroed is empty. */
typedef struct {
    struct qn_unigram_node *nodes;
    size_t capacity;
} qn_unigram_scratch;
void qn_unigram_scratch_free(qn_unigram_scratch *s);
/* Appends the ids of text[0..n), valid UTF-8, to *ids. QN_E_FORMAT: it needs an unk that is not there.
 * QN_E_UNSUPPORTED: tokens begin so much alike that the work would grow by the square of the text. */
qn_status qn_unigram_encode(const qn_unigram *u, const char *text, size_t n, qn_unigram_scratch *s,
                            qn_id_list *ids);

#endif
