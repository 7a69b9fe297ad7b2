/* The member "model" of a tokenizer.json: vocabulary and rules of a BPE, WordPiece or Unigram model.
 *
 * The large lists (vocabulary, merges) are read by a pull parser in one pass. One thread at a time. */
#ifndef QN_TEXT_TOKENIZER_TOKENIZER_MODEL_JSON_H
#define QN_TEXT_TOKENIZER_TOKENIZER_MODEL_JSON_H

#include "base/json/json_pull.h"
#include "text/tokenizer/tokenizer_build.h"

/* Set what and text, all else zero. */
typedef struct {
    const char *what, *text; /* the whole file */
    /* Texts of the members, as found; data NULL: missing. */
    qn_json_text type, vocab, merges, unk_token, unk_id, prefix, max_chars;
    size_t n_vocab, n_merges; /* their entries, about */
    int byte_fallback, fuse_unk, ignore_merges;
    int seen, has_merges; /* has_merges: they are in t's model by now */
} qn_model_json;

/* Notes what is in the object that p stands before. Merges that follow a vocabulary, as in nearly all files, become
 * t's model at once, since walking over them twice takes a tenth of the time. */
qn_status qn_model_json_read(qn_model_json *m, qn_json_pull *p, qn_tokenizer *t);
/* Gives t its vocabulary, its model (not finished yet: flags of tokens are still to come) and its unk_id. */
qn_status qn_model_json_build(const qn_model_json *m, qn_tokenizer *t);
/* A parser for one part of a file; lines and columns are those of the file. */
void qn_json_pull_part(qn_json_pull *p, const char *what, const char *text, qn_json_text part);

#endif
