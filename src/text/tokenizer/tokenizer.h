/* The tokenizer: text to token ids and back, exactly as the file that describes it says.
 *
 * A tokenizer.json's normalizer, pre-tokenizer, model (BPE, WordPiece, Unigram), post-processor and decoder are executed as
 * they are; a component that is not known is refused by its name. A GGUF brings vocabulary, merges or scores and
 * the name of its pre-tokenizer.
 *
 * Special tokens are tokenizer.json's `special: true` and GGUF's control and unknown types. They are
 * recognised in text only where the caller says so, byte by byte if need be (segments); there is no other way
 * for text to become one. Other added tokens (GGUF: user-defined) are always recognised.
 *
 * Text is UTF-8. Where it is not, each maximal invalid part counts as one U+FFFD.
 * A tokenizer is made by one owner and then immutable: any thread may encode and decode. A stream belongs to
 * one thread. */
#ifndef QN_TEXT_TOKENIZER_TOKENIZER_H
#define QN_TEXT_TOKENIZER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "format/gguf/gguf.h"

typedef struct qn_tokenizer qn_tokenizer;

/* Longest text of one call. */
enum { QN_TOKENIZER_TEXT_MAX = 1 << 30 };

typedef struct {
    /* GGUF only: split expressions that stand for its tokenizer.ggml.pre (for a name that is not known);
     * NULL: by name. */
    const char *const *pre_regexes;
    size_t n_pre_regexes;
} qn_tokenizer_options;

/* text is a tokenizer.json, needed during the call only; what names it in messages. QN_E_FORMAT,
 * QN_E_UNSUPPORTED, QN_E_NOMEM. */
qn_status qn_tokenizer_from_json(const char *what, const char *text, size_t n, qn_tokenizer **out);
/* The same with the tokens that the files beside it name (named_tokens.h); NULL: none. */
typedef struct qn_named_tokens qn_named_tokens;
qn_status qn_tokenizer_from_json_named(const char *what, const char *text, size_t n,
                                       const qn_named_tokens *named, qn_tokenizer **out);
/* options may be NULL. g is needed during the call only. QN_E_NOT_FOUND: the file has no tokenizer. */
qn_status qn_tokenizer_from_gguf(const qn_gguf *g, const qn_tokenizer_options *options, qn_tokenizer **out);
void qn_tokenizer_free(qn_tokenizer *t);

enum {
    QN_ENCODE_SPECIAL = 1, /* recognise special tokens in the text */
    QN_ENCODE_BOS =
        2, /* put BOS, EOS around it as the post-processor says; nothing where it has no such rule */
};
/* *ids is owned by the caller (qn_free), never NULL on success. QN_E_ARG: text longer than
 * QN_TOKENIZER_TEXT_MAX. */
qn_status qn_tokenizer_encode(const qn_tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                              int32_t **ids, size_t *n_ids);

typedef struct {
    const char *text;
    size_t n;
    int special; /* its bytes may be part of a special token */
} qn_text_segment;
/* Encodes the joined segments as one text: merges do not care where one ends. A special token is recognised
 * where all of its bytes lie in segments that allow it. flags: QN_ENCODE_BOS or 0. Each segment is made valid
 * UTF-8 by itself. */
qn_status qn_tokenizer_encode_segments(const qn_tokenizer *t, const qn_text_segment *segments,
                                       size_t n_segments, unsigned flags, int32_t **ids, size_t *n_ids);
/* The same, and no token reaches over cuts[i], a byte of the joined segments, at a character's begin, rising;
 * at[i] ids come before it. What lies behind a cut goes on as in the middle of a text: nothing is put before
 * it. White space that a special token takes with it may lie behind a cut. QN_E_ARG: a cut outside the text
 * or its characters, or text that is not UTF-8. */
qn_status qn_tokenizer_encode_cut(const qn_tokenizer *t, const qn_text_segment *segments, size_t n_segments,
                                  unsigned flags, const size_t *cuts, size_t n_cuts, size_t *at,
                                  int32_t **ids, size_t *n_ids);

