/* Whether a request takes and leaves prefixes, and where on its way. */
#include "engine/machine/images.h"
#include "engine/machine/prefixes.h"
#include "engine/schedule/scheduler_parts.h"

enum { SNAPSHOT_IDS = 1024 /* between two prefixes that are kept of a prompt, where keeping costs */ };

/* Where who asks the same goes on from: a recurrent state that has seen the last id is of no use to who needs
 * that id's logits. 0: nowhere else than from the end. */
static int64_t point_before_last(const qn_scheduler *s, const qn_request *r)
{
    return qn_engine_has_state(s->engine) ? r->n_prompt - 1 : 0;
}

/* The first pin behind `from`; 0: none. */
static int64_t next_pin(const qn_request *r, int64_t from)
{
    for (int i = 0; i < r->n_pins; i++)
        if (r->pins[i].n_tokens > from) return r->pins[i].n_tokens;
    return 0;
}

int qn_request_uses_tree(const qn_request *r)
{
    int64_t n;
    return !r->no_cache && (!r->images || qn_images_contents(r->images, &n));
}

int64_t qn_points_chunk(qn_scheduler *s, const qn_request *r, int64_t from, int64_t n)
{
    int64_t end = from + n, last = r->n_ids;
    if (r->shared_end > from && r->shared_end < end) end = r->shared_end;
    if (!r->sampler && r->evaluate && r->logits_from > from && r->logits_from < end &&
        (r->hidden || r->logits_from != last - 1))
        end = r->logits_from;
    if (!qn_engine_keeps_points(s->engine) || r->no_cache) return end - from;
    if (r->n_stable > from && r->n_stable < end) end = r->n_stable;
    const int64_t pin = next_pin(r, from);
    if (pin && pin < end) end = pin;
    const int64_t pictures = qn_images_end(r->images);
    if (pictures > from && pictures < end) end = pictures;
    int64_t before_last = point_before_last(s, r);
    if (before_last > from && before_last < end) end = before_last;
    int64_t point = (from / SNAPSHOT_IDS + 1) * SNAPSHOT_IDS;
    return (point < end ? point : end) - from;
}

int qn_points_has(qn_scheduler *s, const qn_request *r, int64_t length)
{
    if (r->n_generated) return 0;
    return !qn_engine_keeps_points(s->engine) || length == r->shared_end || length == r->n_stable ||
           length == next_pin(r, length - 1) || length == qn_images_end(r->images) || length == r->n_prompt ||
           length == point_before_last(s, r) || length % SNAPSHOT_IDS == 0;
}
