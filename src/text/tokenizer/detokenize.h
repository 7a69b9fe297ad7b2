/* Token ids back to text: the decoder of a tokenizer.json as a chain of stages, each of which takes its input
 * as it comes. A whole decode is the stream of its ids, so the deltas of a stream always join to exactly the
 * whole text.
 *
 * What cannot be told yet is held back: an incomplete UTF-8 sequence, and a run of byte tokens until it ends
 * (the library that these files are written for replaces all bytes of such a run when one is wrong). The
 * decoder is built by one owner, then read-only: any thread, each with its own stream. */
#ifndef QN_TEXT_TOKENIZER_DETOKENIZE_H
#define QN_TEXT_TOKENIZER_DETOKENIZE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer/split/regex.h"

typedef struct qn_decoder qn_decoder;
typedef struct qn_decoder_state qn_decoder_state;

/* value: the file's "decoder"; null and NULL join the tokens with spaces. QN_E_UNSUPPORTED names a component
 * that is not known. */
qn_status qn_decoder_from_json(const char *what, const json_t *value, qn_decoder **out);
/* GGUF vocabularies. Added tokens stand for their text as it is. byte_level: texts in the byte alphabet; else
 * U+2581 is a space and byte tokens are bytes. strip_first: one space at the very beginning goes away. Broken
 * UTF-8 becomes U+FFFD. */
qn_status qn_decoder_for_gguf(int byte_level, int strip_first, qn_decoder **out);
/* The same for SentencePiece's own files, and what becomes of a space that begins the first token. */
typedef enum {
    QN_FIRST_KEPT,
    QN_FIRST_ONCE, /* it goes away */
    QN_FIRST_ALL   /* also that of the next tokens, as long as there is no text */
} qn_first_spaces;
qn_status qn_decoder_for_pieces(qn_first_spaces first, qn_decoder **out);
void qn_decoder_free(qn_decoder *d);

/* raw: bytes are given as they are, also where they are not UTF-8, and nothing is held back for their sake.
 * middle: as if other tokens had come before (what is cut off a beginning stays). */
qn_status qn_decoder_state_new(const qn_decoder *d, int raw, int middle, qn_decoder_state **out);
void qn_decoder_state_free(qn_decoder_state *s);
/* One token. Appends to *out what is certain now. added: it is an added token. QN_E_FULL: the text grew to
 * more than 64 times the tokens' size, 1 MiB and what the decoder's own texts bring. */
qn_status qn_decoder_feed(qn_decoder_state *s, const char *text, size_t n, int added, qn_buf *out);
/* The end: appends what was held back. The state is then as new. */
qn_status qn_decoder_finish(qn_decoder_state *s, qn_buf *out);

#endif