/* Two texts as one input (a reranker's query and document), as the post-processor puts them together. */
typedef struct {
    int32_t *ids, *types; /* [n] each; types: which text a token counts as, as encoders are told it */
    size_t n;
} qn_token_pair;
/* flags: QN_ENCODE_BOS puts the post-processor's tokens around and between; the types are the same without.
 * n_max: of ids, with all that is put around; 0: no limit. Beyond it the longer text is cut at its end, then
 * both alike (transformers' longest_first). *out: qn_token_pair_free. QN_E_UNSUPPORTED: the file has no rule
 * for two texts; QN_E_ARG: n_max leaves no room for the tokens around them. */
qn_status qn_tokenizer_encode_pair(const qn_tokenizer *t, const qn_text_segment *first,
                                   const qn_text_segment *second, unsigned flags, size_t n_max,
                                   qn_token_pair *out);
void qn_token_pair_free(qn_token_pair *pair);

enum {
    QN_DECODE_SKIP_SPECIAL = 1, /* leave special tokens out */
    QN_DECODE_RAW = 2,          /* bytes as they are, also where they are not UTF-8 */
    QN_DECODE_INNER = 4,        /* the first id does not begin the text */
};
/* Appends the text to *out. Ids without a token bring no text. */
qn_status qn_tokenizer_decode(const qn_tokenizer *t, const int32_t *ids, size_t n_ids, unsigned flags,
                              qn_buf *out);
/* Appends the bytes that a token stands for in the middle of a text, perhaps half a character. */
qn_status qn_tokenizer_piece(const qn_tokenizer *t, int32_t id, qn_buf *out);
/* Calls fn for every token that has such bytes, ids rising: faster than a call for each. text is valid during
 * the call. */
typedef void qn_piece_fn(void *user, int32_t id, const char *text, size_t n);
qn_status qn_tokenizer_pieces(const qn_tokenizer *t, qn_piece_fn *fn, void *user);

/* Decoding token by token. The deltas, joined, are what qn_tokenizer_decode gives for all ids. */
typedef struct qn_token_stream qn_token_stream;
/* flags as for decode. The tokenizer must outlive the stream. */
qn_status qn_token_stream_new(const qn_tokenizer *t, unsigned flags, qn_token_stream **out);
void qn_token_stream_free(qn_token_stream *s);
/* Appends to *out the text that is certain after this token; nothing while a character is incomplete. */
qn_status qn_token_stream_push(qn_token_stream *s, int32_t id, qn_buf *out);
/* The end: appends what was held back. The stream may then be used for another text. */
qn_status qn_token_stream_finish(qn_token_stream *s, qn_buf *out);

/* One more than the largest id; ids below it may be without a token. */
size_t qn_tokenizer_vocab_size(const qn_tokenizer *t);
/* The id of a token by its text as it stands in the vocabulary; -1: none. */
int32_t qn_tokenizer_find(const qn_tokenizer *t, const char *text, size_t n);
/* The text as it stands in the vocabulary: not NUL-terminated, borrowed. NULL: no such token. */
const char *qn_tokenizer_token_text(const qn_tokenizer *t, int32_t id, size_t *n);
int qn_tokenizer_is_special(const qn_tokenizer *t, int32_t id);
/* 1: it was added to the vocabulary, special or not. */
int qn_tokenizer_is_added(const qn_tokenizer *t, int32_t id);
/* -1: not known. tokenizer.json does not say; see qn_tokenizer_set_ids. */
int32_t qn_tokenizer_bos_id(const qn_tokenizer *t);
int32_t qn_tokenizer_eos_id(const qn_tokenizer *t);
int32_t qn_tokenizer_unk_id(const qn_tokenizer *t);
int32_t qn_tokenizer_pad_id(const qn_tokenizer *t);
/* Ids that end a generation as far as the tokenizer's file says: EOS, and GGUF's end of turn and of message.
 * Borrowed. */
const int32_t *qn_tokenizer_eos_ids(const qn_tokenizer *t, size_t *n);
/* Special tokens by which known families end a turn (<|im_end|>, <end_of_turn>, <|eot_id|>, ...), those that
 * are in the vocabulary. Borrowed. */
const int32_t *qn_tokenizer_turn_end_ids(const qn_tokenizer *t, size_t *n);
/* While loading: what a tokenizer_config.json knows. -1 leaves a value as it is. */
qn_status qn_tokenizer_set_ids(qn_tokenizer *t, int32_t bos, int32_t eos, int32_t unk, int32_t pad);

#endif
