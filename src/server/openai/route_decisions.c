/* POST /v1/decisions: probabilities of answers to questions about an input. Nothing is generated: the model's
 * probabilities of all answers are computed, several questions at a time, on a worker. */
#include <quern/classify.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/completion.h"
#include "server/core/conversation.h"
#include "server/core/message.h"
#include "server/openai/decisions.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"

typedef struct {
    qn_decision_question question;
    json_t *messages; /* of its chat, before they were made to fit */
    qn_chat_prompt chat;
    qn_choice *choices; /* [question.n] */
    char (*labels)[QN_DECISION_LABEL_BYTES];
} item;

typedef struct {
    qn_job job;
    qn_exchange *ex;
    qn_api_request request;
    qn_api_error error;
    qn_cancel *cancel; /* set when the client has gone */
    json_t *variables; /* of the template: answers come without reasoning; NULL: it has none */
    item *items;
    size_t n_items;
    int64_t n_tokens;
    qn_buf answer;
} decision;

/* ---- answers ------------------------------------------------------------------------------------------- */

static void put_probability(qn_buf *b, const char *key, double p)
{
    qn_json_put_exact(b, key, p);
}

static void put_json(qn_buf *b, const char *key, const json_t *value)
{
    qn_json_key(b, key);
    qn_json_write_value(b, value);
}

static void put_probabilities(qn_buf *b, const qn_decision_question *q, const qn_choice_score *scores)
{
    const int is_choice = q->kind == QN_DECISION_CHOICE;
    qn_json_key(b, "probabilities");
    qn_json_open(b, '[');
    for (size_t i = 0; i < q->n; i++) {
        const json_t *each = json_array_get(q->items, i);
        qn_json_open(b, '{');
        put_json(b, is_choice ? "value" : "label", json_object_get(each, is_choice ? "value" : "label"));
        if (!is_choice) qn_json_put_int(b, "value", (int64_t)i + 1);
        put_probability(b, "probability", scores[i].probability);
        qn_json_close(b, '}');
    }
    qn_json_close(b, ']');
}

