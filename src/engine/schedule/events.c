/* What probes are told of scheduling. */
#include <math.h>

#include "engine/machine/prefixes.h"
#include "engine/machine/probe.h"
#include "engine/schedule/scheduler_parts.h"

void qn_events_cache(qn_scheduler *s, qn_cache_event event, const qn_request *r, int64_t n_tokens)
{
    qn_probes *probes = qn_engine_probes(s->engine);
    if (!qn_probes_want(probes, QN_PROBE_CACHE)) return;
    const qn_probe_cache c = {
        .event = event, .request = r->number, .n_tokens = n_tokens, .n_prompt_tokens = r->n_prompt};
    qn_probes_emit(probes, &(qn_probe_event){.point = QN_PROBE_CACHE, .cache = &c});
}

void qn_events_evictions(qn_scheduler *s)
{
    qn_probes *probes = qn_engine_probes(s->engine);
    if (!qn_probes_want(probes, QN_PROBE_CACHE)) return;
    qn_probe_cache c = {.event = QN_CACHE_EVENT_EVICT};
    size_t before = s->n_evicted_bytes;
    s->n_evicted_bytes = qn_engine_evicted_bytes(s->engine);
    c.size_bytes = s->n_evicted_bytes - before;
    if (c.size_bytes) qn_probes_emit(probes, &(qn_probe_event){.point = QN_PROBE_CACHE, .cache = &c});
}

void qn_events_token(qn_scheduler *s, qn_request *r)
{
    qn_probes *probes = qn_engine_probes(s->engine);
    if (!qn_probes_want(probes, QN_PROBE_TOKEN)) return;
    const qn_drawn *d = qn_ring_place(&r->ring, 0);
    const qn_probe_token t = {.request = r->number,
                              .row = r->row,
                              .position = r->n_ids - 1,
                              .id = d->id,
                              .logprob = r->logprobs ? d->logprob : NAN};
    qn_probes_emit(probes, &(qn_probe_event){.point = QN_PROBE_TOKEN, .token = &t});
}

void qn_events_step(qn_scheduler *s, int64_t n_prompt_rows, int64_t ns)
{
    qn_probes *probes = qn_engine_probes(s->engine);
    if (!qn_probes_want(probes, QN_PROBE_STEP)) return;
    qn_probe_step t = {.number = (uint64_t)s->now.n_steps,
                       .n_prefill_rows = n_prompt_rows,
                       .n_sequences = s->n_feeds,
                       .n_waiting = s->queued.n,
                       .ns = ns};
    for (int64_t i = 0; i < s->n_feeds; i++) t.n_rows += s->feeds[i].n_ids;
    qn_probes_emit(probes, &(qn_probe_event){.point = QN_PROBE_STEP, .step = &t});
}
