#include "engine/sample/history.h"

#include <string.h>

#include "base/mem.h"

struct qn_history {
    int32_t *ids; /* [capacity], of which n are in use: the oldest first */
    int64_t n, capacity, window, n_added;
};

/* With room for a quarter more, tokens are moved four times each on average, not window times. */
qn_status qn_history_new(int64_t window, qn_history **out)
{
    qn_history *h = qn_calloc(1, sizeof *h);
    if (!h) return QN_E_NOMEM;
    h->window = window;
    h->capacity = window + window / 4 + 16;
    h->ids = qn_alloc_array((size_t)h->capacity, sizeof *h->ids);
    if (!h->ids) {
        qn_free(h);
        return QN_E_NOMEM;
    }
    *out = h;
    return QN_OK;
}

void qn_history_free(qn_history *h)
{
    if (!h) return;
    qn_free(h->ids);
    qn_free(h);
}

void qn_history_add(qn_history *h, int32_t id)
{
    if (h->n == h->capacity) {
        int64_t kept = h->window - 1;
        memmove(h->ids, h->ids + h->n - kept, (size_t)kept * sizeof *h->ids);
        h->n = kept;
    }
    h->ids[h->n++] = id;
    h->n_added++;
}

int64_t qn_history_count(const qn_history *h)
{
    return h->n_added;
}

const int32_t *qn_history_last(const qn_history *h, int64_t most, int64_t *n)
{
    *n = h->n < most ? h->n : most;
    if (*n > h->window) *n = h->window;
    return h->ids + h->n - *n;
}
