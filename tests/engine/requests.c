#include "tests/engine/requests.h"

#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "base/random.h"

int64_t qn_test_draw(qn_test_draws *d, int64_t n)
{
    return (int64_t)(qn_random_unit(d->seed, d->n++) * (double)n);
}

static int chance(qn_test_draws *d, int64_t one_in)
{
    return qn_test_draw(d, one_in) == 0;
}

qn_status qn_test_world_open(const qn_test_world *w, const qn_model_options *o, qn_model **out)
{
    static const char *const names[] = {"one", "two"};
    qn_model_options with = *o;
    qn_model *model = NULL;
    with.precision = w->precision;
    with.kv_type = w->kv_type;
    with.context_size = w->context_size;
    qn_status status = qn_model_open(w->path, &with, &model);
    for (int i = 0; status == QN_OK && i < 2; i++)
        status = qn_adapter_load(model, &(qn_adapter_options){names[i], w->adapters[i], 1});
    if (status == QN_OK)
        *out = model;
    else
        qn_model_close(&model);
    return status;
}

/* ---- making ---- */

static void add_ids(qn_test_request *r, int64_t row, qn_test_draws *d, int64_t n, int32_t id_end)
{
    for (; n > 0 && r->rows[row].n_ids < QN_TEST_PROMPT_MAX; n--)
        r->ids[row][r->rows[row].n_ids++] = (int32_t)(1 + qn_test_draw(d, id_end - 1));
}

/* The beginning of one of a few texts, as long as it likes: prefixes end inside pages and on their edges. */
static void add_shared(qn_test_request *r, int64_t row, qn_test_draws *d, int32_t id_end)
{
    enum { TEXTS = 3, LONGEST = 160, PAGE = 32 };
    qn_test_draws text = {.seed = 1000 + (uint64_t)qn_test_draw(d, TEXTS)};
    int64_t n = qn_test_draw(d, LONGEST);
    if (chance(d, 3)) n = n / PAGE * PAGE;
    add_ids(r, row, &text, n, id_end);
}

static void add_earlier(qn_test_request *r, int64_t row, const qn_test_request *before,
                        const qn_test_answer *answer, qn_test_draws *d)
{
    int64_t from = qn_test_draw(d, before->n_rows), n = before->rows[from].n_ids;
    const qn_test_row *a = &answer->rows[from];
    if (n + a->n > QN_TEST_PROMPT_MAX - 16) return;
    memcpy(r->ids[row], before->ids[from], (size_t)n * sizeof r->ids[row][0]);
    memcpy(r->ids[row] + n, a->ids, (size_t)a->n * sizeof r->ids[row][0]);
    r->rows[row].n_ids = n + a->n;
}

static void choose_sampling(qn_test_request *r, qn_test_draws *d, int32_t id_end)
{
    static const char *const stops[] = {"e", "th", "\n\n"};
    qn_generate_options *o = &r->o;
    o->max_tokens = 1 + qn_test_draw(d, chance(d, 4) ? QN_TEST_ANSWER_MAX : 24);
    o->seed = 1 + (uint64_t)qn_test_draw(d, 1000);
    if (!chance(d, 3)) o->temperature = 0.5f + (float)qn_test_draw(d, 10) / 10;
    if (chance(d, 2)) o->top_p = 0.9f;
    if (chance(d, 4)) o->min_p = 0.02f;
    if (chance(d, 3)) o->top_k = 1 + (int32_t)qn_test_draw(d, 50);
    if (chance(d, 3)) o->repeat_penalty = 1.2f;
    if (chance(d, 5)) o->presence_penalty = 0.5f;
    if (chance(d, 5)) o->frequency_penalty = -0.25f;
    o->ignore_eos = !chance(d, 3);
    o->logprobs = chance(d, 2);
    if (o->logprobs) o->n_top_logprobs = (int32_t)qn_test_draw(d, QN_TEST_TOP_MAX + 1);
    if (chance(d, 6)) {
        for (int i = 0; i < 2; i++)
            r->bias[i] = (qn_logit_bias){(int32_t)qn_test_draw(d, id_end), (float)qn_test_draw(d, 20) - 10};
        o->logit_bias = r->bias;
        o->n_logit_bias = 2;
    }
    if (chance(d, 6)) {
        r->stop = stops[qn_test_draw(d, 3)];
        o->stop_strings = &r->stop;
        o->n_stop_strings = 1;
    }
    o->n_draft = chance(d, 2) ? (int32_t)qn_test_draw(d, QN_DRAFT_TOKENS_MAX + 1) : 0;
    if (chance(d, 8)) { /* it says one thing again and again: guesses come true */
        r->bias[0] = (qn_logit_bias){1 + (int32_t)qn_test_draw(d, id_end - 1), 60};
        o->logit_bias = r->bias;
        o->n_logit_bias = 1;
        o->n_draft = 1 + (int32_t)qn_test_draw(d, QN_DRAFT_TOKENS_MAX);
        o->repeat_penalty = o->presence_penalty = o->frequency_penalty = 0;
        o->max_tokens = QN_TEST_ANSWER_MAX;
    }
}