static qn_status take_answer(void *user, const qn_classify_result *r)
{
    decision *d = user;
    const qn_server *s = d->ex->server;
    qn_buf *b = &d->answer;
    if (r->status != QN_OK) {
        qn_fail_copy(r->status, r->message);
        qn_api_fail_status(&d->error, r->status);
        if (r->n_tokens > s->info.context_size)
            qn_api_request_fail_length("input", r->n_tokens, s->info.context_size, &d->error);
        return r->status;
    }
    const qn_decision_question *q = &d->items[r->i_prompt].question;
    static const char *const kinds[] = {"predicate", "choice", "score"};
    d->n_tokens += r->n_tokens;
    qn_json_open(b, '{');
    qn_json_put_text(b, "type", kinds[q->kind]);
    qn_json_key(b, "name");
    if (q->name)
        qn_json_write_value(b, q->name);
    else
        qn_buf_puts(b, "null");
    if (q->kind == QN_DECISION_PREDICATE) {
        put_probability(b, "probability", r->choices[0].probability);
    } else {
        const double best = r->choices[r->best_choice].probability;
        double mean = 0;
        for (size_t i = 0; i < q->n; i++) mean += r->choices[i].probability * (double)(i + 1);
        if (q->kind == QN_DECISION_CHOICE)
            put_json(b, "choice", json_object_get(json_array_get(q->items, r->best_choice), "value"));
        else
            put_probability(b, "score", mean);
        put_probability(b, "confidence", best);
        put_probabilities(b, q, r->choices);
    }
    qn_json_close(b, '}');
    return b->status;
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* The input, and the question as the last message. */
static int make_prompt(decision *d, item *t)
{
    qn_api_request *r = &d->request;
    json_t *input = r->chat;
    json_t *message = qn_message_new("user", qn_message_text(t->question.text.data, t->question.text.length));
    t->messages = qn_json_copy(input);
    if (!t->messages || json_array_append_new(t->messages, message))
        return qn_api_fail_status(&d->error, qn_fail_nomem(0));
    r->chat = t->messages;
    int refused = qn_chat_prompt_write(d->ex->server, r, &t->chat, &d->error);
    r->chat = input;
    return refused;
}

static int make_item(decision *d, const json_t *questions, size_t i)
{
    item *t = &d->items[d->n_items++];
    int refused = qn_decision_read_question(questions, i, &t->question, &d->error);
    if (!refused) refused = make_prompt(d, t);
    if (refused) return refused;
    t->choices = qn_calloc(t->question.n, sizeof *t->choices);
    t->labels = qn_calloc(t->question.n, sizeof *t->labels);
    if (!t->choices || !t->labels) return qn_api_fail_status(&d->error, QN_E_NOMEM);
    for (size_t k = 0; k < t->question.n; k++) {
        qn_decision_write_label(&t->question, k, t->labels[k]);
        t->choices[k].text = t->labels[k];
    }
    return 0;
}

static int make_items(decision *d)
{
    const json_t *questions = d->request.questions;
    const size_t n = json_array_size(questions);
    if (!n || n > QN_DECISION_QUESTIONS_MAX)
        return qn_api_fail(&d->error, 400, "invalid_value", "questions",
                           "questions must be an array of 1 to %d elements", (int)QN_DECISION_QUESTIONS_MAX);
    if (!d->ex->server->info.has_chat_template)
        return qn_api_fail(&d->error, 400, "unsupported", "input", "the model has no chat template");
    d->items = qn_calloc(n, sizeof *d->items);
    if (!d->items) return qn_api_fail_status(&d->error, QN_E_NOMEM);
    d->request.continue_final = 0;
    if (*d->ex->server->info.reasoning_mark) {
        d->variables = json_pack("{s:b,s:b}", "enable_thinking", 0, "thinking", 0);
        if (!d->variables) return qn_api_fail_status(&d->error, qn_fail_nomem(0));
        d->request.template_kwargs = d->variables;
    }
    int refused = qn_decision_read_input(&d->request, &d->error);
    for (size_t i = 0; i < n && !refused; i++) refused = make_item(d, questions, i);
    return refused;
}

/* ---- the job ------------------------------------------------------------------------------------------- */

static void write_usage(decision *d)
{
    qn_buf *b = &d->answer;
    qn_json_key(b, "usage");
    qn_json_open(b, '{');
    qn_json_put_int(b, "input_tokens", d->n_tokens);
    qn_buf_puts(
        b, ",\"input_tokens_details\":{\"cached_tokens\":0,\"cache_write_tokens\":0},\"output_tokens\":0,"
           "\"output_tokens_details\":{\"reasoning_tokens\":0}");
    qn_json_put_int(b, "total_tokens", d->n_tokens);
    qn_json_close(b, '}');
}

static qn_status classify(decision *d, const char *adapter)
{
    qn_prompt *prompts = qn_calloc(d->n_items, sizeof *prompts);
    qn_choices *choices = qn_calloc(d->n_items, sizeof *choices);
    const qn_generate_options sampling = {.adapter = adapter};
    const qn_classify_options o = {.sampling = &sampling, .prompt_choices = choices, .cancel = d->cancel};
    qn_status status = prompts && choices ? QN_OK : QN_E_NOMEM;
    for (size_t i = 0; status == QN_OK && i < d->n_items; i++) {
        prompts[i] = d->items[i].chat.prompt;
        choices[i] = (qn_choices){d->items[i].choices, d->items[i].question.n};
    }
    if (status == QN_OK) status = qn_classify(d->ex->server->model, prompts, d->n_items, &o, take_answer, d);
    qn_free(prompts);
    qn_free(choices);
    return status;
}

static void compute(decision *d)
{
    const qn_server *s = d->ex->server;
    const qn_api_request_limits limits = {.vocab_size = s->info.vocab_size};
    const char *adapter = NULL;
    if (qn_api_request_read(d->ex->body.data, d->ex->body.length, QN_REQUEST_DECISIONS, &limits, &d->request,
                            &d->error) ||
        qn_completion_check_model(s, d->request.model, &adapter, &d->error) || make_items(d))
        return;
    qn_buf_puts(&d->answer, "{\"answers\":[");
    const qn_status status = classify(d, adapter);
    if (d->error.status) return;
    if (status != QN_OK) {
        qn_api_fail_status(&d->error, status);
        return;
    }
    qn_json_close(&d->answer, ']');
    qn_json_put_text(&d->answer, "model", d->request.model ? d->request.model : s->options->model_name);
    write_usage(d);
    if (d->request.warnings.length) qn_buf_printf(&d->answer, ",\"warnings\":[%s]", d->request.warnings.data);
    qn_json_close(&d->answer, '}');
    if (d->answer.status != QN_OK) qn_api_fail_status(&d->error, d->answer.status);
}

static void run(qn_job *job)
{
    compute((decision *)(void *)job);
}

static void done(qn_job *job)
{
    decision *d = (decision *)(void *)job;
    if (d->error.status) {
        qn_exchange_fail(d->ex, &d->error);
    } else {
        d->ex->server->metrics.n_prompt_tokens += d->n_tokens;
        qn_exchange_reply(d->ex, 200, "application/json", NULL, d->answer.data, d->answer.length);
    }
    qn_exchange_release(d->ex);
}

static void client_gone(qn_exchange *ex)
{
    decision *d = ex->state;
    qn_cancel_set(d->cancel);
}

static void free_decision(qn_exchange *ex)
{
    decision *d = ex->state;
    for (size_t i = 0; i < d->n_items; i++) {
        item *t = &d->items[i];
        qn_buf_free(&t->question.text);
        qn_chat_prompt_free(&t->chat);
        json_decref(t->messages);
        qn_free(t->choices);
        qn_free(t->labels);
    }
    qn_free(d->items);
    json_decref(d->variables);
    qn_cancel_free(d->cancel);
    qn_api_request_free(&d->request);
    qn_buf_free(&d->answer);
    qn_free(d);
}

void qn_route_decisions(qn_exchange *ex)
{
    qn_api_error error;
    decision *d = qn_calloc(1, sizeof *d);
    if (!d || qn_cancel_new(&d->cancel) != QN_OK) {
        qn_free(d);
        qn_api_fail_status(&error, QN_E_NOMEM);
        qn_exchange_fail(ex, &error);
        return;
    }
    d->ex = ex;
    d->job = (qn_job){run, done, NULL};
    ex->state = d;
    ex->gone = client_gone;
    ex->free_state = free_decision;
    qn_exchange_hold(ex);
    qn_workers_push(ex->server->slow_workers, &d->job);
}
