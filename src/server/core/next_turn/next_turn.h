/* What every next turn of a chat begins with: what the conversation begins with when one message is added,
 * and when another one is. So the template itself says how it writes an answer that is history. Any thread.
 */
#ifndef QN_SERVER_CORE_NEXT_TURN_NEXT_TURN_H
#define QN_SERVER_CORE_NEXT_TURN_NEXT_TURN_H

#include <quern/generate.h>

/* Contents of two such messages: a word and a number, so that what a tokenizer joins with the first letter
 * alone is not common. */
#define QN_NEXT_TURN_CONTENTS \
    {                         \
        "a", "1"              \
    }

/* The ids that both prompts, which are chats, begin with; *ids is owned by the caller (qn_buffer_free). */
qn_status qn_next_turn_ids(const qn_model *model, const qn_prompt prompts[2], int32_t **ids, int64_t *n_ids);
/* How many ids at the beginning are the same. */
int64_t qn_next_turn_common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b);
/* Computes the ids while nobody else computes, so that the prefix tree knows them. The options bring adapter,
 * salt, tenant and whom to notify; it draws one token, which nobody needs. *out is owned by the caller. */
qn_status qn_next_turn_open(qn_model *model, const int32_t *ids, int64_t n_ids,
                            const qn_generate_options *options, qn_generation **out);

#endif
