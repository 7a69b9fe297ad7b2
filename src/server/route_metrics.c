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
    write_counter(b, "quern_clients_gone_total", "Clients that went before they had their answer.",
                  (double)m->n_gone);
    write_counter(b, "quern_prompt_tokens_total", "Tokens of prompts.", (double)m->n_prompt_tokens);
    write_counter(b, "quern_cached_tokens_total", "Of them, those that the prefix tree knew.",
                  (double)m->n_cached_tokens);
    write_counter(b, "quern_generated_tokens_total", "Tokens generated.", (double)m->n_generated_tokens);
    write_counter(b, "quern_look_aheads_total", "Beginnings of next turns that were computed in idle time.",
                  (double)m->n_look_aheads);
    write_gauge(b, "quern_connections", "Open connections.", s->http.n_connections);
    write_gauge(b, "quern_requests_running", "Requests that are not answered.", (double)s->http.n_exchanges);
    qn_histogram_write(&m->first_token, "quern_time_to_first_token_seconds",
                       "From a request to its first token.", b);
    qn_histogram_write(&m->between_tokens, "quern_inter_token_seconds", "Between two tokens of one choice.",
                       b);
    qn_histogram_write(&m->queue, "quern_queue_seconds",
                       "From a request to the first step that computed for it.", b);
    qn_histogram_write(&m->whole, "quern_request_seconds", "From a request to the end of its answer.", b);
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
            {"quern_slots", "The most sequences computed together.", (double)f.n_slots},
            {"quern_sequences_active", "Sequences that have a slot.", (double)f.n_active},
            {"quern_sequences_queued", "Sequences that wait for their first slot.", (double)f.n_queued},
            {"quern_pages_total", "Pages of keys and values that there are places for.",
             (double)f.pages_total},
            {"quern_pages_used", "Pages in use by sequences.", (double)f.pages_used},
            {"quern_pages_kept", "Pages that the prefix tree alone keeps.", (double)f.pages_kept},
            {"quern_prefix_nodes", "Nodes of the prefix tree.", (double)f.prefix_nodes},
        },
      counters[] = {
          {"quern_sequences_finished_total", "Sequences that ended.", (double)f.n_finished},
          {"quern_sequences_failed_total", "Of them, with an error.", (double)f.n_failed},
          {"quern_preemptions_total", "Sequences that gave their slot or pages to others for a while.",
           (double)f.n_preemptions},
          {"quern_restarts_total", "Sequences computed anew because something of them was no good.",
           (double)f.n_restarts},
          {"quern_drafted_tokens_total", "Tokens that were guessed.", (double)f.n_drafted},
          {"quern_accepted_tokens_total", "Guessed tokens that came true.", (double)f.n_accepted},
          {"quern_scheduling_seconds_total", "Time of all steps around computing.",
           (double)f.scheduling_ns * 1e-9},
          {"quern_prefix_hits_total", "Prompts that began like something known.", (double)f.prefix_hits},
          {"quern_prefix_misses_total", "Prompts that did not.", (double)f.prefix_misses},
          {"quern_prefix_tokens_reused_total", "Tokens that were not computed again.",
           (double)f.prefix_tokens_reused},
          {"quern_prefix_evicted_nodes_total", "Nodes given up for want of room.",
           (double)f.prefix_evicted_nodes},
          {"quern_prefix_evicted_tokens_total", "Tokens of these nodes.", (double)f.prefix_evicted_tokens},
          {"quern_prefix_evicted_bytes_total", "Bytes that came free by it.", (double)f.prefix_evicted_bytes},
          {"quern_prefix_poisoned_nodes_total", "Nodes that a failed step had written.",
           (double)f.prefix_poisoned_nodes},
      };
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
        write_gauge(b, gauges[i].name, gauges[i].help, gauges[i].value);
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        write_counter(b, counters[i].name, counters[i].help, counters[i].value);
    qn_metrics_buckets(b, "quern_step_seconds", "Steps of the engine.", f.step_buckets, QN_STEP_BUCKETS,
                       0.00025, (double)f.step_ns * 1e-9);
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
    qn_metrics_head(b, "quern_memory_bytes", "gauge", "What the model holds, by entry of its ledger.");
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        qn_metrics_value(b, "quern_memory_bytes", entries[i].label, (double)entries[i].bytes);
    write_gauge(b, "quern_memory_peak_bytes", "The most that it held.", (double)m.peak_memory_bytes);
    write_gauge(b, "quern_memory_limit_bytes", "The most that it may hold; 0: no limit.",
                (double)m.limit_bytes);
}

void qn_route_metrics(qn_exchange *ex)
{
    qn_buf b = {0};
    qn_api_error error;
    write_server(ex->server, &b);
    write_engine(ex->server, &b);
    write_memory(ex->server, &b);
    if (b.status != QN_OK) {
        qn_api_fail_status(&error, b.status);
        qn_exchange_fail(ex, &error);
    } else {
        qn_exchange_reply(ex, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, b.data, b.length);
    }
    qn_buf_free(&b);
}
