/* Every field that clients of OpenAI's Responses send, and what becomes of it. null means "not given"
 * everywhere. */
#include <stddef.h>

#include "server/core/fields/cache_marks.h"
#include "server/responses/request.h"

#define AT(field) offsetof(qn_api_request, field)
#define ASK QN_RESPONSES_CREATE
#define BOTH (QN_RESPONSES_CREATE | QN_RESPONSES_COUNT)

static const char no_conversations[] =
    "the server stores no conversations; use previous_response_id, or send the whole conversation as input";

const qn_field qn_responses_fields[] = {
    /* what is asked */
    {"model", BOTH, QN_FIELD_TEXT, AT(model), 0, 0, NULL, NULL, NULL},
    {"instructions", BOTH, QN_FIELD_JSON, AT(system), 0, 0, NULL, NULL, NULL},
    {"input", BOTH, QN_FIELD_JSON, AT(input), 0, 0, NULL, NULL, NULL},
    {"tools", BOTH, QN_FIELD_JSON, AT(tools), 0, 0, NULL, NULL, NULL},
    {"tool_choice", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_responses_read_tool_choice, NULL, NULL},
    {"parallel_tool_calls", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_parallel_calls, NULL, NULL},
    {"reasoning", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_responses_read_reasoning, NULL, NULL},
    {"text", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_responses_read_text, NULL, NULL},
    /* how it is answered */
    {"stream", ASK, QN_FIELD_BOOL, AT(stream), 0, 0, NULL, NULL, NULL},
    {"stream_options", ASK, QN_FIELD_OWN, 0, 0, 0, qn_field_read_stream_options, NULL, NULL},
    {"return_progress", ASK, QN_FIELD_BOOL, AT(wants_progress), 0, 0, NULL, NULL, NULL},
    {"timings_per_token", ASK, QN_FIELD_BOOL, AT(wants_timings), 0, 0, NULL, NULL, NULL},
    {"include", ASK, QN_FIELD_OWN, 0, 0, 0, qn_responses_read_include, NULL, NULL},
    {"metadata", ASK, QN_FIELD_OWN, 0, 0, 0, qn_responses_read_metadata, NULL, NULL},
    {"store", ASK, QN_FIELD_OWN, 0, 0, 0, qn_responses_read_store, NULL, NULL},
    {"previous_response_id", BOTH, QN_FIELD_TEXT, AT(previous_id), 0, 0, NULL, NULL, NULL},
    {"background", ASK, QN_FIELD_BOOL, AT(background), 0, 0, NULL, NULL, NULL},
    /* when it ends */
    {"max_output_tokens", ASK, QN_FIELD_INT, AT(max_tokens), 1, INT32_MAX, NULL, NULL, NULL},
    {"truncation", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_truncation, NULL, NULL},
    /* sampling */
    {"temperature", ASK, QN_FIELD_REAL, AT(temperature), 0, 100, NULL, NULL, NULL},
    {"top_p", ASK, QN_FIELD_REAL, AT(top_p), 0, 1, NULL, NULL, NULL},
    {"top_k", ASK, QN_FIELD_INT, AT(top_k), -1, INT32_MAX, NULL, NULL, NULL},
    {"min_p", ASK, QN_FIELD_REAL, AT(min_p), 0, 1, NULL, NULL, NULL},
    {"presence_penalty", ASK, QN_FIELD_REAL, AT(presence_penalty), -2, 2, NULL, NULL, NULL},
    {"frequency_penalty", ASK, QN_FIELD_REAL, AT(frequency_penalty), -2, 2, NULL, NULL, NULL},
    {"repetition_penalty", ASK, QN_FIELD_REAL, AT(repeat_penalty), 0.01, 100, NULL, NULL, NULL},
    {"seed", ASK, QN_FIELD_OWN, 0, 0, 0, qn_field_read_seed, NULL, NULL},
    /* the queue and the cache; quern's own */
    {"priority", ASK, QN_FIELD_INT, AT(priority), -1000, 1000, NULL, NULL, NULL},
    {"cache_salt", ASK, QN_FIELD_TEXT, AT(cache_salt), 0, 0, NULL, NULL, NULL},
    {"prompt_cache_key", ASK, QN_FIELD_OWN, 0, 0, 0, qn_field_read_cache_key, NULL, NULL},
    {"prompt_cache_options", ASK, QN_FIELD_OWN, 0, 0, 0, qn_field_read_cache_options, NULL, NULL},
    {"prompt_cache_retention", ASK, QN_FIELD_OWN, 0, 0, 0, qn_field_read_cache_retention, NULL, NULL},

    /* taken and reported */
    {"user", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "is not used"},
    {"safety_identifier", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "is not used"},
    {"service_tier", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: there is one tier"},
    {"max_tool_calls", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "has no effect: it counts tools that a server runs, and this one runs none"},

    /* refused, but for values that ask for nothing */
    {"conversation", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, no_conversations},
    {"prompt", ASK, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "the server stores no prompts; use instructions"},
    {"context_management", ASK, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "nothing is removed from the input"},
    {"top_logprobs", ASK, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[0]",
     "log-probabilities are a part of /v1/chat/completions alone"},
    {0},
};
