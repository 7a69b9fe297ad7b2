#include "engine/schedule/prompt_logprobs.h"

#include <math.h>

#include "base/mem.h"

typedef struct {
    float logprob;
    int32_t id, rank, n_top;
} place;

struct qn_prompt_logprobs {
    int64_t n_prompt, n_noted; /* n_noted: rows; row i is of the token at position i + 1 */
    int32_t n_top, first;
    place *places;       /* [n_prompt - 1] */
    qn_top_logprob *top; /* [n_prompt - 1, n_top] */
};

qn_status qn_prompt_logprobs_new(int32_t first, int64_t n_prompt, int32_t n_top, qn_prompt_logprobs **out)
{
    const size_t n_rows = (size_t)(n_prompt - 1);
    qn_prompt_logprobs *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    p->n_prompt = n_prompt;
    p->n_top = n_top;
    p->first = first;
    if (n_rows) p->places = qn_alloc_array(n_rows, sizeof *p->places);
    if (n_rows && n_top) p->top = qn_alloc_array(n_rows * (size_t)n_top, sizeof *p->top);
    if (n_rows && (!p->places || (n_top && !p->top))) {
        qn_prompt_logprobs_free(p);
        return QN_E_NOMEM;
    }
    *out = p;
    return QN_OK;
}

void qn_prompt_logprobs_free(qn_prompt_logprobs *p)
{
    if (!p) return;
    qn_free(p->places);
    qn_free(p->top);
    qn_free(p);
}

int64_t qn_prompt_logprobs_wanted(const qn_prompt_logprobs *p)
{
    return p && p->n_noted < p->n_prompt - 1 ? p->n_noted : -1;
}

/* 1 for the likeliest token; on a tie the lower id comes first. */
static int32_t rank_of(const qn_logprobs *l, int32_t id)
{
    const float own = l->logits[id];
    int32_t rank = 1;
    for (int64_t i = 0; i < l->n_vocab; i++) rank += l->logits[i] > own || (l->logits[i] == own && i < id);
    return rank;
}

void qn_prompt_logprobs_note(qn_prompt_logprobs *p, const qn_logprobs *row, int32_t id)
{
    place *at = &p->places[p->n_noted];
    at->id = id;
    at->logprob = (float)qn_logprobs_of(row, id);
    at->rank = rank_of(row, id);
    at->n_top = p->n_top ? qn_logprobs_top(row, p->n_top, p->top + p->n_noted * p->n_top) : 0;
    p->n_noted++;
}

int qn_prompt_logprobs_get(const qn_prompt_logprobs *p, int64_t position, qn_prompt_token *out)
{
    if (position < 0 || position > p->n_noted) return 0;
    *out = (qn_prompt_token){.id = p->first, .logprob = NAN};
    if (position == 0) return 1;
    const place *at = &p->places[position - 1];
    out->id = at->id;
    out->logprob = at->logprob;
    out->rank = at->rank;
    out->n_top = at->n_top;
    if (at->n_top) out->top = p->top + (position - 1) * p->n_top;
    return 1;
}
