/* The part of qn_bench_run that looks at answers: greedy decoding of fixed prompts, which must give the same
 * ids again, in company and behind a prefix that was kept, and the perplexity of a built-in text. */
#include <math.h>
#include <quern/classify.h>
#include <quern/tokenizer.h>
#include <string.h>

#include "api/bench_parts.h"
#include "base/mem.h"
#include "base/status.h"

/* Changing these makes answers and perplexities of other versions incomparable. */
static const char *const prompts[QN_BENCH_PROMPTS] = {
    "The capital of France is",
    "1, 2, 3, 4, 5,",
    "Once upon a time there was a little",
    "def add(a, b):\n    return",
};
static const char text[] = "A river begins as a small stream in the hills, where rain and melting snow run "
                           "together between the stones. "
                           "As it flows down to the plain, other streams join it, and it grows wider and "
                           "slower. People have always built "
                           "their towns near rivers, because a river gives water to drink, fish to eat, and "
                           "a road on which boats can carry "
                           "goods from one town to the next. In spring, when the snow melts, the water may "
                           "rise above the banks and cover "
                           "the fields. The flood is dangerous, but it also leaves behind a layer of rich "
                           "soil in which wheat grows well. "
                           "At the end of its way the river reaches the sea, where its water mixes with the "
                           "salt water of the waves, rises "
                           "into the air as vapour, and one day falls again as rain on the hills.";

/* The fixed prompts as ids, and answers to each of them. */
typedef struct {
    int32_t *ids[QN_BENCH_PROMPTS];
    qn_ids rows[QN_BENCH_PROMPTS];
    int32_t room[QN_BENCH_PROMPTS][QN_BENCH_IDS];
    qn_bench_row answers[QN_BENCH_PROMPTS];
} questions;

/* Prompts that do not fit the context with their answer are left out. */
static qn_status encode_prompts(qn_bench *b, questions *q, int32_t *n)
{
    for (int i = 0; i < QN_BENCH_PROMPTS; i++) {
        int32_t *ids = NULL;
        int64_t n_ids = 0;
        QN_TRY(qn_bench_encode(b, prompts[i], &ids, &n_ids));
        if (n_ids < 1 || n_ids + QN_BENCH_IDS > b->context) {
            qn_buffer_free(ids);
            continue;
        }
        b->report->answers[*n].prompt = prompts[i];
        q->ids[*n] = ids;
        q->rows[*n] = (qn_ids){ids, n_ids};
        q->answers[*n].ids = q->room[*n];
        ++*n;
    }
    return QN_OK;
}

/* Each alone, or all together. */
static qn_status ask(qn_bench *b, questions *q, int32_t n, int together, const char *salt)
{
    const qn_generate_options o = {.max_tokens = QN_BENCH_IDS, .no_prefix_cache = !salt, .cache_salt = salt};
    if (together) return qn_bench_generate(b, q->rows, n, &o, q->answers, NULL);
    for (int32_t i = 0; i < n; i++) QN_TRY(qn_bench_generate(b, &q->rows[i], 1, &o, &q->answers[i], NULL));
    return QN_OK;
}

/* The least share of equal ids beside the report's answers. */
static double equal_share(const qn_bench *b, const questions *q, int32_t n)
{
    double least = 1;
    for (int32_t i = 0; i < n; i++) {
        const qn_bench_answer *a = &b->report->answers[i];
        double share = qn_bench_equal(a->ids, a->n_ids, q->answers[i].ids, q->answers[i].n_ids);
        if (share < least) least = share;
    }
    return least;
}

static qn_status ask_all(qn_bench *b, questions *q)
{
    static const struct {
        const char *name, *rule;
        int together, with_prefixes;
    } ways[] = {{"greedy_again", "value = bound: the share of equal ids in a second run", 0, 0},
                {"greedy_together", "value = bound: the share of equal ids with all prompts together", 1, 0},
                {"greedy_kept", "value = bound: the share of equal ids behind a kept prefix", 0, 1}};
    int32_t n = 0;
    QN_TRY(encode_prompts(b, q, &n));
    if (!n) return QN_OK;
    QN_TRY(ask(b, q, n, 0, NULL));
    for (int32_t i = 0; i < n; i++) {
        qn_bench_answer *a = &b->report->answers[i];
        a->n_ids = (int32_t)q->answers[i].n_ids;
        memcpy(a->ids, q->answers[i].ids, (size_t)a->n_ids * sizeof *a->ids);
    }
    b->report->n_answers = n;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char room[QN_BENCH_SALT];
        const char *salt = ways[i].with_prefixes ? qn_bench_salt(b, room) : NULL;
        if (salt) QN_TRY(ask(b, q, n, 0, salt)); /* leaves the prefixes */
        qn_status status = ask(b, q, n, ways[i].together, salt);
        if (status == QN_E_UNSUPPORTED) continue;
        QN_TRY(status);
        qn_bench_check_add(b, ways[i].name, ways[i].rule, equal_share(b, q, n), 1, 0);
    }
    return QN_OK;
}

static qn_status note_score(void *user, const qn_score_result *r)
{
    qn_bench_report *report = user;
    if (r->status != QN_OK) return qn_fail(r->status, "%s", r->message);
    report->perplexity = r->perplexity;
    report->n_scored = r->n_scored;
    return QN_OK;
}

static qn_status score_text(qn_bench *b)
{
    const qn_prompt prompt = {.text = text};
    const qn_score_options o = {.stride = b->context / 2 > 0 ? b->context / 2 : 1};
    qn_status status = qn_score(b->model, &prompt, 1, &o, note_score, b->report);
    if (status == QN_E_UNSUPPORTED) return QN_OK;
    QN_TRY(status);
    qn_bench_check_add(b, "perplexity", "value <= bound: the perplexity of the built-in text",
                       b->report->perplexity,
                       b->o.max_perplexity > 0 ? b->o.max_perplexity : (double)b->n_vocab, 1);
    return QN_OK;
}

qn_status qn_bench_quality(qn_bench *b)
{
    questions q = {0};
    qn_status status = ask_all(b, &q);
    for (int i = 0; i < QN_BENCH_PROMPTS; i++) qn_buffer_free(q.ids[i]);
    if (status == QN_OK) status = score_text(b);
    if (status == QN_OK) b->report->parts |= 1u << QN_BENCH_QUALITY;
    return status;
}