/* Steps that look back or have a state, in every second request. */
static void choose_steps(qn_test_request *r, qn_test_draws *d, int32_t id_end)
{
    qn_generate_options *o = &r->o;
    if (chance(d, 2)) return;
    if (chance(d, 4)) o->typical_p = 0.8f;
    if (chance(d, 5)) o->top_n_sigma = 1.5f;
    if (chance(d, 4)) o->xtc_probability = 0.5f;
    if (chance(d, 4)) o->dynatemp_range = 0.5f;
    if (chance(d, 3)) o->mirostat = 1 + (int32_t)qn_test_draw(d, 2);
    if (chance(d, 3)) o->repeat_last_n = 1 + (int32_t)qn_test_draw(d, 20);
    if (o->n_logit_bias != 1 && chance(d, 3)) { /* not where it says one thing again and again */
        o->dry_multiplier = 1.5f;
        o->dry_allowed_length = (int32_t)qn_test_draw(d, 3);
        o->dry_penalty_last_n = (int32_t)qn_test_draw(d, 40);
    }
    if (chance(d, 5)) {
        for (int i = 0; i < 2; i++) r->bad[i] = (int32_t)qn_test_draw(d, id_end);
        r->bad_word = (qn_ids){r->bad, 1 + qn_test_draw(d, 2)};
        o->bad_ids = &r->bad_word;
        o->n_bad_ids = 1;
    }
    if (o->n_logit_bias == 0 && chance(d, 8)) {
        for (int i = 0; i < QN_TEST_ALLOWED; i++) r->allowed[i] = (int32_t)qn_test_draw(d, id_end);
        o->allowed_ids = r->allowed;
        o->n_allowed_ids = QN_TEST_ALLOWED;
    }
}

/* With what, for whom, and until when. */
static void choose_place(qn_test_request *r, qn_test_draws *d)
{
    static const char *const adapters[] = {NULL, NULL, "one", "two", "none"};
    static const char *const tenants[] = {NULL, "first", "second"};
    qn_generate_options *o = &r->o;
    o->adapter = adapters[qn_test_draw(d, 5)];
    if (chance(d, 4)) {
        for (int64_t i = 0; i < r->n_rows; i++) r->row_adapters[i] = adapters[qn_test_draw(d, 5)];
        o->row_adapters = r->row_adapters;
    }
    o->rotate = chance(d, 8);
    o->tenant = tenants[qn_test_draw(d, 3)];
    o->priority = chance(d, 4) ? (int32_t)qn_test_draw(d, 3) - 1 : 0;
    if (chance(d, 8)) o->cache_salt = "salt";
    o->no_prefix_cache = chance(d, 10);
    r->polls = chance(d, 2);
    r->end_after = chance(d, 5) ? qn_test_draw(d, 20) : -1;
    r->close = chance(d, 3);
    if (chance(d, 16)) o->deadline_ms = 1 + qn_test_draw(d, 30);
}

void qn_test_request_make(const qn_test_world *w, uint64_t seed, const qn_test_request *before,
                          const qn_test_answer *answers, int64_t n_before, qn_test_request *r)
{
    qn_test_draws d = {.seed = seed};
    memset(r, 0, sizeof *r);
    r->n_rows = chance(&d, 5) ? 1 + qn_test_draw(&d, QN_TEST_REQUEST_ROWS) : 1;
    for (int64_t i = 0; i < r->n_rows; i++) {
        int64_t kind = qn_test_draw(&d, 4);
        r->rows[i].ids = r->ids[i];
        if (kind == 0 && n_before) {
            int64_t j = qn_test_draw(&d, n_before);
            add_earlier(r, i, &before[j], &answers[j], &d);
        } else if (kind < 3) {
            add_shared(r, i, &d, w->id_end);
        }
        add_ids(r, i, &d, 1 + qn_test_draw(&d, chance(&d, 4) ? 200 : 12), w->id_end);
    }
    choose_sampling(r, &d, w->id_end);
    choose_steps(r, &(qn_test_draws){.seed = seed + 50021}, w->id_end);
    choose_place(r, &d);
    qn_test_draws of_prompt = {.seed = seed + 70001};
    r->o.prompt_logprobs = chance(&of_prompt, 4);
    if (r->o.prompt_logprobs)
        r->o.n_prompt_top_logprobs = (int32_t)qn_test_draw(&of_prompt, QN_TEST_TOP_MAX + 1);
}

