/* Any bytes as bodies of /v1/responses: the first says for which route, the rest is the body. It is read, or
 * refused with a sentence; the chat and the tools come out as JSON. */
#include "server/responses/request.h"
#include "server/responses/responses.h"
#include "tests/support/body_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static qn_api_request r;
    const qn_api_request_limits limits = {.vocab_size = 100,
                                          .takes_pictures = 1,
                                          .default_temperature = -1,
                                          .default_top_p = -1,
                                          .default_top_k = -1};
    const unsigned route = size && data[0] % 2 ? QN_RESPONSES_COUNT : QN_RESPONSES_CREATE;
    qn_api_error error;
    int status = qn_responses_read(size ? (const char *)data + 1 : "", size ? size - 1 : 0, route, &limits,
                                   &r, &error);
    if (!status) status = qn_responses_read_items(&r, &error);
    if (!status) qn_check_request(&r);
    if (!status) qn_check(json_array_size(r.chat) > 0);
    if (status) qn_check_error(status, &error, qn_responses_routes.write_error);
    qn_api_request_free(&r);
    return 0;
}
