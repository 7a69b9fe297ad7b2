#include "server/core/next_turn/next_turn.h"

#include <quern/quern.h>

#include "base/status.h"

int64_t qn_next_turn_common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b)
{
    int64_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

qn_status qn_next_turn_ids(const qn_model *model, const qn_prompt prompts[2], int32_t **ids, int64_t *n_ids)
{
    int32_t *one = NULL, *other = NULL;
    int64_t n_one = 0, n_other = 0;
    QN_TRY(qn_chat_render(model, &prompts[0], NULL, &one, &n_one));
    qn_status status = qn_chat_render(model, &prompts[1], NULL, &other, &n_other);
    if (status == QN_OK) {
        *ids = one;
        *n_ids = qn_next_turn_common(one, n_one, other, n_other);
    } else {
        qn_buffer_free(one);
    }
    qn_buffer_free(other);
    return status;
}

qn_status qn_next_turn_open(qn_model *model, const int32_t *ids, int64_t n_ids,
                            const qn_generate_options *options, qn_generation **out)
{
    const qn_ids row = {ids, n_ids};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    qn_generate_options o = *options;
    o.max_tokens = 1;
    o.ignore_eos = 1;
    o.priority = QN_PRIORITY_IDLE;
    return qn_generation_open(model, &prompt, &o, out);
}
