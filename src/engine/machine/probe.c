#include "engine/machine/probe.h"

#include <stdio.h>
#include <string.h>

/* Points that lie inside a step. */
enum { IN_STEPS = 1 << QN_PROBE_LAYER | 1 << QN_PROBE_ATTENTION | 1 << QN_PROBE_ROUTER };

void qn_probes_init(qn_probes *p)
{
    pthread_mutex_init(&p->lock, NULL);
    p->next = 1;
}

void qn_probes_end(qn_probes *p)
{
    pthread_mutex_destroy(&p->lock);
}

/* A number that no other thread has. */
static uintptr_t me(void)
{
    static _Thread_local char mine;
    return (uintptr_t)&mine;
}

qn_status qn_probes_check_thread(const qn_probes *p)
{
    if (atomic_load_explicit(&p->caller, memory_order_relaxed) != me()) return QN_OK;
    return qn_fail(QN_E_ARG, "a probe's function must not compute with its model, nor add or remove probes");
}

void qn_probes_emit(qn_probes *p, const qn_probe_event *event)
{
    if (!qn_probes_want(p, event->point)) return;
    pthread_mutex_lock(&p->lock);
    atomic_store_explicit(&p->caller, me(), memory_order_relaxed);
    for (int64_t i = 0; i < p->n; i++)
        if (p->entries[i].points >> event->point & 1) p->entries[i].fn(p->entries[i].user, event);
    atomic_store_explicit(&p->caller, 0, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
}

/* ---- who is there ------------------------------------------------------------------------------------- */

/* The lock is held. */
static void gather(qn_probes *p)
{
    unsigned points = 0;
    for (int64_t i = 0; i < p->n; i++) points |= p->entries[i].points;
    atomic_store_explicit(&p->points, points, memory_order_relaxed);
}

qn_status qn_probes_add(qn_probes *p, uint32_t points, qn_probe_event_fn *fn, void *user, int64_t *number)
{
    qn_status status = QN_OK;
    QN_TRY(qn_probes_check_thread(p));
    pthread_mutex_lock(&p->lock);
    if (p->n == QN_PROBES_MAX) {
        status = qn_fail(QN_E_FULL, "%d probes are registered, which is the maximum for a model",
                         (int)QN_PROBES_MAX);
    } else {
        *number = p->entries[p->n].number = p->next++;
        p->entries[p->n].points = points;
        p->entries[p->n].fn = fn;
        p->entries[p->n++].user = user;
        gather(p);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

qn_status qn_probes_remove(qn_probes *p, int64_t number)
{
    int64_t i = 0;
    QN_TRY(qn_probes_check_thread(p));
    pthread_mutex_lock(&p->lock);
    while (i < p->n && p->entries[i].number != number) i++;
    qn_status status =
        i < p->n ? QN_OK
                 : qn_fail(QN_E_NOT_FOUND, "there is no probe with the number %lld", (long long)number);
    if (status == QN_OK) {
        p->n--;
        memmove(&p->entries[i], &p->entries[i + 1], (size_t)(p->n - i) * sizeof p->entries[0]);
        gather(p);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

int qn_probes_want_steps(const qn_probes *p)
{
    return (atomic_load_explicit(&p->points, memory_order_relaxed) & IN_STEPS) != 0;
}

/* ---- inside a step ------------------------------------------------------------------------------------ */

static void see_hidden(qn_probes *p, const qn_probe_rows *rows, const qn_probe_view *view, int64_t layer)
{
    const qn_shape *shape = &view->step->out.shape; /* [R, hidden_size], or [R, streams, hidden_size] */
    const qn_probe_layer l = {*rows, layer, shape->dim[1] * (shape->n == 3 ? shape->dim[2] : 1), view->out};
    qn_probes_emit(p, &(qn_probe_event){.point = QN_PROBE_LAYER, .layer = &l});
}

static void see_attention(qn_probes *p, const qn_probe_rows *rows, const qn_probe_view *view, int64_t layer)
{
    const qn_plan_step *s = view->step;
    const qn_operand *q = &s->in[0], *k = &s->in[1];
    const qn_operand *chosen = s->params.attend.block > 0 ? &s->in[s->n_in - 1] : NULL;
    const qn_probe_attention a = {.rows = *rows,
                                  .layer = layer,
                                  .num_attention_heads = q->shape.dim[1],
                                  .num_key_value_heads = k->shape.dim[1],
                                  .head_dim = q->shape.dim[2],
                                  .v_head_dim = s->out.shape.dim[2],
                                  .window = s->params.attend.window,
                                  .chunk = s->params.attend.chunk,
                                  .queries = view->in[0],
                                  .keys = view->in[1],
                                  .queries_stride = q->stride[0],
                                  .keys_stride = k->stride[0],
                                  .output = view->out,
                                  .chosen = chosen ? view->in[s->n_in - 1] : NULL,
                                  .n_chosen = chosen ? chosen->shape.dim[1] : 0,
                                  .chosen_stride = chosen ? chosen->stride[0] : 0,
                                  .block = s->params.attend.block,
                                  .no_tail = s->params.attend.no_tail};
    qn_probes_emit(p, &(qn_probe_event){.point = QN_PROBE_ATTENTION, .attention = &a});
}

static void see_experts(qn_probes *p, const qn_probe_rows *rows, const qn_probe_view *view, int64_t layer)
{
    enum { IDS = 2, SHARE = 3 };
    const qn_probe_router r = {*rows, layer, view->step->in[IDS].shape.dim[1], view->in[IDS],
                               view->in[SHARE]};
    qn_probes_emit(p, &(qn_probe_event){.point = QN_PROBE_ROUTER, .router = &r});
}

/* The point at which a step is seen, and its layer; -1: at none. */
static int point_of(const qn_plan_step *s, long long *layer)
{
    if (sscanf(s->label, "hidden.%lld", layer) == 1) return QN_PROBE_LAYER;
    if (sscanf(s->label, "layer.%lld.", layer) != 1) return -1;
    return s->prim == QN_PRIM_ATTEND        ? QN_PROBE_ATTENTION
           : s->prim == QN_PRIM_EXPERTS_SUM ? QN_PROBE_ROUTER
                                            : -1;
}

int qn_probes_want_step(const qn_probes *p, const qn_plan_step *s)
{
    long long layer;
    const int point = point_of(s, &layer);
    return point >= 0 && qn_probes_want(p, (qn_probe_point)point);
}

void qn_probes_see(qn_probes *p, const qn_probe_rows *rows, const qn_probe_view *view)
{
    long long layer;
    const int point = point_of(view->step, &layer);
    if (point == QN_PROBE_LAYER)
        see_hidden(p, rows, view, layer);
    else if (point == QN_PROBE_ATTENTION)
        see_attention(p, rows, view, layer);
    else if (point == QN_PROBE_ROUTER)
        see_experts(p, rows, view, layer);
}

const char *qn_probe_point_name(qn_probe_point point)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_PROBE_LIST(NAME)
#undef NAME
    };
    return (size_t)point < sizeof names / sizeof *names ? names[point] : "unknown point";
}

const char *qn_cache_event_name(qn_cache_event event)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_CACHE_EVENT_LIST(NAME)
#undef NAME
    };
    return (size_t)event < sizeof names / sizeof *names ? names[event] : "unknown event";
}
