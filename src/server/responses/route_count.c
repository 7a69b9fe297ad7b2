/* POST /v1/responses/input_tokens: the tokens of the prompt that the same body would give. */
#include "server/core/count_tokens.h"
#include "server/responses/request.h"
#include "server/responses/responses.h"
#include "server/responses/stored.h"

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_responses_read(text, n, QN_RESPONSES_COUNT, limits, out, error);
}

static const qn_dialect dialect = {.read = read_body,
                                   .read_messages = qn_responses_read_items,
                                   .prepare = qn_response_load_history,
                                   .prompt_field = "input"};

static const qn_count_route route = {&dialect, "response.input_tokens"};

void qn_route_responses_count(qn_exchange *ex)
{
    qn_count_tokens_begin(ex, &route);
}
