#include "server/ollama/write.h"

#include <time.h>

#include "base/clock.h"
#include "base/json/json_write.h"
#include "server/core/write.h"

void qn_ollama_open(const qn_completion *c, qn_buf *out)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    qn_json_open(out, '{');
    qn_json_put_text(out, "model", c->model.data);
    qn_write_time(out, "created_at", (int64_t)now.tv_sec, (int64_t)now.tv_nsec);
}

void qn_ollama_put_logprobs(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    qn_ollama_memory *m = choice->memory;
    if (!c->request.logprobs) return;
    qn_json_key(out, "logprobs");
    qn_write_tokens(c->ex->server->model, &choice->said, m->n_tokens, 0, out);
    m->n_tokens = qn_said_count_tokens(&choice->said);
}

int qn_ollama_is_written(const qn_completion_choice *choice)
{
    qn_ollama_memory *m = choice->memory;
    /* Tokens without a text wait for the next line. */
    if (m->n_parts < qn_said_count(&choice->said) || m->n_tokens < qn_said_count_tokens(&choice->said))
        return 0;
    *m = (qn_ollama_memory){0};
    return 1;
}

void qn_ollama_close_line(qn_buf *out)
{
    qn_json_put_bool(out, "done", 0);
    qn_buf_puts(out, "}\n");
}

static int64_t to_ns(double ms)
{
    return (int64_t)(ms * 1e6);
}

void qn_ollama_close_last(const qn_completion *c, qn_buf *out)
{
    const qn_completion_choice *choice = c->n_choices ? c->choices : NULL;
    qn_generation_stats stats = {0};
    qn_json_put_text(out, "done_reason",
                     !choice                              ? "load"
                     : choice->finish == QN_FINISH_LENGTH ? "length"
                                                          : "stop");
    qn_json_put_bool(out, "done", 1);
    if (choice && qn_generation_get_stats(choice->generation, &stats) == QN_OK) {
        qn_json_put_int(out, "total_duration", qn_clock_ns() - c->ex->begin_ns);
        qn_json_put_int(out, "load_duration", to_ns(stats.queue_ms));
        qn_json_put_int(out, "prompt_eval_count", c->n_prompt_tokens);
        qn_json_put_int(out, "prompt_eval_duration", to_ns(stats.prefill_ms));
        qn_json_put_int(out, "eval_count", c->n_generated_tokens);
        qn_json_put_int(out, "eval_duration", to_ns(stats.decode_ms));
    }
    qn_write_warnings(&c->request, out);
    qn_json_close(out, '}');
}
