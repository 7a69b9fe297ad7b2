/* Whether a model fits into the memory of a card, before anything of it is loaded. */
#include <stdio.h>

#include "engine/machine/engine_parts.h"

/* Temporaries of a step take at most this part of a device's own memory, unless its rows are few anyway. */
enum { CONTEXT_SHOWN_MAX = 1 << 20, DEFAULT_ROWS = 256, STEP_PART = 16 };

/* "1.50 GiB" */
static const char *size_text(double bytes, char *text, size_t size)
{
    const double mib = bytes / 1048576;
    snprintf(text, size, mib >= 1024 ? "%.2f GiB" : "%.2f MiB", mib >= 1024 ? mib / 1024 : mib);
    return text;
}

/* About what temporaries of a step and its logits take: programs say exactly, but need the weights. */
static double step_bytes(const qn_engine *e)
{
    const qn_model_config *c = &e->config;
    double width = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const qn_layer_config *l = &c->layers[i];
        const double heads = (double)(c->num_attention_heads + 2 * l->num_key_value_heads);
        const double row = 4 * (double)c->hidden_size + heads * (double)l->head_dim;
        if (row > width) width = row;
    }
    width += 2 * (double)c->intermediate_size;
    return sizeof(float) *
           ((double)e->info.max_rows * width + (double)e->info.max_sequences * (double)c->vocab_size);
}

int32_t qn_engine_choose_rows(qn_engine *e)
{
    const int32_t wish = e->device->ops->describe(e->device).prefill_rows;
    if (!wish || !qn_device_has_memory(e->device)) return wish ? wish : (int32_t)DEFAULT_ROWS;
    const double room = qn_engine_device_room(e);
    for (e->info.max_rows = wish; e->info.max_rows > DEFAULT_ROWS; e->info.max_rows /= 2)
        if (step_bytes(e) <= room / STEP_PART) break;
    return e->info.max_rows;
}

/* The longest context that fits, of what the model takes; 0: not even the shortest. */
static int64_t longest(qn_engine *e, qn_dtype kv_dtype, double room, int64_t most)
{
    const qn_dtype own = e->info.kv_dtype;
    e->info.kv_dtype = kv_dtype;
    const int64_t context = qn_engine_tokens_that_fit(e, most, room);
    const int fits = qn_engine_kv_bytes(e, context) <= room;
    e->info.kv_dtype = own;
    return fits ? context : 0;
}

/* What the user may do, in the order of what it costs. */
static void advise(qn_engine *e, double room, int64_t context, char *out, size_t size)
{
    const int64_t most = context < CONTEXT_SHOWN_MAX ? context : CONTEXT_SHOWN_MAX;
    const int64_t here = room > 0 ? longest(e, e->info.kv_dtype, room, most) : 0,
                  small = room > 0 ? longest(e, QN_DTYPE_Q8_0, room, most) : 0,
                  smallest = room > 0 ? longest(e, QN_DTYPE_Q4_0, room, most) : 0;
    size_t at = 0;
    out[0] = 0;
    if (here) at += (size_t)snprintf(out + at, size - at, "a context of %lld; ", (long long)here);
    if (small > here)
        at += (size_t)snprintf(out + at, size - at, "keys and values in q8_0 with a context of %lld; ",
                               (long long)small);
    if (smallest > small)
        at += (size_t)snprintf(out + at, size - at, "keys and values in q4_0 with a context of %lld; ",
                               (long long)smallest);
    snprintf(out + at, size - at, "no layer on the card (gpu_layers: none), so that the CPU computes");
}

qn_status qn_engine_check_fit(qn_engine *e, size_t weights_bytes, int64_t wish)
{
    const qn_device *d = e->device;
    const double all = qn_engine_device_room(e), weights = (double)weights_bytes, step = step_bytes(e);
    const int64_t context = wish > 0 ? wish : qn_engine_shortest_context();
    const double kv = qn_engine_kv_bytes(e, context), needed = weights + kv + step;
    char texts[5][32], advice[256];
    if (needed <= all) return QN_OK;
    advise(e, all - weights - step, context, advice, sizeof advice);
    const size_t limit = qn_ledger_get_limit(d->ledger);
    return qn_fail(QN_E_NOMEM,
                   "device %s: the model needs %s of the card's memory (weights %s, keys and values of %lld "
                   "tokens in %s %s, steps about %s), and %s are %s. What fits: %s",
                   d->ops->name, size_text(needed, texts[0], sizeof *texts),
                   size_text(weights, texts[1], sizeof *texts), (long long)context,
                   qn_dtype_name(e->info.kv_dtype), size_text(kv, texts[2], sizeof *texts),
                   size_text(step, texts[3], sizeof *texts), size_text(all, texts[4], sizeof *texts),
                   limit && (double)limit <= all + (double)qn_ledger_total(d->ledger)
                       ? "left under the device memory limit"
                       : "free",
                   advice);
}
