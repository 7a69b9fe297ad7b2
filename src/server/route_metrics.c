/* GET /metrics. */
#include <quern/figures.h>
#include <stdio.h>

#include "server/core/state.h"
#include "server/routes.h"

static void write_gauge(qn_buf *b, const char *name, const char *help, double value)
{
    qn_metrics_head(b, name, "gauge", help);
    qn_metrics_value(b, name, NULL, value);
}

static void write_counter(qn_buf *b, const char *name, const char *help, double value)
{
    qn_metrics_head(b, name, "counter", help);
    qn_metrics_value(b, name, NULL, value);
}

static void write_server(const qn_server *s, qn_buf *b)
{
    const qn_server_metrics *m = &s->metrics;
    qn_metrics_head(b, "quern_requests_total", "counter", "Answers by route and status.");
    for (size_t i = 0; i < m->n_answers; i++)
        qn_buf_printf(b, "quern_requests_total{route=\"%s\",status=\"%d\"} %lld\n", m->answers[i].route,
                      m->answers[i].status, (long long)m->answers[i].n);
    write_counter(b, "quern_clients_gone_total", "Clients that disconnected before they had their answer.",
                  (double)m->n_gone);
    write_counter(b, "quern_prompt_tokens_total", "Tokens of prompts.", (double)m->n_prompt_tokens);
    write_counter(b, "quern_cached_tokens_total", "Tokens of prompts that the prefix tree already had.",
                  (double)m->n_cached_tokens);
    write_counter(b, "quern_generated_tokens_total", "Tokens generated.", (double)m->n_generated_tokens);
    write_counter(b, "quern_look_aheads_total", "Beginnings of next turns computed in idle time.",
                  (double)m->n_look_aheads);
    qn_metrics_head(b, "quern_batch_lines_total", "counter",
                    "Lines of batches that are answered, or have failed.");
    qn_metrics_value(b, "quern_batch_lines_total", "result=\"completed\"", (double)m->n_batch_answers);
    qn_metrics_value(b, "quern_batch_lines_total", "result=\"failed\"", (double)m->n_batch_failures);
    write_gauge(b, "quern_connections", "Open connections.", s->http.n_connections);
    write_gauge(b, "quern_requests_held_bytes",
                "Memory of requests that are not answered: bodies, their JSON, pictures.",
                (double)qn_held_get(s->held));
    write_gauge(b, "quern_requests_running", "Requests that are not yet answered.",
                (double)s->http.n_exchanges);
    qn_histogram_write(&m->first_token, "quern_time_to_first_token_seconds",
                       "Time from a request to its first token.", b);
    qn_histogram_write(&m->between_tokens, "quern_inter_token_seconds",
                       "Time between two tokens of one choice.", b);
    qn_histogram_write(&m->queue, "quern_queue_seconds", "Time from a request to its first step.", b);
    qn_histogram_write(&m->whole, "quern_request_seconds", "Time from a request to the end of its answer.",
                       b);
}

