/* Fuzz target: lists of prompts, by lines and as JSON, with their choices. The first byte chooses. */
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "cli/commands/prompt_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_prompt_list list;
    qn_buf text = {0};
    if (!size) return 0;
    qn_buf_append(&text, (const char *)data + 1, size - 1);
    if (qn_prompt_list_take("fuzz", &text, data[0] & 1, data[0] >> 1 & 1, &list) != QN_OK) return 0;
    for (size_t i = 0; i < list.n; i++) {
        qn_choice *choices;
        int32_t *ids;
        size_t n;
        if (qn_prompt_list_choices(&list, i, &choices, &n, &ids) != QN_OK) continue;
        qn_free(choices);
        qn_free(ids);
    }
    qn_prompt_list_finish(&list, data[0] >> 2 & 1, data[0] >> 3 & 1 ? "Be brief." : NULL);
    qn_prompt_list_free(&list);
    return 0;
}
