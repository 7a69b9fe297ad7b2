/* Any bytes: refused, or a state whose numbers are in range. */
#include "train/files/train_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_train_state *s = NULL;
    uint8_t *bytes = qn_alloc(size); /* aligned, as a mapping is */
    if (!bytes) return 0;
    if (size) memcpy(bytes, data, size);
    if (qn_train_state_open_bytes("fuzz.state", bytes, size, &s) == QN_OK) {
        const qn_train_state_run *run = qn_train_state_get_run(s);
        if (qn_train_state_steps(s) < 0 || isnan(run->best_loss) || !run->settings) abort();
        if (run->n_position < 0 || run->n_position > QN_TRAIN_STATE_POSITION_MAX) abort();
        qn_train_state_close(s);
    }
    qn_free(bytes);
    return 0;
}