static void write_engine(const qn_server *s, qn_buf *b)
{
    qn_figures f;
    if (!s->model || qn_model_get_figures(s->model, &f) != QN_OK) return;
    const struct {
        const char *name, *help;
        double value;
    } gauges[] =
        {
            {"quern_slots", "Maximum number of sequences computed together.", (double)f.n_slots},
            {"quern_sequences_active", "Sequences that have a slot.", (double)f.n_active},
            {"quern_sequences_queued", "Sequences that wait for their first slot.", (double)f.n_queued},
            {"quern_pages_total", "Pages of keys and values that the pool can hold.", (double)f.pages_total},
            {"quern_pages_used", "Pages in use by sequences.", (double)f.pages_used},
            {"quern_pages_kept", "Pages that only the prefix tree keeps.", (double)f.pages_kept},
            {"quern_prefix_nodes", "Nodes of the prefix tree.", (double)f.prefix_nodes},
        },
      counters[] = {
          {"quern_sequences_finished_total", "Sequences that ended.", (double)f.n_finished},
          {"quern_sequences_failed_total", "Sequences that ended with an error.", (double)f.n_failed},
          {"quern_preemptions_total", "Sequences preempted to give their slot or pages to others.",
           (double)f.n_preemptions},
          {"quern_restarts_total", "Sequences computed again because some of their state was invalid.",
           (double)f.n_restarts},
          {"quern_drafted_tokens_total", "Tokens guessed by speculation.", (double)f.n_drafted},
          {"quern_accepted_tokens_total", "Guessed tokens that were accepted.", (double)f.n_accepted},
          {"quern_scheduling_seconds_total", "Time that steps spent outside computing.",
           (double)f.scheduling_ns * 1e-9},
          {"quern_prefix_hits_total", "Prompts that shared a prefix with the tree.", (double)f.prefix_hits},
          {"quern_prefix_misses_total", "Prompts that shared no prefix with the tree.",
           (double)f.prefix_misses},
          {"quern_prefix_tokens_reused_total", "Tokens reused from the prefix tree.",
           (double)f.prefix_tokens_reused},
          {"quern_prefix_evicted_nodes_total", "Nodes evicted from the prefix tree.",
           (double)f.prefix_evicted_nodes},
          {"quern_prefix_evicted_tokens_total", "Tokens of evicted nodes.", (double)f.prefix_evicted_tokens},
          {"quern_prefix_evicted_bytes_total", "Bytes freed by evictions.", (double)f.prefix_evicted_bytes},
          {"quern_prefix_poisoned_nodes_total", "Nodes discarded because a failed step had written them.",
           (double)f.prefix_poisoned_nodes},
      };
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
        write_gauge(b, gauges[i].name, gauges[i].help, gauges[i].value);
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        write_counter(b, counters[i].name, counters[i].help, counters[i].value);
    qn_metrics_buckets(b, "quern_step_seconds", "Steps of the engine.", f.step_buckets, QN_STEP_BUCKETS,
                       0.00025, (double)f.step_ns * 1e-9);
}

/* ---- llama.cpp's names -------------------------------------------------------------------------------- */

/* Tokens a second since the last answer of this route. */
static double rate(double tokens, double seconds, qn_rate *last)
{
    const double n = tokens - last->tokens, s = seconds - last->seconds;
    *last = (qn_rate){tokens, seconds};
    return s > 0 ? n / s : 0;
}

/* What llama.cpp's server tells, for dashboards that know its names. */
static void write_llama(qn_server *s, qn_buf *b)
{
    qn_server_metrics *m = &s->metrics;
    qn_figures f = {0};
    if (s->model && qn_model_get_figures(s->model, &f) != QN_OK) f = (qn_figures){0};
    const double computed = (double)(m->n_prompt_tokens - m->n_cached_tokens),
                 generated = (double)m->n_generated_tokens;
    const struct {
        const char *name, *help;
        double value;
    } counters[] =
        {
            {"llamacpp:prompt_tokens_total", "Tokens of prompts that were computed.", computed},
            {"llamacpp:prompt_tokens_cached_total", "Tokens of prompts that came from the cache.",
             (double)m->n_cached_tokens},
            {"llamacpp:prompt_seconds_total", "Time of computing prompts.", m->prefill_s},
            {"llamacpp:tokens_predicted_total", "Tokens generated.", generated},
            {"llamacpp:tokens_predicted_seconds_total", "Time of generating tokens.", m->decode_s},
            {"llamacpp:n_decode_total", "Steps of the engine.", (double)f.n_steps},
            {"llamacpp:n_tokens_max", "Most tokens that a sequence had.", (double)m->n_tokens_max},
            {"llamacpp:spec_decode_num_draft_tokens_total", "Tokens guessed by speculation.",
             (double)f.n_drafted},
            {"llamacpp:spec_decode_num_accepted_tokens_total", "Guessed tokens that were accepted.",
             (double)f.n_accepted},
            {"llamacpp:spec_decode_num_drafts_total", "Times that tokens were guessed.", (double)f.n_drafts},
        },
      gauges[] = {
          {"llamacpp:prompt_tokens_seconds", "Tokens of prompts a second, since the last scrape.",
           rate(computed, m->prefill_s, &m->scraped_prompts)},
          {"llamacpp:predicted_tokens_seconds", "Generated tokens a second, since the last scrape.",
           rate(generated, m->decode_s, &m->scraped_tokens)},
          {"llamacpp:requests_processing", "Requests that are computed.",
           (double)(s->n_generating - f.n_queued > 0 ? s->n_generating - f.n_queued : 0)},
          {"llamacpp:requests_deferred", "Requests that wait for a slot.", (double)f.n_queued},
          {"llamacpp:n_busy_slots_per_decode", "Sequences of a step on average.",
           f.n_steps ? (double)f.n_step_rows / (double)f.n_steps : 0},
      };
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        write_counter(b, counters[i].name, counters[i].help, counters[i].value);
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
        write_gauge(b, gauges[i].name, gauges[i].help, gauges[i].value);
}

