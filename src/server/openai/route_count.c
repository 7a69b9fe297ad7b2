/* POST /v1/chat/completions/input_tokens, which llama.cpp's server has: the tokens of the prompt that the same body
 * would give. */
#include "server/core/count_tokens.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_api_request_read(text, n, QN_REQUEST_CHAT, limits, out, error);
}

static const qn_dialect dialect = {
    .read = read_body, .read_messages = qn_api_request_read_messages, .prompt_field = "messages"};

static const qn_count_route route = {&dialect, NULL};

void qn_route_chat_count(qn_exchange *ex)
{
    qn_count_tokens_begin(ex, &route);
}
