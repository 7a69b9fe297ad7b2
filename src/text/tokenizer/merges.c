#include "text/tokenizer/merges.h"

#include <string.h>

static qn_status missing(const qn_merges *m, int i, const char *which)
{
    size_t n_left = m->n_left[i], n_right = m->length[i] - n_left;
    const char *left = m->text.data + m->start[i];
    return qn_fail(QN_E_FORMAT, "%s: merge %u ('%.*s' + '%.*s'): the %s token is not in the vocabulary",
                   m->what, m->rank + (uint32_t)i, (int)(n_left < 100 ? n_left : 100), left,
                   (int)(n_right < 100 ? n_right : 100), left + n_left, which);
}

qn_status qn_merges_finish(qn_merges *m)
{
    enum { LEFT, RIGHT, MERGED, ROLES };
    static const char *const roles[] = {"left", "right", "merged"};
    qn_vocab_lookup lookups[QN_MERGES_GROUP * ROLES];
    int ends[QN_MERGES_GROUP], n = 2 * m->n; /* where the merged text of each was looked up */
    for (int i = 0; i < m->n; i++) {
        const char *text = m->text.data + m->start[i];
        lookups[2 * i + LEFT] = (qn_vocab_lookup){.text = text, .n = m->n_left[i]};
        lookups[2 * i + RIGHT] =
            (qn_vocab_lookup){.text = text + m->n_left[i], .n = m->length[i] - m->n_left[i]};
        /* Lists often have all merges to a token in a row. */
        if (i && m->length[i] == m->length[i - 1] && memcmp(text, text - m->length[i], m->length[i]) == 0) {
            ends[i] = ends[i - 1];
            continue;
        }
        ends[i] = n;
        lookups[n++] = (qn_vocab_lookup){.text = text, .n = m->length[i]};
    }
    qn_vocab_find_all(m->vocab, lookups, (size_t)n);
    for (int i = 0; i < m->n; i++) {
        for (int role = 0; role < ROLES; role++)
            if (lookups[role == MERGED ? ends[i] : 2 * i + role].id < 0) return missing(m, i, roles[role]);
        qn_bpe_prefetch_merge(m->bpe, lookups[2 * i + LEFT].id, lookups[2 * i + RIGHT].id);
    }
    for (int i = 0; i < m->n; i++)
        QN_TRY(qn_bpe_add_merge(m->bpe, lookups[2 * i + LEFT].id, lookups[2 * i + RIGHT].id,
                                lookups[ends[i]].id, m->rank + (uint32_t)i));
    m->rank += (uint32_t)m->n;
    m->n = 0;
    qn_buf_reset(&m->text);
    return QN_OK;
}

/* There is room. Most are a few bytes, for which a call takes longer than the copy. */
static inline void put(qn_buf *to, const char *from, size_t n)
{
    char *at = to->data + to->length;
    if (n > 16)
        memcpy(at, from, n);
    else
        for (size_t i = 0; i < n; i++) at[i] = from[i];
    to->length += n;
}

qn_status qn_merges_add(qn_merges *m, const char *left, size_t n_left, const char *right, size_t n_right)
{
    m->start[m->n] = m->text.length;
    m->n_left[m->n] = n_left;
    m->length[m->n] = n_left + n_right;
    qn_buf_reserve(&m->text, n_left + n_right);
    if (m->text.status != QN_OK) return m->text.status;
    put(&m->text, left, n_left);
    put(&m->text, right, n_right);
    return ++m->n < QN_MERGES_GROUP ? QN_OK : qn_merges_finish(m);
}

void qn_merges_free(qn_merges *m)
{
    qn_buf_free(&m->text);
}
