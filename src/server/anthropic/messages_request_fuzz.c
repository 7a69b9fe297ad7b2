/* Any bytes as bodies of /v1/messages: the first says for which route, the rest is the body. It is read, or
 * refused with a sentence; messages and tools come out as JSON. */
#include "server/anthropic/anthropic.h"
#include "server/anthropic/request.h"
#include "tests/support/body_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static qn_api_request r;
    const qn_api_request_limits limits = {.vocab_size = 100,
                                          .takes_pictures = 1,
                                          .default_temperature = -1,
                                          .default_top_p = -1,
                                          .default_top_k = -1};
    const unsigned route = size && data[0] % 2 ? QN_ANTHROPIC_COUNT : QN_ANTHROPIC_MESSAGES;
    qn_api_error error;
    int status = qn_anthropic_read(size ? (const char *)data + 1 : "", size ? size - 1 : 0, route, &limits,
                                   &r, &error);
    if (!status) {
        qn_check(route == QN_ANTHROPIC_COUNT || r.o.max_tokens > 0);
        status = qn_anthropic_read_messages(&r, &error);
        if (!status) qn_check_request(&r);
    }
    if (status) qn_check_error(status, &error, qn_anthropic_error_write);
    qn_api_request_free(&r);
    return 0;
}
