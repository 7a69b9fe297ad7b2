/* qn_classify: the next token, its logits, and the probabilities of given answers.
 *
 * Prompts are evaluated at their last position, which gives the token and the first token of every answer;
 * then answers of more tokens behind their prompts, which are kept as prefixes meanwhile. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/lists/list_parts.h"
#include "base/mem.h"
#include "base/status.h"
#include "engine/sample/logprobs.h"
#include "engine/sample/sampler.h"

enum { LOGITS_BYTES = 16 << 20 /* that are kept at a time */ };

/* Answers as ids. */
typedef struct {
    qn_ids *ids;    /* [n] */
    int32_t **made; /* [n] encoded texts, or NULL */
    size_t n;
    int64_t longest;
} answers;

typedef struct {
    qn_prompt_row row;
    int32_t id, n_top;
    float logprob;
    qn_top_logprob top[QN_TOP_LOGPROBS_MAX];
    float *logits;          /* [vocab_size], or NULL */
    const answers *answers; /* NULL: none */
    answers own;
    qn_choice_score *scores; /* [answers->n] */
    double *rest;            /* [answers->n] logprobs of the tokens behind the first */
    int32_t *ids;            /* the prompt with each answer of more tokens behind */
} item;

typedef struct {
    qn_model *model;
    const qn_prompt *prompts;
    const qn_classify_options *o;
    qn_classify_fn *fn;
    void *user; /* of fn */
    qn_generate_options sampling;
    int64_t n_vocab, context;
    answers answers;       /* for all prompts */
    qn_list_memory memory; /* of these */
} job;

/* Each prompt, then each answer of more tokens than one behind its prompt; the row's tag is the answer's
 * index. */
enum { PASS_PROMPTS, PASS_ANSWERS, N_PASSES };

/* ---- answers ---- */

static void end_answers(answers *a)
{
    for (size_t i = 0; a->made && i < a->n; i++) qn_free(a->made[i]);
    qn_free(a->made);
    qn_free(a->ids);
    *a = (answers){0};
}

static qn_status encode_answer(const job *j, const qn_choice *c, size_t i, answers *a)
{
    if (c->ids) {
        a->ids[i] = (qn_ids){c->ids, c->n_ids};
    } else if (!c->text) {
        return qn_fail(QN_E_ARG, "choice %zu has neither a text nor ids", i);
    } else {
        int64_t n = 0;
        size_t n_bytes = c->text_bytes ? c->text_bytes : strlen(c->text);
        qn_status status = qn_model_encode(j->model, c->text, n_bytes, NULL, &a->made[i], &n);
        if (status != QN_OK) return qn_fail_prefix(status, "choice %zu", i);
        a->ids[i] = (qn_ids){a->made[i], n};
    }
    if (a->ids[i].n_ids < 1) return qn_fail(QN_E_ARG, "choice %zu has no tokens", i);
    for (int64_t k = 0; k < a->ids[i].n_ids; k++)
        if (a->ids[i].ids[k] < 0 || a->ids[i].ids[k] >= j->n_vocab)
            return qn_fail(QN_E_ARG, "choice %zu: token id %d is outside the vocabulary of %lld", i,
                           (int)a->ids[i].ids[k], (long long)j->n_vocab);
    if (a->ids[i].n_ids > a->longest) a->longest = a->ids[i].n_ids;
    return QN_OK;
}

/* a may be partly made on failure. */
static qn_status make_answers(const job *j, const qn_choices *choices, answers *a)
{
    if (choices->n < 1 || choices->n > QN_CHOICES_MAX || !choices->choice)
        return qn_fail(QN_E_ARG, "choices: %zu are given, 1 to %d are allowed", choices->n,
                       (int)QN_CHOICES_MAX);
    a->ids = qn_alloc_array(choices->n, sizeof *a->ids);
    a->made = qn_calloc(choices->n, sizeof *a->made);
    if (!a->ids || !a->made) return QN_E_NOMEM;
    a->n = choices->n;
    for (size_t i = 0; i < a->n; i++) QN_TRY(encode_answer(j, &choices->choice[i], i, a));
    return QN_OK;
}

/* ---- what the model says ---- */

static qn_status draw(const job *j, item *t, const float *logits)
{
    qn_sampler *sampler = NULL;
    qn_words *words = NULL;
    qn_status status = QN_OK;
    if (qn_words_are_needed(&j->sampling))
        status = qn_words_new(NULL, &j->sampling, j->n_vocab, t->row.n_ids, &words);
    if (status == QN_OK) status = qn_sampler_new(NULL, &j->sampling, j->n_vocab, words, &sampler);
    if (status == QN_OK) status = qn_sampler_accept(sampler, t->row.ids, t->row.n_ids);
    if (status == QN_OK) status = qn_sampler_draw(sampler, logits, t->row.n_ids, &t->id);
    qn_sampler_free(sampler);
    qn_words_free(words);
    return status;
}

