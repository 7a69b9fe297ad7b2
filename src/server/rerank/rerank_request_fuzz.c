/* Any bytes as bodies of rerankers: the first says for which route, the rest is the body. It is read, or refused with a
 * status of the client's fault and a sentence. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "server/rerank/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static qn_api_request r;
    const unsigned first = size ? data[0] : 0;
    const qn_api_request_limits limits = {.vocab_size = 100, .context_size = 64, .lenient = (first & 2) != 0};
    qn_api_error error;
    qn_pair *pairs = NULL;
    size_t n = 0;
    int status = qn_rerank_read(size ? (const char *)data + 1 : "", size ? size - 1 : 0,
                                first & 1 ? QN_SCORE_ROUTE : QN_RERANK_ROUTE, &limits, &r, &error);
    if (!status) status = qn_rerank_make_pairs(&r, &pairs, &n, &error);
    check(!status || (status >= 400 && status < 500 && error.status == status && error.message[0]));
    if (status) check(qn_utf8_valid_prefix(error.message, strlen(error.message)) == strlen(error.message));
    for (size_t i = 0; i < n; i++) check(pairs[i].query && pairs[i].document);
    qn_free(pairs);
    qn_api_request_free(&r);
    return 0;
}