/* The same of a card. */
static void write_device_memory(const qn_server *s, qn_buf *b)
{
    qn_device_memory m;
    if (!s->model || qn_model_get_device_memory(s->model, &m) != QN_OK || !m.peak_memory_bytes) return;
    const struct {
        const char *label;
        size_t bytes;
    } entries[] = {{"entry=\"weights\"", m.weights_bytes},
                   {"entry=\"kv\"", m.kv_bytes},
                   {"entry=\"scratch\"", m.scratch_bytes},
                   {"entry=\"other\"", m.other_bytes},
                   {"entry=\"cache\"", m.cache_memory_bytes}};
    qn_metrics_head(b, "quern_device_memory_bytes", "gauge",
                    "Memory of the card that the model holds, by ledger entry.");
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        qn_metrics_value(b, "quern_device_memory_bytes", entries[i].label, (double)entries[i].bytes);
    write_gauge(b, "quern_device_memory_peak_bytes", "Maximum memory of the card that the model held.",
                (double)m.peak_memory_bytes);
    write_gauge(b, "quern_device_memory_limit_bytes",
                "Limit of the card's memory for the model; 0: no limit.", (double)m.limit_bytes);
    write_gauge(b, "quern_device_memory_cache_limit_bytes", "Limit of the entry cache of the card's memory.",
                (double)m.cache_limit_bytes);
    write_gauge(b, "quern_device_memory_free_bytes", "Memory of the card that nobody uses.",
                (double)m.free_bytes);
}

static void write_pins(const qn_server *s, qn_buf *b)
{
    qn_cache_counters c;
    if (!s->model || qn_cache_get_counters(s->model, &c) != QN_OK) return;
    write_gauge(b, "quern_prefix_pins", "Prefixes that requests keep for a time.", (double)c.n_timed_pins);
    write_counter(b, "quern_prefix_pins_given_up_total",
                  "Such prefixes that gave way before their time was over.", (double)c.n_given_up_pins);
}

static void write_adapters(const qn_server *s, qn_buf *b)
{
    qn_adapter_info info;
    size_t n_bytes = 0;
    int64_t n = 0;
    if (!s->model) return;
    for (; qn_adapter_get_info(s->model, n, &info) == QN_OK; n++) n_bytes += info.size_bytes;
    write_gauge(b, "quern_adapters", "Adapters that are loaded.", (double)n);
    write_gauge(b, "quern_adapters_bytes", "Memory of the adapters.", (double)n_bytes);
}

static void write_memory(const qn_server *s, qn_buf *b)
{
    qn_memory m;
    if (!s->model || qn_model_get_memory(s->model, &m) != QN_OK) return;
    const struct {
        const char *label;
        size_t bytes;
    } entries[] = {{"entry=\"weights\"", m.weights_bytes},
                   {"entry=\"kv\"", m.kv_bytes},
                   {"entry=\"scratch\"", m.scratch_bytes},
                   {"entry=\"other\"", m.other_bytes},
                   {"entry=\"cache\"", m.cache_memory_bytes}};
    qn_metrics_head(b, "quern_memory_bytes", "gauge", "Memory that the model holds, by ledger entry.");
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        qn_metrics_value(b, "quern_memory_bytes", entries[i].label, (double)entries[i].bytes);
    write_gauge(b, "quern_memory_peak_bytes", "Maximum memory that the model held.",
                (double)m.peak_memory_bytes);
    write_gauge(b, "quern_memory_limit_bytes", "Memory limit of the model; 0: no limit.",
                (double)m.limit_bytes);
}

void qn_route_metrics(qn_exchange *ex)
{
    qn_buf b = {0};
    qn_api_error error;
    char started[64];
    snprintf(started, sizeof started, "Process-Start-Time-Unix: %lld\r\n", (long long)ex->server->started_s);
    write_server(ex->server, &b);
    write_engine(ex->server, &b);
    write_memory(ex->server, &b);
    write_device_memory(ex->server, &b);
    write_adapters(ex->server, &b);
    write_pins(ex->server, &b);
    write_llama(ex->server, &b);
    if (b.status != QN_OK) {
        qn_api_fail_status(&error, b.status);
        qn_exchange_fail(ex, &error);
    } else {
        qn_exchange_reply(ex, 200, "text/plain; version=0.0.4; charset=utf-8", started, b.data, b.length);
    }
    qn_buf_free(&b);
}