/* The prompt's last position. */
static qn_status take_last(const job *j, item *t, const float *logits)
{
    qn_logprobs l;
    QN_TRY(qn_logprobs_read(NULL, logits, j->n_vocab, &l));
    QN_TRY(draw(j, t, logits));
    if (j->sampling.logprobs) {
        t->logprob = (float)qn_logprobs_of(&l, t->id);
        t->n_top = qn_logprobs_top(&l, j->sampling.n_top_logprobs, t->top);
    }
    if (t->logits) memcpy(t->logits, logits, (size_t)j->n_vocab * sizeof *logits);
    for (size_t i = 0; t->answers && i < t->answers->n; i++) {
        const qn_ids *a = &t->answers->ids[i];
        t->scores[i] = (qn_choice_score){.logprob = qn_logprobs_of(&l, a->ids[0]), .n_tokens = a->n_ids};
    }
    return QN_OK;
}

/* Positions behind the prompt: the one with index k in the answer tells the probability of its next token. */
static qn_status take_answer(const job *j, item *t, int64_t i_answer, int64_t position, int64_t n,
                             const float *logits)
{
    const qn_ids *a = &t->answers->ids[i_answer];
    int64_t k = position - t->row.n_ids;
    if (k == 0) t->rest[i_answer] = 0;
    for (int64_t i = 0; i < n; i++, k++, logits += j->n_vocab) {
        qn_logprobs l;
        QN_TRY(qn_logprobs_read(NULL, logits, j->n_vocab, &l));
        t->rest[i_answer] += qn_logprobs_of(&l, a->ids[k + 1]);
    }
    return QN_OK;
}

static qn_status take(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *logits)
{
    const job *j = user;
    item *t = (item *)row->owner;
    qn_status status =
        row->tag < 0 ? take_last(j, t, logits) : take_answer(j, t, row->tag, position, n, logits);
    if (status != QN_OK) qn_prompt_row_fail(&t->row, status);
    return QN_OK;
}

static size_t find_best(const qn_choice_score *scores, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (scores[i].logprob > scores[best].logprob) best = i;
    return best;
}

/* Adds up an item's scores and normalises them. Returns the best. */
static size_t finish_scores(item *t)
{
    const size_t n = t->answers ? t->answers->n : 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++) t->scores[i].logprob += t->rest[i];
    size_t best = find_best(t->scores, n);
    if (!n || t->scores[best].logprob == -INFINITY) return best;
    for (size_t i = 0; i < n; i++) {
        t->scores[i].probability = exp(t->scores[i].logprob - t->scores[best].logprob);
        sum += t->scores[i].probability;
    }
    for (size_t i = 0; i < n; i++) t->scores[i].probability /= sum;
    return best;
}

/* ---- items of the list ---- */

static size_t count_ids(const item *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->answers->n; i++)
        if (t->answers->ids[i].n_ids > 1) n += (size_t)(t->row.n_ids + t->answers->ids[i].n_ids - 1);
    return n;
}

static qn_status prepare(void *user, size_t i_prompt, void *made)
{
    const job *j = user;
    item *t = made;
    qn_prompt_row_make(j->model, &j->prompts[i_prompt], j->context, &t->row);
    QN_TRY(t->row.status);
    if (j->answers.n) t->answers = &j->answers;
    if (j->o->prompt_choices) {
        QN_TRY(make_answers(j, &j->o->prompt_choices[i_prompt], &t->own));
        t->answers = &t->own;
    }
    if (j->o->logits && !(t->logits = qn_alloc_array((size_t)j->n_vocab, sizeof *t->logits)))
        return QN_E_NOMEM;
    if (!t->answers) return QN_OK;
    if (t->answers->longest > j->context - t->row.n_ids)
        return qn_fail(QN_E_ARG, "the prompt has %lld tokens and an answer %lld, the context holds %lld",
                       (long long)t->row.n_ids, (long long)t->answers->longest, (long long)j->context);
    t->scores = qn_calloc(t->answers->n, sizeof *t->scores);
    t->rest = qn_calloc(t->answers->n, sizeof *t->rest);
    t->ids = qn_alloc_array(count_ids(t), sizeof *t->ids);
    return t->scores && t->rest && t->ids ? QN_OK : QN_E_NOMEM;
}

