#include "server/core/state.h"

#include "server/core/slots/slots.h"
#include "text/tools/tool_calls.h"

void qn_server_list(qn_ready *r)
{
    if (atomic_exchange(&r->is_listed, 1)) return;
    _Atomic(qn_ready *) *list = &r->server->ready;
    r->next = atomic_load(list);
    while (!atomic_compare_exchange_weak(list, &r->next, r)) {
    }
    qn_wake_send(&r->server->wake);
}

void qn_server_look(qn_server *s)
{
    qn_ready *r = atomic_exchange(&s->ready, NULL);
    while (r) {
        qn_ready *next = r->next;
        /* From here on it may be listed again: what comes now is not missed. */
        atomic_store(&r->is_listed, 0);
        r->look(r);
        r = next;
    }
}

void qn_server_owner(const qn_server *s, int key, char owner[QN_ARCHIVE_OWNER_MAX])
{
    qn_archive_name_owner(key >= 0 ? s->options->http.api_keys[key] : NULL, owner);
}

static void set_defaults(const qn_server_defaults *d, qn_api_request_limits *out)
{
    if (d->temperature >= 0) out->default_temperature = d->temperature;
    if (d->top_p >= 0) out->default_top_p = d->top_p;
    if (d->top_k >= 0) out->default_top_k = d->top_k;
    if (d->min_p >= 0) out->default_min_p = d->min_p;
    if (d->repeat_penalty >= 0) out->default_repeat_penalty = d->repeat_penalty;
    out->default_seed = d->seed;
    out->default_max_tokens = d->max_tokens;
}

qn_api_request_limits qn_server_request_limits(const qn_server *s)
{
    qn_reasoning_marks marks;
    const qn_answer_format format = qn_answer_format_find(s->info.call_format, s->info.reasoning_mark);
    qn_api_request_limits limits = {.vocab_size = s->info.vocab_size,
                                    .default_temperature = s->info.default_temperature,
                                    .default_top_p = s->info.default_top_p,
                                    .default_top_k = s->info.default_top_k,
                                    .allow_template_kwargs = s->options->allow_template_kwargs,
                                    .context_size = s->info.context_size,
                                    .has_chat_template = s->info.has_chat_template,
                                    .has_reasoning = s->info.reasoning_mark && *s->info.reasoning_mark,
                                    .bounds_reasoning = qn_answer_get_reasoning_marks(format, &marks),
                                    .takes_pictures = s->info.takes_images,
                                    .held = s->held,
                                    .lenient = s->options->lenient,
                                    .has_store = s->archive != NULL,
                                    .n_slots = s->slots ? qn_slots_count(s->slots) : 0,
                                    .default_min_p = s->info.default_min_p,
                                    .default_typical_p = s->info.default_typical_p,
                                    .default_repeat_penalty = s->info.default_repeat_penalty,
                                    .default_bad_ids = s->info.default_bad_ids,
                                    .n_default_bad_ids = s->info.n_default_bad_ids};
    if (s->options->defaults) set_defaults(s->options->defaults, &limits);
    return limits;
}
