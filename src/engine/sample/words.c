#include "engine/sample/words.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

typedef struct {
    int32_t *ids;
    int64_t n;
} word;

struct qn_words {
    int64_t n_vocab, context;
    uint64_t *breakers; /* bits [n_vocab] */
    word *bad;          /* [n_bad] */
    size_t n_bad;
    int64_t longest;
    uint64_t *refused; /* bits [n_vocab] of the tokens that are not allowed; NULL: all are */
};

static size_t count_words(int64_t n_vocab)
{
    return ((size_t)n_vocab + 63) / 64;
}

static void set_bit(uint64_t *bits, int32_t id)
{
    bits[id / 64] |= UINT64_C(1) << (id % 64);
}

int qn_words_are_needed(const qn_generate_options *o)
{
    return o->dry_multiplier > 0 || o->n_bad_words || o->n_bad_ids || o->allowed_ids || o->repeat_last_n > 0;
}

/* ---- bad words ---- */

static qn_status add_bad(qn_words *w, const char *field, const int32_t *ids, int64_t n)
{
    if (n < 1) return qn_fail(QN_E_ARG, "%s: a word has no tokens", field);
    if (n > QN_BAD_WORD_TOKENS_MAX)
        return qn_fail(QN_E_ARG, "%s: a word has %lld tokens, at most %d are allowed", field, (long long)n,
                       (int)QN_BAD_WORD_TOKENS_MAX);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->n_vocab)
            return qn_fail(QN_E_ARG, "%s: token id %d is outside the vocabulary of %lld", field, (int)ids[i],
                           (long long)w->n_vocab);
    word *to = &w->bad[w->n_bad];
    if (!(to->ids = qn_alloc_array((size_t)n, sizeof *ids))) return QN_E_NOMEM;
    memcpy(to->ids, ids, (size_t)n * sizeof *ids);
    to->n = n;
    w->n_bad++;
    if (n > w->longest) w->longest = n;
    return QN_OK;
}

/* As it stands, or behind a space. */
static qn_status add_word(qn_words *w, const qn_tokenizer *t, const char *text, int is_spaced)
{
    const qn_text_segment segments[] = {{" ", 1, 0}, {text, strlen(text), 0}};
    int32_t *ids = NULL;
    size_t n = 0;
    QN_TRY(qn_tokenizer_encode_segments(t, segments + !is_spaced, 1 + (size_t)is_spaced, 0, &ids, &n));
    qn_status status = add_bad(w, "bad_words", ids, (int64_t)n);
    qn_free(ids);
    return status;
}

static qn_status take_bad(qn_words *w, const qn_tokenizer *t, const qn_generate_options *o)
{
    if (!o->n_bad_words && !o->n_bad_ids) return QN_OK;
    if (o->n_bad_words && !t)
        return qn_fail(QN_E_ARG, "bad_words need a tokenizer, and there is none; use bad_ids");
    if (!(w->bad = qn_calloc(2 * o->n_bad_words + o->n_bad_ids, sizeof *w->bad))) return QN_E_NOMEM;
    for (size_t i = 0; i < o->n_bad_words; i++) {
        QN_TRY(add_word(w, t, o->bad_words[i], 0));
        QN_TRY(add_word(w, t, o->bad_words[i], 1));
    }
    for (size_t i = 0; i < o->n_bad_ids; i++)
        QN_TRY(add_bad(w, "bad_ids", o->bad_ids[i].ids, o->bad_ids[i].n_ids));
    return QN_OK;
}

/* ---- breakers ---- */

typedef struct {
    qn_words *words;
    const char *const *texts; /* [n] */
    size_t n, length[QN_DRY_BREAKERS_MAX];
    unsigned char begins[256]; /* 1: a text begins with this byte */
    unsigned char is_found[QN_DRY_BREAKERS_MAX];
} search;

static void look_at(void *user, int32_t id, const char *piece, size_t n)
{
    search *s = user;
    int any = 0;
    for (size_t i = 0; i < n; i++) any |= s->begins[(unsigned char)piece[i]];
    if (!any || id >= s->words->n_vocab) return;
    for (size_t i = 0; i < s->n; i++) {
        if (!memmem(piece, n, s->texts[i], s->length[i])) continue;
        s->is_found[i] = 1;
        set_bit(s->words->breakers, id);
    }
}

static qn_status break_at_last(qn_words *w, const qn_tokenizer *t, const char *text)
{
    int32_t *ids = NULL;
    size_t n = 0;
    QN_TRY(qn_tokenizer_encode(t, text, strlen(text), 0, &ids, &n));
    if (n && ids[n - 1] < w->n_vocab) set_bit(w->breakers, ids[n - 1]);
    qn_free(ids);
    return QN_OK;
}

