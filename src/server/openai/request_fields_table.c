/* Every field that clients of OpenAI's API and of its many dialects send, and what becomes of it. null means
 * "not given" everywhere. */
#include <stddef.h>

#include "server/openai/request.h"

#define AT(field) offsetof(qn_api_request, field)
#define CHAT QN_REQUEST_CHAT
#define TEXT QN_REQUEST_COMPLETIONS
#define BOTH (QN_REQUEST_CHAT | QN_REQUEST_COMPLETIONS)
#define EMBED QN_REQUEST_EMBEDDINGS
#define ALL (BOTH | EMBED)

static const char no_grammar[] = "output cannot be constrained to a grammar yet";
static const char no_template[] = "only the model's own template is used";
static const char no_progress[] = "responses have usage, and /metrics has times";
static const char no_store[] = "nothing is stored here";
static const char cache_is_automatic[] = "has no effect: prefixes are always cached automatically";

const qn_field qn_api_request_fields[] = {
    /* what is asked */
    {"model", ALL, QN_FIELD_TEXT, AT(model), 0, 0, NULL, NULL, NULL},
    {"messages", CHAT, QN_FIELD_JSON, AT(messages), 0, 0, NULL, NULL, NULL},
    {"prompt", TEXT, QN_FIELD_JSON, AT(prompt), 0, 0, NULL, NULL, NULL},
    {"input", EMBED, QN_FIELD_JSON, AT(input), 0, 0, NULL, NULL, NULL},
    {"tools", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_tools, NULL, NULL},
    {"tool_choice", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_tool_choice, NULL, NULL},
    {"parallel_tool_calls", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_parallel_calls, NULL, NULL},
    {"reasoning_effort", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_effort, NULL, NULL},
    {"reasoning_format", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_reasoning_format, NULL, NULL},
    {"chat_template_kwargs", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_template_kwargs, NULL, NULL},
    {"continue_final_message", CHAT, QN_FIELD_BOOL, AT(continue_final), 0, 0, NULL, NULL, NULL},
    {"add_generation_prompt", CHAT, QN_FIELD_BOOL, AT(add_generation_prompt), 0, 0, NULL, NULL, NULL},
    /* how it is answered */
    {"stream", BOTH, QN_FIELD_BOOL, AT(stream), 0, 0, NULL, NULL, NULL},
    {"stream_options", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_stream_options, NULL, NULL},
    {"sse_ping_interval", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_ping, NULL, NULL},
    {"n", BOTH, QN_FIELD_INT, AT(n), 1, QN_REQUEST_N_MAX, NULL, NULL, NULL},
    {"logprobs", CHAT, QN_FIELD_BOOL, AT(logprobs), 0, 0, NULL, NULL, NULL},
    {"logprobs", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_completion_logprobs, NULL, NULL},
    {"top_logprobs", CHAT, QN_FIELD_INT, AT(top_logprobs), 0, QN_REQUEST_TOP_LOGPROBS_MAX, NULL, NULL, NULL},
    {"encoding_format", EMBED, QN_FIELD_OWN, 0, 0, 0, qn_field_read_encoding, NULL, NULL},
    {"dimensions", EMBED, QN_FIELD_INT, AT(dimensions), 1, INT32_MAX, NULL, NULL, NULL},
    /* when it ends */
    {"max_tokens", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_max_tokens, NULL, NULL},
    {"max_completion_tokens", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_max_completion_tokens, NULL, NULL},
    {"stop", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_stop, NULL, NULL},
    {"stop_token_ids", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_stop_ids, NULL, NULL},
    {"truncation", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_truncation, NULL, NULL},
    {"ignore_eos", BOTH, QN_FIELD_BOOL, AT(o.ignore_eos), 0, 0, NULL, NULL, NULL},
    /* sampling */
    {"temperature", BOTH, QN_FIELD_REAL, AT(temperature), 0, 100, NULL, NULL, NULL},
    {"top_p", BOTH, QN_FIELD_REAL, AT(top_p), 0, 1, NULL, NULL, NULL},
    {"min_p", BOTH, QN_FIELD_REAL, AT(min_p), 0, 1, NULL, NULL, NULL},
    {"top_k", BOTH, QN_FIELD_INT, AT(top_k), -1, INT32_MAX, NULL, NULL, NULL},
    {"repetition_penalty", BOTH, QN_FIELD_REAL, AT(repeat_penalty), 0.01, 100, NULL, NULL, NULL},
    {"repeat_penalty", BOTH, QN_FIELD_REAL, AT(repeat_penalty), 0.01, 100, NULL, NULL, NULL},
    {"presence_penalty", BOTH, QN_FIELD_REAL, AT(presence_penalty), -2, 2, NULL, NULL, NULL},
    {"frequency_penalty", BOTH, QN_FIELD_REAL, AT(frequency_penalty), -2, 2, NULL, NULL, NULL},
    {"logit_bias", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_logit_bias, NULL, NULL},
    {"seed", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_seed, NULL, NULL},
    /* the queue and the cache */
    {"priority", BOTH, QN_FIELD_INT, AT(priority), -1000, 1000, NULL, NULL, NULL},
    {"cache_salt", BOTH, QN_FIELD_TEXT, AT(cache_salt), 0, 0, NULL, NULL, NULL},
    {"cache_prompt", BOTH, QN_FIELD_BOOL, AT(cache_prompt), 0, 0, NULL, NULL, NULL},

    /* taken and reported */
    {"user", ALL, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "is not used"},
    {"safety_identifier", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "is not used"},
    {"metadata", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, no_store},
    {"request_id", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "is not used: the header x-request-id of the response has the id"},
    {"session_id", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, cache_is_automatic},
    {"service_tier", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: there is one tier"},
    {"speed", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: there is one tier"},
    {"prediction", CHAT, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "has no effect; it would only change the speed"},
    {"prompt_cache_key", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, cache_is_automatic},
    {"prompt_cache_options", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, cache_is_automatic},
    {"prompt_cache_retention", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, cache_is_automatic},
    {"prompt_cache_breakpoint", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, cache_is_automatic},
    {"cache_control", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, cache_is_automatic},
    {"id_slot", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: all requests share one cache"},
    {"keep_alive", ALL, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: the model stays loaded"},

    /* refused, but for values that ask for nothing */
    {"store", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", no_store},
    {"response_format", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[{\"type\": \"text\"}]", no_grammar},
    {"grammar", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"\"]", no_grammar},
    {"json_schema", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, no_grammar},
    {"regex", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, no_grammar},
    {"ebnf", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, no_grammar},
    {"functions", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "use tools"},
    {"function_call", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"none\", \"auto\"]", "use tool_choice"},
    {"modalities", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[\"text\"]]",
     "the server answers only with text"},
    {"audio", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "the server answers only with text"},
    {"web_search_options", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "the server fetches nothing"},
    {"documents", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "put them into messages"},
    {"verbosity", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"medium\"]", "ask for it in a message"},
    {"thinking", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "use reasoning_effort or chat_template_kwargs"},
    {"reasoning", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[{}]",
     "use reasoning_effort or chat_template_kwargs"},
    {"include_reasoning", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[true]", "reasoning is always included"},
    {"separate_reasoning", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[true]", "use reasoning_format"},
    {"thinking_budget", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[-1]", "use max_completion_tokens"},
    {"reasoning_budget", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[-1]", "use max_completion_tokens"},
    {"output_config", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[{}]", "it belongs to another API"},
    {"options", ALL, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[{}]", "put its fields at the top level"},
    {"format", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"\"]", no_grammar},
    {"chat_template", CHAT, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, no_template},
    {"add_special_tokens", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL,
     "the tokenizer's own rule is always used"},
    {"echo", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "the prompt is not repeated"},
    {"best_of", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[1]", "use n, and choose by logprobs"},
    {"suffix", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"\"]", "text can only be continued at its end"},
    {"prompt_logprobs", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0]",
     "only new tokens have log-probabilities"},
    {"typical_p", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[1, 1.0]", "there is no such sampler"},
    {"top_a", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0, 0.0]", "there is no such sampler"},
    {"mirostat", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0]", "there is no such sampler"},
    {"xtc_probability", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0, 0.0]", "there is no such sampler"},
    {"dry_multiplier", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0, 0.0]", "there is no such sampler"},
    {"min_tokens", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0]", "use ignore_eos with max_tokens"},
    {"length_penalty", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[1, 1.0]", "there is no beam search"},
    {"use_beam_search", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "there is no beam search"},
    {"bad_words", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "use logit_bias"},
    {"allowed_token_ids", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "use logit_bias"},
    {"skip_special_tokens", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[true]",
     "special tokens are never part of the text"},
    {"spaces_between_special_tokens", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[true]",
     "special tokens are never part of the text"},
    {"truncate_prompt_tokens", ALL, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "prompts are never truncated"},
    {"truncation", EMBED, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"disabled\"]", "prompts are never truncated"},
    {"truncate", EMBED, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "prompts are never truncated"},
    {"n_discard", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0]", "prompts are never truncated"},
    {"n_predict", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "use max_tokens"},
    {"lora", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "name an adapter in model: NAME+ADAPTER"},
    {"lora_path", ALL, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "name an adapter in model: NAME+ADAPTER"},
    {"return_token_ids", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]",
     "the server answers only with text"},
    {"return_tokens", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "the server answers only with text"},
    {"return_hidden_states", ALL, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]",
     "the server answers only with text"},
    {"return_progress", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", no_progress},
    {"timings_per_token", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", no_progress},
    {0},
};
