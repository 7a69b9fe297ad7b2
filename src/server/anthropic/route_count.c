/* POST /v1/messages/count_tokens: the tokens of the prompt that the same body would give. */
#include "server/anthropic/anthropic.h"
#include "server/anthropic/request.h"
#include "server/core/count_tokens.h"

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_anthropic_read(text, n, QN_ANTHROPIC_COUNT, limits, out, error);
}

static const qn_dialect dialect = {
    .read = read_body, .read_messages = qn_anthropic_read_messages, .prompt_field = "messages"};

static const qn_count_route route = {&dialect, NULL};

void qn_route_messages_count(qn_exchange *ex)
{
    qn_count_tokens_begin(ex, &route);
}