static int64_t add_rows(void *user, int pass, void *made, qn_wanted_row *rows)
{
    item *t = made;
    const int64_t n = t->row.n_ids;
    int32_t *ids = t->ids;
    int64_t n_rows = 0;
    if (pass == PASS_PROMPTS) {
        if (rows) *rows = (qn_wanted_row){{t->row.ids, n}, n - 1, &t->row, -1, NULL};
        return 1;
    }
    for (size_t i = 0; t->answers && i < t->answers->n; i++) {
        const qn_ids *a = &t->answers->ids[i];
        if (a->n_ids < 2) continue;
        if (rows) {
            memcpy(ids, t->row.ids, (size_t)n * sizeof *ids);
            memcpy(ids + n, a->ids, (size_t)(a->n_ids - 1) * sizeof *ids);
            rows[n_rows] = (qn_wanted_row){{ids, n + a->n_ids - 1}, n, &t->row, (int64_t)i, NULL};
        }
        ids += n + a->n_ids - 1;
        n_rows++;
    }
    return n_rows;
}

static qn_status give(void *user, size_t i_prompt, void *made)
{
    const job *j = user;
    item *t = made;
    qn_classify_result r = {.i_prompt = i_prompt,
                            .status = t->row.status,
                            .message = qn_prompt_row_message(&t->row),
                            .n_tokens = t->row.n_ids};
    if (r.status == QN_OK) {
        r.id = t->id;
        r.logprob = t->logprob;
        r.top = t->n_top ? t->top : NULL;
        r.n_top = t->n_top;
        r.logits = t->logits;
        r.best_choice = finish_scores(t);
        r.choices = t->scores;
        r.n_choices = t->answers ? t->answers->n : 0;
    }
    return j->fn(j->user, &r);
}

static void end(void *made)
{
    item *t = made;
    end_answers(&t->own);
    qn_free(t->logits);
    qn_free(t->scores);
    qn_free(t->rest);
    qn_free(t->ids);
}

static qn_status run(job *j, size_t n_prompts)
{
    const qn_generate_options *s = &j->sampling;
    const size_t n_kept = LOGITS_BYTES / sizeof(float) / (size_t)j->n_vocab;
    const qn_logits_options logits = {.adapter = s->adapter,
                                      .no_prefix_cache = s->no_prefix_cache,
                                      .cache_salt = s->cache_salt,
                                      .tenant = s->tenant,
                                      .priority = s->priority,
                                      .cancel = j->o->cancel};
    return qn_list_work_run(&(qn_list_work){.model = j->model,
                                            .logits = &logits,
                                            .item_bytes = sizeof(item),
                                            .items_max = !j->o->logits ? 0
                                                         : n_kept      ? n_kept
                                                                       : 1,
                                            .n_passes = N_PASSES,
                                            .user = j,
                                            .prepare = prepare,
                                            .add_rows = add_rows,
                                            .take = take,
                                            .give = give,
                                            .end = end},
                            n_prompts);
}

qn_status qn_classify(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                      const qn_classify_options *options, qn_classify_fn *fn, void *user)
{
    const qn_classify_options defaults = {0};
    qn_model_info info;
    job j = {.model = model,
             .prompts = prompts,
             .o = options ? options : &defaults,
             .fn = fn,
             .user = user,
             .memory = {.model = model}};
    if (!model || !prompts || !fn) return qn_fail(QN_E_ARG, "qn_classify: an argument is NULL");
    if (!n_prompts) return qn_fail(QN_E_ARG, "qn_classify: no prompts");
    if (j.o->sampling) j.sampling = *j.o->sampling;
    QN_TRY(qn_sampler_check(&j.sampling));
    if (j.sampling.n_bad_words) return qn_fail(QN_E_UNSUPPORTED, "bad_words: qn_classify takes bad_ids");
    if (j.sampling.dry_multiplier > 0)
        return qn_fail(QN_E_UNSUPPORTED, "dry_multiplier: qn_classify draws no more than one token");
    if (!j.sampling.seed) j.sampling.seed = qn_sampler_fresh_seed();
    QN_TRY(qn_model_get_info(model, &info));
    j.n_vocab = info.vocab_size;
    j.context = info.context_size;
    const int64_t mark = qn_mem_thread_bytes();
    qn_status status = QN_OK;
    if (j.o->choices.n || j.o->choices.choice) status = make_answers(&j, &j.o->choices, &j.answers);
    if (status == QN_OK) status = qn_list_memory_hold(&j.memory, mark);
    if (status == QN_OK) status = run(&j, n_prompts);
    end_answers(&j.answers);
    qn_list_memory_release(&j.memory);
    return status;
}
