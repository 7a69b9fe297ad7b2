/* Every field that clients of Anthropic's Messages send, and what becomes of it. null means "not given"
 * everywhere. */
#include <stddef.h>

#include "server/anthropic/request.h"
#include "server/core/fields/cache_marks.h"

#define AT(field) offsetof(qn_api_request, field)
#define ASK QN_ANTHROPIC_MESSAGES
#define BOTH (QN_ANTHROPIC_MESSAGES | QN_ANTHROPIC_COUNT)

static const char own_tools_only[] = "the server runs no tools and fetches nothing; use tools";
static const char one_tier[] = "has no effect: there is one tier";

const qn_field qn_anthropic_fields[] = {
    /* what is asked */
    {"model", BOTH, QN_FIELD_TEXT, AT(model), 0, 0, NULL, NULL, NULL},
    {"system", BOTH, QN_FIELD_JSON, AT(system), 0, 0, NULL, NULL, NULL},
    {"messages", BOTH, QN_FIELD_JSON, AT(messages), 0, 0, NULL, NULL, NULL},
    {"tools", BOTH, QN_FIELD_JSON, AT(tools), 0, 0, NULL, NULL, NULL},
    {"tool_choice", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_anthropic_read_tool_choice, NULL, NULL},
    {"thinking", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_anthropic_read_thinking, NULL, NULL},
    {"thread", ASK, QN_FIELD_OWN, 0, 0, 0, qn_anthropic_read_thread, NULL, NULL},
    {"output_config", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_anthropic_read_output_config, NULL, NULL},
    /* how it is answered */
    {"stream", ASK, QN_FIELD_BOOL, AT(stream), 0, 0, NULL, NULL, NULL},
    /* when it ends */
    {"max_tokens", ASK, QN_FIELD_INT, AT(max_tokens), 1, INT32_MAX, NULL, NULL, NULL},
    {"stop_sequences", ASK, QN_FIELD_OWN, 0, 0, 0, qn_anthropic_read_stop, NULL, NULL},
    /* sampling */
    {"temperature", ASK, QN_FIELD_REAL, AT(temperature), 0, 100, NULL, NULL, NULL},
    {"top_p", ASK, QN_FIELD_REAL, AT(top_p), 0, 1, NULL, NULL, NULL},
    {"top_k", ASK, QN_FIELD_INT, AT(top_k), 0, INT32_MAX, NULL, NULL, NULL},
    {"seed", ASK, QN_FIELD_OWN, 0, 0, 0, qn_field_read_seed, NULL, NULL},
    /* the queue and the cache; quern's own */
    {"priority", ASK, QN_FIELD_INT, AT(priority), -1000, 1000, NULL, NULL, NULL},
    {"cache_salt", ASK, QN_FIELD_TEXT, AT(cache_salt), 0, 0, NULL, NULL, NULL},
    {"cache_control", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_cache_control, NULL, NULL},

    /* taken and reported */
    {"metadata", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "nothing is stored here"},
    {"service_tier", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, one_tier},
    {"speed", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, one_tier},
    {"inference_geo", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "has no effect: the server is where it is"},
    {"anthropic_version", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "has no effect: there is one version"},
    {"anthropic_beta", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect"},
    {"diagnostics", ASK, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: usage tells of the cache"},
    {"context_management", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "has no effect: nothing is removed from the conversation"},

    /* refused, but for values that ask for nothing */
    {"output_format", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, "use output_config.format"},
    {"mcp_servers", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", own_tools_only},
    {"container", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL, own_tools_only},
    {"n", ASK, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[1]", "an answer is one message"},
    {0},
};
