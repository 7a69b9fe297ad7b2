#include "server/llama/completion_write.h"

#include <math.h>
#include <quern/tokenizer.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_write.h"
#include "server/core/write.h"
#include "server/llama/settings.h"

/* ---- members ------------------------------------------------------------------------------------------- */

static void put_tokens(const qn_said *said, int is_wanted, qn_buf *out)
{
    qn_json_key(out, "tokens");
    qn_json_open(out, '[');
    for (size_t i = 0; is_wanted && i < qn_said_count_tokens(said); i++)
        qn_json_int(out, qn_said_get_token(said, i).id);
    qn_json_close(out, ']');
}

static void put_probability(const qn_model *model, int32_t id, float logprob, qn_buf *out)
{
    qn_write_open_token(model, id, NULL, 1, out);
    qn_json_put_exact(out, "prob", exp((double)logprob));
}

/* What tokens were drawn from: probabilities after the sampler chain. */
static void put_sampled(const qn_model *model, const qn_said *said, qn_buf *out)
{
    qn_json_open(out, '[');
    for (size_t i = 0; i < qn_said_count_tokens(said); i++) {
        const qn_said_token t = qn_said_get_token(said, i);
        put_probability(model, t.id, t.logprob, out);
        qn_json_key(out, "top_probs");
        qn_json_open(out, '[');
        for (int32_t k = 0; k < t.n_top; k++) {
            put_probability(model, t.top[k].id, t.top[k].logprob, out);
            qn_json_close(out, '}');
        }
        qn_json_close(out, ']');
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
}

static void put_probabilities(const qn_completion *c, const qn_said *said, qn_buf *out)
{
    if (!c->request.logprobs || !qn_said_count_tokens(said)) return;
    qn_json_key(out, "completion_probabilities");
    if (c->request.post_sampling)
        put_sampled(c->ex->server->model, said, out);
    else
        qn_write_tokens(c->ex->server->model, said, 0, 1, out);
}

/* The prompt of a choice, as a text. */
static void put_prompt(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const json_t *prompt = c->request.prompt, *first = json_array_get(prompt, 0);
    qn_api_request_prompt one = {0};
    qn_api_error error;
    char *text = NULL;
    size_t n = 0;
    const size_t i =
        json_is_string(first) || json_is_array(first) ? (size_t)(choice->index / c->request.n) : 0;
    const int refused =
        qn_api_request_get_prompt(prompt, i, "prompt", c->ex->server->info.vocab_size, &one, &error);
    if (!refused && !one.prompt.text &&
        qn_model_decode(c->ex->server->model, one.row.ids, one.row.n_ids, NULL, &text, &n) != QN_OK)
        n = 0;
    qn_json_key(out, "prompt");
    if (!refused && one.prompt.text)
        qn_json_text(out, one.prompt.text, one.prompt.text_bytes);
    else
        qn_json_text(out, text ? text : "", n);
    qn_buffer_free(text);
    qn_buf_free(&one.ids);
}

static const char *stop_type(const qn_completion_choice *choice)
{
    return choice->finish == QN_FINISH_LENGTH ? "limit" : choice->stop_string ? "word" : "eos";
}

static void note_lines(const qn_completion_choice *choice)
{
    qn_llama_memory *m = choice->memory;
    for (size_t i = 0; i < qn_said_count(&choice->said) && !m->has_new_line; i++) {
        const qn_answer_event e = qn_said_get(&choice->said, i);
        m->has_new_line = e.kind == QN_ANSWER_CONTENT && memchr(e.text, '\n', e.n) != NULL;
    }
}

/* {"index":, "content":, "tokens":, "id_slot":, "stop":; the object stays open. said: NULL: nothing. */
static void open_object(const qn_completion *c, const qn_completion_choice *choice, const qn_said *said,
                        int is_last, qn_buf *out)
{
    static const qn_said nothing;
    if (!said) said = &nothing;
    qn_json_open(out, '{');
    qn_json_put_int(out, "index", choice->index);
    qn_write_said(out, "content", said, QN_ANSWER_CONTENT, 0);
    put_tokens(said, c->request.stream || c->request.keep_tokens, out);
    qn_json_put_int(out, "id_slot", choice->index ? -1 : c->slot);
    qn_json_put_bool(out, "stop", is_last);
}

/* What the last object of a choice has besides; closes it. */
static void close_last(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const qn_api_request *r = &c->request;
    const qn_llama_memory *m = choice->memory;
    qn_generation_stats stats = {0};
    int is_full = choice->end == QN_END_LENGTH && (!r->o.max_tokens || choice->n_tokens < r->o.max_tokens);
    if (qn_generation_get_stats(choice->generation, &stats) != QN_OK) stats.n_prompt_tokens = 0;
    /* Where the context was full, and its beginning has gone. */
    is_full |= stats.n_prompt_tokens + stats.n_generated_tokens > c->ex->server->info.context_size;
    if (r->only_prompt) stats.n_generated_tokens = 0;
    qn_json_put_text(out, "model", c->model.data);
    qn_json_put_int(out, "tokens_predicted", stats.n_generated_tokens);
    qn_json_put_int(out, "tokens_evaluated", stats.n_prompt_tokens);
    qn_json_put_int(out, "tokens_cached", stats.n_cached_tokens);
    qn_json_key(out, "generation_settings");
    qn_llama_write_settings(r, stats.seed, out);
    put_prompt(c, choice, out);
    qn_json_put_bool(out, "has_new_line", m->has_new_line);
    qn_json_put_bool(out, "truncated", is_full);
    qn_json_put_text(out, "stop_type", stop_type(choice));
    qn_json_put_text(out, "stopping_word", choice->stop_string ? choice->stop_string : "");
    qn_write_timings(&stats, out);
    qn_write_warnings(r, out);
    qn_json_close(out, '}');
}

/* ---- response_fields ----------------------------------------------------------------------------------- */

/* The member of an object that a name such as "timings/prompt_n" leads to; NULL: none. */
static const json_t *find_member(const json_t *object, const char *name)
{
    const char *slash = strchr(name, '/');
    char key[128];
    const size_t n = slash ? (size_t)(slash - name) : strlen(name);
    if (n >= sizeof key) return NULL;
    memcpy(key, name, n);
    key[n] = 0;
    const json_t *member = json_object_get(object, key);
    return slash && member ? find_member(member, slash + 1) : member;
}

/* Leaves of whole[0..n), an object, the members that are asked for, under the names that they are asked by. */
static void put_chosen(const json_t *fields, const char *whole, size_t n, qn_buf *out)
{
    json_t *object = NULL;
    const qn_status status = qn_json_parse("the answer", whole, n, &object);
    if (status != QN_OK) {
        out->status = status;
        return;
    }
    qn_json_open(out, '{');
    for (size_t i = 0; i < json_array_size(fields); i++) {
        const char *name = json_string_value(json_array_get(fields, i));
        const json_t *member = find_member(object, name);
        int is_double = 0;
        for (size_t k = 0; k < i; k++)
            is_double |= json_equal(json_array_get(fields, k), json_array_get(fields, i));
        if (!member || is_double) continue;
        qn_json_text(out, name, strlen(name));
        qn_buf_putc(out, ':');
        qn_write_json(out, member);
    }
    if (json_object_get(object, "warnings"))
        qn_write_value(out, "warnings", json_object_get(object, "warnings"));
    qn_json_close(out, '}');
    json_decref(object);
}

/* The last object of a choice, or what is asked for of it. */
static void put_last(const qn_completion *c, const qn_completion_choice *choice, const qn_said *said,
                     qn_buf *out)
{
    qn_buf whole = {0}, chosen = {0};
    open_object(c, choice, said, 1, &whole);
    if (said) put_probabilities(c, said, &whole);
    close_last(c, choice, &whole);
    if (c->request.fields && whole.status == QN_OK)
        put_chosen(c->request.fields, whole.data, whole.length, &chosen);
    const qn_buf *b = c->request.fields && whole.status == QN_OK ? &chosen : &whole;
    if (b->status != QN_OK) out->status = b->status;
    qn_buf_append(out, b->data, b->length);
    qn_buf_free(&chosen);
    qn_buf_free(&whole);
}

/* ---- whole answers ------------------------------------------------------------------------------------- */

void qn_llama_write_whole(const qn_completion *c, qn_buf *out)
{
    if (c->n_choices > 1) qn_buf_putc(out, '[');
    for (size_t i = 0; i < c->n_choices; i++) {
        note_lines(&c->choices[i]);
        if (i) qn_buf_putc(out, ',');
        put_last(c, &c->choices[i], &c->choices[i].said, out);
    }
    if (c->n_choices > 1) qn_buf_putc(out, ']');
}

/* ---- streams ------------------------------------------------------------------------------------------- */

void qn_llama_write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    (void)c, (void)choice, (void)out; /* the first event has text, or progress */
}

