/* How sentence-transformers makes one vector of a model's hidden states: modules.json beside config.json and the
 * folders that it names. 1_Pooling says which states count, 2_Dense and its like are linear layers behind that, and
 * 2_Normalize makes the length 1. Prompts by name stand in config_sentence_transformers.json, the longest text in
 * sentence_bert_config.json. Immutable after reading: any thread. */
#ifndef QN_MODEL_SENTENCE_SENTENCE_H
#define QN_MODEL_SENTENCE_SENTENCE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "format/source/source.h"

enum { QN_SENTENCE_DENSE_MAX = 8, QN_SENTENCE_PROMPTS_MAX = 256 };

/* Which states make a vector; the vectors of several stand one behind the other in this order. */
typedef enum {
    QN_SENTENCE_CLS = 1,
    QN_SENTENCE_MAX = 2,
    QN_SENTENCE_MEAN = 4,
    QN_SENTENCE_MEAN_SQRT = 8,      /* the sum divided by the root of their number */
    QN_SENTENCE_WEIGHTED_MEAN = 16, /* the first counts once, the second twice, .. */
    QN_SENTENCE_LAST = 32
} qn_sentence_pooling;

typedef struct qn_sentence qn_sentence;

typedef struct {
    unsigned poolings; /* QN_SENTENCE_* bits; 0: there is no Pooling */
    int n_poolings;
    int leaves_prompt_out; /* states of a prompt's tokens do not count */
    int normalises;
    int n_dense;
    int64_t n_in, n_out; /* numbers of a vector before and behind the linear layers; n_in 0: there are none */
    int64_t max_tokens;  /* of a text; 0: not said */
    size_t n_prompts;
    const char *const *prompt_names, *const *prompts; /* [n_prompts] */
    const char *default_prompt;                       /* one of the names; NULL: none */
} qn_sentence_info;

/* Reads the files of a model's folder, whose hidden states have `width` numbers. *out NULL: the folder has no
 * modules.json; prompts alone may be there. QN_E_FORMAT, QN_E_UNSUPPORTED: a module, pooling or activation that is
 * unknown, sizes that do not fit; the message names the file. */
qn_status qn_sentence_read(const char *folder, int64_t width, qn_sentence **out);
/* The same of a GGUF file: its pooling_type, and the linear layers dense_2 and dense_3. *out NULL: the file names no
 * pooling, or one of scores. It has no prompts and never says that vectors are normalised. */
qn_status qn_sentence_read_gguf(const qn_source *source, int64_t width, qn_sentence **out);
void qn_sentence_free(qn_sentence *s);
const qn_sentence_info *qn_sentence_get(const qn_sentence *s);
/* x [n_in] through the linear layers to out [n_out]; room for widest numbers, twice, in scratch. */
void qn_sentence_project(const qn_sentence *s, const float *x, float *scratch, float *out);
/* Floats of scratch. */
size_t qn_sentence_scratch(const qn_sentence *s);

#endif
