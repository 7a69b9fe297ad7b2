/* The inside of a tokenizer, for the files that make one (tokenizer_json.c, tokenizer_gguf.c). Whoever makes
 * it fills the parts in the order of this structure, then calls qn_tokenizer_finish. One owner until then. */
#ifndef QN_TEXT_TOKENIZER_TOKENIZER_BUILD_H
#define QN_TEXT_TOKENIZER_TOKENIZER_BUILD_H

#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/detokenize.h"
#include "text/tokenizer/model/unigram.h"
#include "text/tokenizer/model/wordpiece.h"
#include "text/tokenizer/split/normalize.h"
#include "text/tokenizer/split/pretokenize.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocab.h"

/* A part of what two texts become. */
typedef struct {
    int32_t id;   /* of a token; -1: a text */
    int32_t text; /* 0 the first, 1 the second */
    int32_t type;
} qn_pair_part;
typedef struct {
    enum {
        QN_PAIR_PLAIN,  /* no rule: the second text follows the first, with types 0 and 1 */
        QN_PAIR_PARTS,  /* as the parts say */
        QN_PAIR_REFUSED /* the file's rule cannot be used for pairs */
    } kind;
    qn_pair_part *parts; /* owned */
    size_t n;
} qn_pair_rule;

struct qn_tokenizer {
    char *what; /* names the file in messages */
    qn_vocab vocab;
    /* One of these is the model. */
    qn_bpe *bpe;
    qn_wordpiece *wordpiece;
    qn_unigram *unigram;
    qn_normalizer *normalizer;
    qn_pretokenizer *pretokenizer;
    qn_decoder *decoder;
    qn_added added;            /* matched in the text as it came */
    qn_added added_normalized; /* matched, in normalized form, in the normalized text between these */
    qn_added added_mixed; /* added, and normalized special tokens as spelt: for text that is trusted in parts
                             only */
    int has_mixed;
    qn_added respelt;          /* normalized forms that differ from the text; by id, once finished */
    qn_id_list prefix, suffix; /* the post-processor: what goes around a whole text */
    qn_pair_rule pair;         /* the same for two texts */
    int32_t bos_id, eos_id, unk_id, pad_id;
    qn_id_list eos_ids, turn_end_ids;
};

/* A tokenizer whose model does not come of a tokenizer.json: build gives it vocabulary and model, and perhaps
 * normalizer and decoder. rules: a JSON object with those members of a tokenizer.json that are left. named: as in
 * tokenizer.h. literal: added tokens are always matched in the text as it came. */
typedef struct {
    qn_status (*build)(void *user, qn_tokenizer *t);
    void *user;
    const char *rules;
    size_t n_rules;
    int literal;
} qn_tokenizer_parts;
qn_status qn_tokenizer_from_parts(const char *what, const qn_tokenizer_parts *parts,
                                  const qn_named_tokens *named, qn_tokenizer **out);
/* bos and eos (-1: none) go around a text, and around each of a pair, as transformers says it. */
qn_status qn_tokenizer_set_around(qn_tokenizer *t, int32_t bos, int32_t eos);
/* BERT's: cls A sep, cls A sep B sep. */
qn_status qn_tokenizer_set_bert(qn_tokenizer *t, int32_t cls, int32_t sep);

/* All members empty, ids -1; what is copied. */
qn_status qn_tokenizer_new(const char *what, qn_tokenizer **out);
/* One added token; its text must be in the vocabulary already. normalized: as in tokenizer.json. */
qn_status qn_tokenizer_add_token(qn_tokenizer *t, const qn_added_token *token, int normalized);
/* Finishes the model, sorts, completes the lists of ids. */
qn_status qn_tokenizer_finish(qn_tokenizer *t);

#endif
