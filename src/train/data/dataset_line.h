/* One line of a data set: a JSON object becomes token ids, and which of them the loss counts.
 *
 * The keys tell the kind, in this order:
 * - {"messages": [...], "tools": [...]}: a chat, rendered by the model's template; tools may be left out.
 * - {"prompt": ..., "completion": ...}: texts are with a template a user's turn and the answer, as mlx_lm has
 *   it, without one just joined, with BOS and EOS around. Lists of messages are one chat, of which the
 *   completion counts; tools as above.
 * - {"ids": [...], "counts": [...]}: token ids as they are; counts, as many, says by 1 or true which are
 *   targets, without it all are.
 * - {"text": "..."}: special tokens are recognised, BOS as the tokenizer has it, EOS at the end; all of it
 *   counts.
 *
 * In a message, `weight` 0 (OpenAI, mistral-finetune) and `train` or `training` false (axolotl) say that an answer
 * is read but does not count, whatever the mask. The template sees all other keys; those that it does not look
 * at are listed as keys without a meaning.
 *
 * What a chat says is plain text: no message can forge a special token. Answers begin on a token of their
 * own, as when the model is asked for one. A sequence ends with its last token that counts. The first token
 * is never counted: nothing predicts it. Any thread. */
#ifndef QN_TRAIN_DATA_DATASET_LINE_H
#define QN_TRAIN_DATA_DATASET_LINE_H

#include <quern/train.h>

#include "base/buf.h"
#include "text/chat/chat.h"

typedef struct {
    const qn_chat_text *text;
    qn_mask mask;
    int64_t max_length; /* tokens, at least 2 */
    int64_t vocab_size; /* the model's: an id beyond it makes a line bad; 0: not looked at */
    const char *now;    /* what templates take for today's date: "2026-03-14T15:09:26" */
} qn_line_options;

typedef struct {
    int32_t *ids;    /* [n] */
    uint8_t *counts; /* [n] 1: a target */
    int64_t n, n_counted;
    int64_t n_whole;   /* tokens before it was cut to max_length */
    int64_t n_lost;    /* answers that were not found in what the template made, so that they do not count */
    int64_t n_empty;   /* answers of which the template writes nothing, so that they do not count */
    int64_t n_endless; /* answers that count and do not end with a token that ends a turn */
    int64_t n_hidden_calls; /* answers whose tool calls the template does not write */
    int hides_tools;        /* the line has tools, and what the template made names none of them */
} qn_train_sequence;

/* Is the failure the line's own (another line may do), not the machine's? */
int qn_line_is_bad(qn_status status);
/* line [n]: without a newline. other_keys (may be NULL) gets the keys that have no meaning here, each with a
 * NUL behind it. A bad line: QN_E_FORMAT (not JSON, not UTF-8), QN_E_ARG (other types or roles, empty, an id
 * outside the vocabulary, no token that counts within max_length, refused by the template), QN_E_UNSUPPORTED,
 * QN_E_FULL. */
qn_status qn_train_sequence_read(const qn_line_options *options, const char *line, size_t n,
                                 qn_train_sequence *out, qn_buf *other_keys);
/* Accepts a zeroed one. */
void qn_train_sequence_free(qn_train_sequence *s);

#endif
