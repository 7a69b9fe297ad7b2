/* Fuzz target: lines with queries and documents, or with ids. */
#include <stddef.h>
#include <stdint.h>

#include "cli/commands/rerank_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_rerank_list list;
    if (qn_rerank_list_read("fuzz", (const char *)data, size, &list) == QN_OK) qn_rerank_list_free(&list);
    return 0;
}
