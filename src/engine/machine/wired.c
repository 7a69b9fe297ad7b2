#include "engine/machine/wired.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/mem.h"

/* The whole pages of a weight's memory. A tied one is listed once. */
static void add(qn_wired *w, const qn_array *a)
{
    const qn_buffer *b = qn_array_buffer(a);
    if (!b) return;
    size_t page = qn_page_bytes();
    uintptr_t begin = ((uintptr_t)b->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)b->data + b->size_bytes) / page * page;
    if (end <= begin) return;
    for (int64_t i = 0; i < w->n; i++)
        if (w->ranges[i].begin == (char *)begin) return;
    w->ranges[w->n++] = (qn_wired_range){(char *)begin, end - begin};
}

static int larger_first(const void *a, const void *b)
{
    size_t x = ((const qn_wired_range *)a)->size_bytes, y = ((const qn_wired_range *)b)->size_bytes;
    return (x < y) - (x > y);
}

/* Finds what to lock, and no more than the limit. */
static qn_status list(const qn_parameters *p, int64_t n_layers, size_t limit_bytes, qn_wired *out)
{
    qn_wired w = {0};
    int64_t n_vision = qn_parameters_vision_count(p),
            n_most = (n_layers + 1) * QN_WEIGHT_ROLE_COUNT + n_vision;
    w.ranges = qn_calloc((size_t)n_most, sizeof *w.ranges);
    if (!w.ranges) return QN_E_NOMEM;
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++)
        add(&w, qn_parameters_get(p, (qn_weight_role)role, 0));
    for (int64_t l = 0; l < n_layers; l++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            add(&w, qn_parameters_get(p, (qn_weight_role)role, l));
    for (int64_t i = 0; i < n_vision; i++) add(&w, qn_parameters_vision(p, i));
    qsort(w.ranges, (size_t)w.n, sizeof *w.ranges, larger_first);
    size_t left = limit_bytes / qn_page_bytes() * qn_page_bytes();
    int64_t n = 0;
    for (; n < w.n && left; n++) {
        if (w.ranges[n].size_bytes > left) w.ranges[n].size_bytes = left;
        left -= w.ranges[n].size_bytes;
        w.size_bytes += w.ranges[n].size_bytes;
    }
    w.n = n;
    *out = w;
    return QN_OK;
}

static void unlock(const qn_wired *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) munlock(w->ranges[i].begin, w->ranges[i].size_bytes);
}

static qn_status refused(const qn_wired *w, size_t locked, int error)
{
    struct rlimit limit;
    char is[64] = "unlimited";
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(is, sizeof is, "%llu bytes", (unsigned long long)limit.rlim_cur);
    return qn_fail(
        QN_E_NOMEM,
        "wired limit: the system locked %zu of %zu bytes of weights in memory and refused more: %s; the "
        "limit RLIMIT_MEMLOCK is %s: raise it (ulimit -l, LimitMEMLOCK= of a service) or set a smaller wired "
        "limit",
        locked, w->size_bytes, strerror(error), is);
}

static qn_status lock(const qn_wired *w)
{
    size_t locked = 0;
    for (int64_t i = 0; i < w->n; i++) {
        if (mlock(w->ranges[i].begin, w->ranges[i].size_bytes) != 0) {
            int error = errno;
            unlock(w, i + 1);
            return refused(w, locked, error);
        }
        locked += w->ranges[i].size_bytes;
    }
    return QN_OK;
}

qn_status qn_wired_set(qn_wired *w, const qn_parameters *p, int64_t n_layers, size_t limit_bytes)
{
    qn_wired wanted;
    QN_TRY(list(p, n_layers, limit_bytes, &wanted));
    unlock(w, w->n);
    qn_status status = lock(&wanted);
    if (status != QN_OK) {
        qn_wired_end(&wanted);
        for (int64_t i = 0; i < w->n; i++) mlock(w->ranges[i].begin, w->ranges[i].size_bytes);
        return status;
    }
    qn_free(w->ranges);
    *w = wanted;
    return QN_OK;
}

void qn_wired_end(qn_wired *w)
{
    unlock(w, w->n);
    qn_free(w->ranges);
    *w = (qn_wired){0};
}