/* An event that is not the last of its choice: something said, or progress. */
static void put_event(const qn_completion *c, const qn_completion_choice *choice, const qn_said *said,
                      const qn_prompt_progress *progress, qn_buf *out)
{
    qn_generation_stats stats = {0};
    if (qn_generation_get_stats(choice->generation, &stats) != QN_OK) stats.n_prompt_tokens = 0;
    qn_buf_puts(out, "data: ");
    qn_buf event = {0};
    open_object(c, choice, said, 0, &event);
    qn_json_put_int(&event, "tokens_predicted", choice->n_tokens);
    qn_json_put_int(&event, "tokens_evaluated", stats.n_prompt_tokens);
    if (said) put_probabilities(c, said, &event);
    if (progress) {
        qn_write_progress(progress, &event);
        stats.n_prompt_tokens = progress->n_done;
        stats.prefill_ms = progress->ms;
    }
    if (c->request.wants_timings) qn_write_timings(&stats, &event);
    qn_json_close(&event, '}');
    if (event.status != QN_OK) out->status = event.status;
    qn_buf_append(out, event.data, event.length);
    qn_buf_puts(out, "\n\n");
    qn_buf_free(&event);
}

int qn_llama_write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    note_lines(choice);
    if (qn_said_count(&choice->said) || qn_said_count_tokens(&choice->said))
        put_event(c, choice, &choice->said, NULL, out);
    return 1;
}

void qn_llama_write_progress(const qn_completion *c, const qn_completion_choice *choice,
                             const qn_prompt_progress *progress, qn_buf *out)
{
    put_event(c, choice, NULL, progress, out);
}

void qn_llama_write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    qn_buf_puts(out, "data: ");
    put_last(c, choice, NULL, out);
    qn_buf_puts(out, "\n\n");
}

void qn_llama_write_end(const qn_completion *c, qn_buf *out)
{
    (void)c, (void)out; /* the last event of each choice says that it is the last */
}
