/* Every field that clients of llama.cpp's API send, and what becomes of it. null means "not given" everywhere. */
#include <stddef.h>

#include "server/core/fields/llama_hints.h"
#include "server/llama/request.h"

#define AT(field) offsetof(qn_api_request, field)
#define TEXT (QN_LLAMA_COMPLETION | QN_LLAMA_INFILL)
#define INFILL QN_LLAMA_INFILL
#define TOKENS QN_LLAMA_TOKENIZE
#define BACK QN_LLAMA_DETOKENIZE
#define EMBED QN_LLAMA_EMBEDDING

static const char one_cache[] = "has no effect: all requests share one cache";
static const char no_template[] = "render the messages by /apply-template first";

const qn_field qn_llama_fields[] = {
    /* what is asked */
    {"model", TEXT | TOKENS | BACK | EMBED, QN_FIELD_TEXT, AT(model), 0, 0, NULL, NULL, NULL},
    {"prompt", TEXT | TOKENS, QN_FIELD_JSON, AT(prompt), 0, 0, NULL, NULL, NULL},
    {"input_prefix", INFILL, QN_FIELD_JSON, AT(prefix), 0, 0, NULL, NULL, NULL},
    {"input_suffix", INFILL, QN_FIELD_JSON, AT(suffix), 0, 0, NULL, NULL, NULL},
    {"input_extra", INFILL, QN_FIELD_JSON, AT(extra), 0, 0, NULL, NULL, NULL},
    {"content", TOKENS, QN_FIELD_JSON, AT(content), 0, 0, NULL, NULL, NULL},
    {"add_special", TOKENS, QN_FIELD_BOOL, AT(adds_special), 0, 0, NULL, NULL, NULL},
    {"add_special_tokens", TOKENS, QN_FIELD_BOOL, AT(adds_special), 0, 0, NULL, NULL, NULL},
    {"parse_special", TOKENS, QN_FIELD_BOOL, AT(special), 0, 0, NULL, NULL, NULL},
    {"with_pieces", TOKENS, QN_FIELD_BOOL, AT(wants_pieces), 0, 0, NULL, NULL, NULL},
    {"return_token_strs", TOKENS, QN_FIELD_BOOL, AT(wants_pieces), 0, 0, NULL, NULL, NULL},
    {"messages", TOKENS, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, no_template},
    {"tokens", BACK, QN_FIELD_JSON, AT(tokens), 0, 0, NULL, NULL, NULL},
    {"content", EMBED, QN_FIELD_JSON, AT(input), 0, 0, NULL, NULL, NULL},
    {"input", EMBED, QN_FIELD_JSON, AT(input), 0, 0, NULL, NULL, NULL},
    {"embd_normalize", EMBED, QN_FIELD_OWN, 0, 0, 0, qn_llama_read_normalize, NULL, NULL},
    /* how it is answered */
    {"stream", TEXT, QN_FIELD_BOOL, AT(stream), 0, 0, NULL, NULL, NULL},
    {"n_probs", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_llama_read_n_probs, NULL, NULL},
    {"post_sampling_probs", TEXT, QN_FIELD_BOOL, AT(post_sampling), 0, 0, NULL, NULL, NULL},
    {"n_cmpl", TEXT, QN_FIELD_INT, AT(n), 1, QN_REQUEST_N_MAX, NULL, NULL, NULL},
    {"n", TEXT, QN_FIELD_INT, AT(n), 1, QN_REQUEST_N_MAX, NULL, NULL, NULL},
    {"return_tokens", TEXT, QN_FIELD_BOOL, AT(keep_tokens), 0, 0, NULL, NULL, NULL},
    {"return_progress", TEXT, QN_FIELD_BOOL, AT(wants_progress), 0, 0, NULL, NULL, NULL},
    {"timings_per_token", TEXT, QN_FIELD_BOOL, AT(wants_timings), 0, 0, NULL, NULL, NULL},
    {"response_fields", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_llama_read_fields, NULL, NULL},
    {"sse_ping_interval", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_ping, NULL, NULL},
    {"grammar", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_grammar, NULL, NULL},
    {"json_schema", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_json_schema, NULL, NULL},
    /* when it ends */
    {"n_predict", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_llama_read_n_predict, NULL, NULL},
    {"max_tokens", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_llama_read_max_tokens, NULL, NULL},
    {"stop", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_stop, NULL, NULL},
    {"ignore_eos", TEXT, QN_FIELD_BOOL, AT(o.ignore_eos), 0, 0, NULL, NULL, NULL},
    /* sampling */
    {"samplers", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_samplers, NULL, NULL},
    {"temperature", TEXT, QN_FIELD_REAL, AT(temperature), 0, 100, NULL, NULL, NULL},
    {"dynatemp_range", TEXT, QN_FIELD_REAL, AT(dynatemp_range), 0, 100, NULL, NULL, NULL},
    {"dynatemp_exponent", TEXT, QN_FIELD_REAL, AT(dynatemp_exponent), 0, 100, NULL, NULL, NULL},
    {"top_k", TEXT, QN_FIELD_INT, AT(top_k), -1, INT32_MAX, NULL, NULL, NULL},
    {"top_p", TEXT, QN_FIELD_REAL, AT(top_p), 0, 1, NULL, NULL, NULL},
    {"min_p", TEXT, QN_FIELD_REAL, AT(min_p), 0, 1, NULL, NULL, NULL},
    {"top_n_sigma", TEXT, QN_FIELD_REAL, AT(top_n_sigma), -1, 1000, NULL, NULL, NULL},
    {"xtc_probability", TEXT, QN_FIELD_REAL, AT(xtc_probability), 0, 1, NULL, NULL, NULL},
    {"xtc_threshold", TEXT, QN_FIELD_REAL, AT(xtc_threshold), 0, 1, NULL, NULL, NULL},
    {"typical_p", TEXT, QN_FIELD_REAL, AT(typical_p), 0, 1, NULL, NULL, NULL},
    {"repeat_last_n", TEXT, QN_FIELD_INT, AT(repeat_last_n), -1, INT32_MAX, NULL, NULL, NULL},
    {"repeat_penalty", TEXT, QN_FIELD_REAL, AT(repeat_penalty), 0.01, 100, NULL, NULL, NULL},
    {"presence_penalty", TEXT, QN_FIELD_REAL, AT(presence_penalty), -2, 2, NULL, NULL, NULL},
    {"frequency_penalty", TEXT, QN_FIELD_REAL, AT(frequency_penalty), -2, 2, NULL, NULL, NULL},
    {"dry_multiplier", TEXT, QN_FIELD_REAL, AT(dry_multiplier), 0, 100, NULL, NULL, NULL},
    {"dry_base", TEXT, QN_FIELD_REAL, AT(dry_base), 1, 100, NULL, NULL, NULL},
    {"dry_allowed_length", TEXT, QN_FIELD_INT, AT(dry_allowed_length), 0, INT32_MAX, NULL, NULL, NULL},
    {"dry_penalty_last_n", TEXT, QN_FIELD_INT, AT(dry_penalty_last_n), -1, INT32_MAX, NULL, NULL, NULL},
    {"dry_sequence_breakers", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_breakers, NULL, NULL},
    {"mirostat", TEXT, QN_FIELD_INT, AT(mirostat), 0, 2, NULL, NULL, NULL},
    {"mirostat_tau", TEXT, QN_FIELD_REAL, AT(mirostat_tau), 0, 100, NULL, NULL, NULL},
    {"mirostat_eta", TEXT, QN_FIELD_REAL, AT(mirostat_eta), 0, 1, NULL, NULL, NULL},
    {"seed", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_llama_read_seed, NULL, NULL},
    {"logit_bias", TEXT, QN_FIELD_JSON, AT(bias_sent), 0, 0, NULL, NULL, NULL},
    /* the cache */
    {"cache_prompt", TEXT, QN_FIELD_BOOL, AT(cache_prompt), 0, 0, NULL, NULL, NULL},
    {"id_slot", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_slot, NULL, NULL},
    {"filename", QN_LLAMA_SLOT, QN_FIELD_TEXT, AT(cache_file), 0, 0, NULL, NULL, NULL},

    /* taken and reported */
    {"slot_id", TEXT, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, one_cache},
    {"stream_options", TEXT, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "has no effect: the last event has all counts"},
    QN_LLAMA_HINTS(TEXT),

    /* refused, but for values that ask for nothing */
    {"n_discard", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0]", "prompts are never cut"},
    {"min_keep", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0]", "samplers keep at least one token"},
    {"lora", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "name an adapter in model: NAME+ADAPTER"},
    {"image_data", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "only text is taken"},
    {"preserved_tokens", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]",
     "special tokens are never part of the text"},
    {0},
};