/* ---- running ---- */

/* One generation while it is read. */
typedef struct {
    const qn_test_request *r;
    unsigned how;
    qn_generation *g;
    qn_test_answer *out;
    sem_t woken;
    qn_buf *why;
} run;

static int fail(run *x, const char *what)
{
    qn_buf_printf(x->why, "%s: %s", what, qn_last_error());
    return 0;
}

static void wake(void *user)
{
    sem_post(user);
}

static int may_fail(const run *x, qn_status status)
{
    return (x->how & QN_TEST_MAY_FAIL) && status == QN_E_NOMEM;
}

static void mix(uint64_t *sum, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        *sum = (*sum ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
}

/* A sum of all figures of a row's prompt, once its first event is there. A row that was ended before has none. */
static int take_prompt(run *x, int64_t i_row)
{
    const qn_test_request *r = x->r;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < r->rows[i_row].n_ids; i++) {
        qn_prompt_token t;
        if (qn_generation_get_prompt_token(x->g, i_row, i, &t) != QN_OK)
            return x->out->rows[i_row].end != QN_END_NONE || fail(x, "qn_generation_get_prompt_token");
        if (t.id != r->rows[i_row].ids[i] || (i && (t.n_top != r->o.n_prompt_top_logprobs || t.rank < 1))) {
            qn_buf_printf(x->why,
                          "row %lld: the prompt's token %lld has the id %d, %d likeliest ones, rank %d",
                          (long long)i_row, (long long)i, (int)t.id, (int)t.n_top, (int)t.rank);
            return 0;
        }
        if (i) mix(&sum, &t.logprob, sizeof t.logprob);
        mix(&sum, &t.rank, sizeof t.rank);
        for (int32_t k = 0; k < t.n_top; k++) mix(&sum, &t.top[k], sizeof t.top[k]);
    }
    x->out->rows[i_row].prompt_sum = sum;
    return 1;
}

/* Takes an event over; 0: it must not have come. */
static int take(run *x, const qn_token *t, qn_status status)
{
    if (t->row < 0 || t->row >= x->r->n_rows) {
        qn_buf_printf(x->why, "an event of row %lld", (long long)t->row);
        return 0;
    }
    qn_test_row *row = &x->out->rows[t->row];
    if (row->end != QN_END_NONE || (t->end == QN_END_NONE && row->n == QN_TEST_ANSWER_MAX)) {
        qn_buf_printf(x->why, "row %lld: an event behind the last", (long long)t->row);
        return 0;
    }
    if (t->text_bytes > sizeof row->text - row->text_bytes) {
        qn_buf_puts(x->why, "a long text");
        return 0;
    }
    memcpy(row->text + row->text_bytes, t->text, t->text_bytes);
    row->text_bytes += t->text_bytes;
    row->end = t->end;
    row->status = status;
    if (x->r->o.prompt_logprobs && !row->n && !take_prompt(x, t->row)) return 0;
    if (t->end != QN_END_NONE) return status == QN_OK || may_fail(x, status) || fail(x, "a row failed");
    if (t->position != x->r->rows[t->row].n_ids + row->n) {
        qn_buf_printf(x->why, "row %lld: token %lld has the position %lld", (long long)t->row,
                      (long long)row->n, (long long)t->position);
        return 0;
    }
    row->ids[row->n] = t->id;
    row->logprobs[row->n] = t->logprob;
    row->n_top[row->n] = t->n_top;
    if (t->n_top) memcpy(row->top[row->n], t->top, (size_t)t->n_top * sizeof *t->top);
    row->n++;
    return 1;
}

static int next(run *x, qn_token *t, qn_status *status)
{
    enum { PATIENCE_S = 60 };
    if (!(x->how & QN_TEST_BACKGROUND) || !x->r->polls) {
        *status = qn_generation_next(x->g, t);
        return 1;
    }
    for (int is_there = 0;;) {
        struct timespec until;
        *status = qn_generation_poll(x->g, t, &is_there);
        if (is_there) return 1;
        if (*status != QN_OK) return fail(x, "qn_generation_poll");
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        if (sem_timedwait(&x->woken, &until) != 0) {
            qn_buf_puts(x->why, "nobody was woken");
            return 0;
        }
    }
}

