/* The sampler of one sequence: from logits to the next token id, by a chain of steps in a configurable order.
 *
 * Definitions. Before the chain, whatever its order: logit_bias is added; presence and frequency penalty are
 * taken off for tokens that draw gave (qn_sampler_accept_drawn), as generate.h says. Repetition penalty r:
 * for each distinct token of the history, logit * r if negative, else logit / r. top_p p: in falling order
 * (the lower id first on a tie) a token stays if the mass above it is less than p, the best always. min_p m:
 * a token stays if its probability is at least m times the best's. top_k k: the k largest stay, and what
 * equals the k-th. Temperature t: logits / t. Every filter sees the softmax of what the one before left.
 * Temperature 0 is greedy, whatever the order: the largest logit after the penalty, the lower id on a tie. A
 * draw depends on logits, history, options, seed, position and, within the rounding of exp, on the
 * instruction set alone. What the steps leave is kept by candidates.h. Nothing is allocated after
 * qn_sampler_new. One thread at a time.
 *
 * dry.h, filters.h and mirostat.h define the other steps. Tokens that words.h bans get -inf before the chain,
 * after the biases; then those that a mask leaves out (qn_sampler_set_mask). A window of the penalties takes tokens out of the history that repeat_penalty sees and out
 * of the counts of the other two. Temperature 0 takes the largest logit after the penalty and DRY. Mirostat's
 * mu is the only state that is not made of tokens: accept_drawn moves it by the draw before, so a draw that is
 * made twice moves nothing. */
#ifndef QN_ENGINE_SAMPLE_SAMPLER_H
#define QN_ENGINE_SAMPLE_SAMPLER_H

#include <quern/generate.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "engine/sample/words.h"

typedef struct qn_sampler qn_sampler;

/* QN_E_ARG names the sampling field of o that is out of range, and the value. */
qn_status qn_sampler_check(const qn_generate_options *o);
/* Reads the sampling fields of o, o->seed as it is. kernels: the device's passes over logits, NULL: the
 * host's. words: of the same options, borrowed for the sampler's life; NULL where qn_words_are_needed(o) is
 * 0. *out is owned by the caller. */
qn_status qn_sampler_new(const qn_logits_kernels *kernels, const qn_generate_options *o, int64_t n_vocab,
                         const qn_words *words, qn_sampler **out);
void qn_sampler_free(qn_sampler *s);
/* Before `position` none of ids[0..n) is drawn. They are borrowed for the sampler's life. QN_E_NOMEM. */
qn_status qn_sampler_ban_before(qn_sampler *s, const int32_t *ids, int64_t n, int64_t position);
/* The most bytes that one sampler holds that neither adds to logits nor looks back: with logit_bias, the
 * penalties of presence and frequency, bans, DRY, typical_p, xtc and repeat_last_n they are up to 12 more for each
 * token of the vocabulary, and the biases; with windows 25 for each token of the longest. */
size_t qn_sampler_bytes(int64_t n_vocab);
/* Masks may be set from here on: makes room for the logits that they change. Before the first draw. */
qn_status qn_sampler_allow_masks(qn_sampler *s);
/* The next draws are of the tokens whose bit is 1. bits [(n_vocab + 31) / 32], borrowed until the next call of
 * this function; NULL: of all tokens. */
void qn_sampler_set_mask(qn_sampler *s, const uint32_t *bits);
/* 1: the next draw is likely to be the token of the largest logit: it always is, or only a mask may change that and did
 * not at the last draw. */
int qn_sampler_takes_best(const qn_sampler *s);
/* Adds ids to the history that repeat_penalty is for: the prompt. QN_E_ARG: an id outside the vocabulary;
 * those before it were added. */
qn_status qn_sampler_accept(qn_sampler *s, const int32_t *ids, int64_t n_ids);
/* The sequence goes on with this token: it joins the history, and counts for presence and frequency penalty.
 * Status as accept. */
qn_status qn_sampler_accept_drawn(qn_sampler *s, int32_t id);
/* The same of a token that was not drawn, because no other could come. */
qn_status qn_sampler_accept_forced(qn_sampler *s, int32_t id);
/* The token for `position` from logits [n_vocab]; -inf masks a token. It is not added to the history.
 * QN_E_INTERNAL: a logit is NaN or +inf, or none is finite. QN_E_ARG: words and mask leave none. */
qn_status qn_sampler_draw(qn_sampler *s, const float *logits, int64_t position, int32_t *id);
/* The distribution that draw picks from: probabilities [n_vocab], exactly 0 where a step removed the token.
 * Greedy: 1 at one token. Statuses as draw. */
qn_status qn_sampler_distribution(qn_sampler *s, const float *logits, int64_t position, float *probabilities);
/* What the last draw picked `id` from: the logarithm of its probability, and of the n_top (at most
 * QN_TOP_LOGPROBS_MAX) likeliest in falling order, the lower id first on a tie. *n: how many there are; tokens
 * that no draw can give do not count. Greedy: the token alone. */
void qn_sampler_explain(qn_sampler *s, int32_t id, int32_t n_top, float *logprob, qn_top_logprob *top,
                        int32_t *n);
/* The most surprise that mirostat allows now, in bits; 0 without it. */
double qn_sampler_mirostat_mu(const qn_sampler *s);
/* A seed from the system's randomness, never 0. */
uint64_t qn_sampler_fresh_seed(void);

#endif