static qn_status take_breakers(qn_words *w, const qn_tokenizer *t, const qn_generate_options *o)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const char *const *texts = o->dry_sequence_breakers ? o->dry_sequence_breakers : usual;
    const size_t n = o->dry_sequence_breakers ? o->n_dry_sequence_breakers : sizeof usual / sizeof *usual;
    if (!(o->dry_multiplier > 0) || !n) return QN_OK;
    if (!t)
        return qn_fail(QN_E_ARG,
                       "dry_sequence_breakers need a tokenizer, and there is none; give an empty list");
    if (!(w->breakers = qn_calloc(count_words(w->n_vocab), sizeof *w->breakers))) return QN_E_NOMEM;
    search look = {.words = w, .texts = texts, .n = n};
    for (size_t i = 0; i < n; i++) {
        look.begins[(unsigned char)texts[i][0]] = 1;
        look.length[i] = strlen(texts[i]);
    }
    qn_status status = qn_tokenizer_pieces(t, look_at, &look);
    for (size_t i = 0; status == QN_OK && i < n; i++)
        if (!look.is_found[i]) status = break_at_last(w, t, texts[i]);
    return status;
}

/* ---- allowed ids ---- */

static qn_status take_allowed(qn_words *w, const qn_generate_options *o)
{
    const size_t n = count_words(w->n_vocab);
    if (!o->allowed_ids) return QN_OK;
    if (!(w->refused = qn_alloc_array(n, sizeof *w->refused))) return QN_E_NOMEM;
    memset(w->refused, 0xff, n * sizeof *w->refused);
    for (size_t i = 0; i < o->n_allowed_ids; i++) {
        const int32_t id = o->allowed_ids[i];
        if (id < 0 || id >= w->n_vocab)
            return qn_fail(QN_E_ARG, "allowed_ids: token id %d is outside the vocabulary of %lld", (int)id,
                           (long long)w->n_vocab);
        w->refused[id / 64] &= ~(UINT64_C(1) << (id % 64));
    }
    return QN_OK;
}

static int is_bad_alone(const qn_words *w, int64_t id)
{
    for (size_t i = 0; i < w->n_bad; i++)
        if (w->bad[i].n == 1 && w->bad[i].ids[0] == id) return 1;
    return 0;
}

/* Something must be left that could come first. */
static qn_status check_rest(const qn_words *w)
{
    int64_t n_allowed = 0;
    for (int64_t id = 0; id < w->n_vocab; id++) {
        if (w->refused && w->refused[id / 64] >> (id % 64) & 1) continue;
        if (++n_allowed > (int64_t)w->n_bad || !is_bad_alone(w, id)) return QN_OK;
    }
    return qn_fail(QN_E_ARG, "bad_words: all allowed tokens are banned");
}

/* ---- all of them ---- */

qn_status qn_words_new(const qn_tokenizer *tokenizer, const qn_generate_options *o, int64_t n_vocab,
                       int64_t context, qn_words **out)
{
    qn_words *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->n_vocab = n_vocab;
    w->context = context;
    qn_status status = take_bad(w, tokenizer, o);
    if (status == QN_OK) status = take_breakers(w, tokenizer, o);
    if (status == QN_OK) status = take_allowed(w, o);
    if (status == QN_OK) status = check_rest(w);
    if (status != QN_OK) {
        qn_words_free(w);
        return status;
    }
    *out = w;
    return QN_OK;
}

void qn_words_free(qn_words *w)
{
    if (!w) return;
    for (size_t i = 0; i < w->n_bad; i++) qn_free(w->bad[i].ids);
    qn_free(w->bad);
    qn_free(w->breakers);
    qn_free(w->refused);
    qn_free(w);
}

int64_t qn_words_window(const qn_words *w, int32_t window)
{
    return window > 0 && window < w->context ? window : w->context;
}

const uint64_t *qn_words_breakers(const qn_words *w)
{
    return w->breakers;
}

int64_t qn_words_longest(const qn_words *w)
{
    return w->longest;
}

int qn_words_ban(const qn_words *w)
{
    return w->n_bad || w->refused;
}

int qn_words_allow_few(const qn_words *w)
{
    return w->refused != NULL;
}

/* Most words of the bits are all ones. */
static void mask_refused(const qn_words *w, float *logits)
{
    for (int64_t first = 0; first < w->n_vocab; first += 64) {
        const uint64_t bits = w->refused[first / 64];
        const int64_t rest = w->n_vocab - first, n = rest < 64 ? rest : 64;
        float *x = logits + first;
        if (bits == UINT64_MAX)
            for (int64_t i = 0; i < n; i++) x[i] = -INFINITY;
        else
            for (int64_t i = 0; i < n; i++) x[i] = bits >> i & 1 ? -INFINITY : x[i];
    }
}

void qn_words_mask(const qn_words *w, const int32_t *last, int64_t n, float *logits)
{
    if (w->refused) mask_refused(w, logits);
    for (size_t i = 0; i < w->n_bad; i++) {
        const word *b = &w->bad[i];
        const int64_t before = b->n - 1;
        if (before > n) continue;
        if (before && memcmp(b->ids, last + n - before, (size_t)before * sizeof *last) != 0) continue;
        logits[b->ids[before]] = -INFINITY;
    }
}