static int read_all(run *x)
{
    int64_t n_tokens = 0;
    for (int64_t n_open = x->r->n_rows; n_open > 0;) {
        qn_token t;
        qn_status status;
        if (n_tokens == x->r->end_after && x->r->close) return 1;
        if (n_tokens == x->r->end_after) qn_generation_cancel(x->g);
        if (!next(x, &t, &status) || !take(x, &t, status)) return 0;
        n_open -= t.end != QN_END_NONE;
        n_tokens += t.end == QN_END_NONE;
    }
    return 1;
}

int qn_test_request_run(qn_model *model, const qn_test_request *r, unsigned how, qn_test_answer *out,
                        qn_buf *why)
{
    run x = {.r = r, .how = how, .out = out, .why = why};
    qn_generate_options o = r->o;
    memset(out, 0, sizeof *out);
    out->is_whole = r->end_after < 0 && !r->o.deadline_ms;
    sem_init(&x.woken, 0, 0);
    o.notify = wake;
    o.notify_user = &x.woken;
    const qn_prompt prompt = {.rows = r->rows, .n_rows = r->n_rows};
    qn_status status = qn_generation_open(model, &prompt, &o, &x.g);
    int good = status == QN_OK || may_fail(&x, status) || fail(&x, "qn_generation_open");
    if (status == QN_OK) {
        qn_generation_stats stats;
        good = read_all(&x);
        if (qn_generation_get_stats(x.g, &stats) == QN_OK) out->n_cached = stats.n_cached_tokens;
    } else {
        out->is_whole = 0;
    }
    qn_generation_close(x.g);
    sem_destroy(&x.woken);
    return good;
}

/* ---- comparing ---- */

static int row_agrees(const qn_test_row *e, const qn_test_row *g, int is_whole, qn_buf *why)
{
    if (e->prompt_sum && g->prompt_sum && e->prompt_sum != g->prompt_sum) {
        qn_buf_puts(why, "log-probabilities of the prompt");
        return 0;
    }
    for (int64_t i = 0; i < g->n; i++) {
        if (i >= e->n || g->ids[i] != e->ids[i]) {
            qn_buf_printf(why, "token %lld of %lld is %d, expected %d of %lld", (long long)i, (long long)g->n,
                          (int)g->ids[i], i < e->n ? (int)e->ids[i] : -1, (long long)e->n);
            return 0;
        }
        if (memcmp(&g->logprobs[i], &e->logprobs[i], sizeof g->logprobs[i]) || g->n_top[i] != e->n_top[i] ||
            memcmp(g->top[i], e->top[i], sizeof g->top[i])) {
            qn_buf_printf(why, "log-probabilities of token %lld: %.9g, expected %.9g, or the likeliest",
                          (long long)i, (double)g->logprobs[i], (double)e->logprobs[i]);
            return 0;
        }
    }
    /* A stop string may be found in what had been held back when somebody ended it. */
    int was_ended = g->end == QN_END_NONE || g->end == QN_END_CANCELLED || g->end == QN_END_DEADLINE ||
                    (g->end == QN_END_STOP_STRING && g->n < e->n);
    if ((!is_whole && was_ended) || g->end == QN_END_ERROR) return 1; /* it was allowed to fail */
    if (g->n == e->n && g->end == e->end && g->text_bytes == e->text_bytes &&
        memcmp(g->text, e->text, g->text_bytes) == 0)
        return 1;
    qn_buf_printf(why, "%s: %lld tokens, %s, %zu bytes of text; expected %lld, %s, %zu",
                  is_whole ? "left alone" : "ended", (long long)g->n, qn_end_name(g->end), g->text_bytes,
                  (long long)e->n, qn_end_name(e->end), e->text_bytes);
    return 0;
}

int qn_test_answer_agrees(const qn_test_request *r, const qn_test_answer *expected, const qn_test_answer *got,
                          qn_buf *why)
{
    for (int64_t i = 0; i < r->n_rows; i++) {
        if (row_agrees(&expected->rows[i], &got->rows[i], got->is_whole, why)) continue;
        qn_buf_printf(why, " (row %lld of %lld, prompt of %lld)", (long long)i, (long long)r->n_rows,
                      (long long)r->rows[i].n_ids);
        return 0;
    }
    return 1;
}
