/* How the makers of a model would sample: the keys of its generation_config.json that our sampler has.
 *
 * Values are as qn_generate_options has them; what the file does not say is unset. Keys that ask for something
 * else (beams, n-grams, a guidance) are named in the text. Any thread. */
#ifndef QN_MODEL_CONFIG_SAMPLING_DEFAULTS_H
#define QN_MODEL_CONFIG_SAMPLING_DEFAULTS_H

#include <quern/generate.h>

#include "base/arena.h"
#include "format/source/source.h"

typedef struct {
    qn_arena arena;
    float temperature, top_p;               /* negative: unset. do_sample false is temperature 0 */
    int32_t top_k;                          /* negative: unset */
    float min_p, typical_p, repeat_penalty; /* 0: unset */
    const qn_ids *bad_ids;                  /* bad_words_ids, and suppress_tokens as rows of one id */
    size_t n_bad_ids;
    /* One line: "temperature 0.7, top_p 0.8; not applied: num_beams". "": the file asks for nothing. */
    const char *text;
} qn_sampling_defaults;

/* Fills *out also if there is no file. A value of another type or outside its range is unset, and the text says
 * so. QN_E_FORMAT: not JSON; QN_E_NOMEM. The caller calls free, also after a failure. */
qn_status qn_sampling_defaults_read(qn_source *src, qn_sampling_defaults *out);
void qn_sampling_defaults_free(qn_sampling_defaults *d);

#endif
