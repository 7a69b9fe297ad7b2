#include "text/tokenizer/tokenizer_model_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/tokenizer/merges.h"

enum {
    IDS_SPARE = 1 << 16, /* holes that a vocabulary may have beyond four times its size */
    TYPICAL_MERGE = 17,  /* bytes of a merge in the file, for the first allocation: ["ab", "cd"] */
};

void qn_json_pull_part(qn_json_pull *p, const char *what, const char *text, qn_json_text part)
{
    qn_json_pull_init(p, what, text, (size_t)(part.data - text) + part.n);
    p->at = (size_t)(part.data - text);
}

static void open_part(const qn_model_json *m, qn_json_text part, qn_json_pull *p)
{
    qn_json_pull_part(p, m->what, m->text, part);
}

static int missing(qn_json_text text)
{
    return !text.data || qn_json_text_is(text, "null");
}

static int shown(size_t n)
{
    return (int)(n < 100 ? n : 100);
}

/* ---- what is there ------------------------------------------------------------------------------------- */

static qn_status optional_bool(qn_json_pull *p, int *out)
{
    return qn_json_pull_peek(p) == 'n' ? qn_json_pull_skip(p, NULL) : qn_json_pull_bool(p, out);
}

/* A member that is a string into *out, a copy; an empty one where it is missing. */
static qn_status read_string(const qn_model_json *m, qn_json_text member, qn_buf *out)
{
    qn_json_pull p;
    qn_json_text s;
    qn_buf_append(out, "", 0);
    if (missing(member)) return out->status;
    open_part(m, member, &p);
    qn_status status = qn_json_pull_string(&p, &s);
    if (status == QN_OK) qn_buf_append(out, s.data, s.n);
    qn_json_pull_free(&p);
    return status == QN_OK ? out->status : status;
}

static qn_status read_integer(const qn_model_json *m, qn_json_text member, int64_t most, int64_t *out)
{
    qn_json_pull p;
    open_part(m, member, &p);
    qn_status status = qn_json_pull_i64(&p, 0, most, out);
    qn_json_pull_free(&p);
    return status;
}

/* ---- vocabulary and merges ----------------------------------------------------------------------------- */

/* Tokens whose ids and texts are their own, on their way into the vocabulary. */
typedef struct {
    qn_vocab *v;
    qn_vocab_group group;
    size_t places[QN_VOCAB_GROUP]; /* where each stood in the file */
} gathering;

static qn_status settle(gathering *g, qn_json_pull *p)
{
    const qn_vocab_group group = g->group;
    const int twin = qn_vocab_settle(g->v, &g->group);
    if (twin < 0) return QN_OK;
    size_t n;
    const char *text = qn_vocab_text(g->v, group.ids[twin], &n);
    p->at = g->places[twin];
    return qn_json_pull_fail(p, "'%.*s' is in the vocabulary twice", shown(n), text);
}

static qn_status add_once(gathering *g, qn_json_pull *p, int32_t id, qn_json_text text)
{
    size_t n;
    const char *other = qn_vocab_text(g->v, id, &n);
    if (other)
        return qn_json_pull_fail(p, "token %d is both '%.*s' and '%.*s'", id, shown(n), other, shown(text.n),
                                 text.data);
    g->places[g->group.n] = p->at;
    QN_TRY(qn_vocab_gather(g->v, &g->group, id, text.data, text.n));
    return g->group.n == QN_VOCAB_GROUP ? settle(g, p) : QN_OK;
}

static qn_status read_vocab(const qn_model_json *m, qn_tokenizer *t)
{
    qn_json_pull p;
    qn_json_text key;
    gathering g = {.v = &t->vocab};
    int more;
    int64_t id;
    qn_status status;
    open_part(m, m->vocab, &p);
    size_t expected = m->n_vocab;
    if ((status = qn_vocab_init(&t->vocab, expected, m->vocab.n / 2)) != QN_OK) goto out;
    if ((status = qn_json_pull_enter(&p, '{')) != QN_OK) goto out;
    int64_t max_id = (int64_t)m->vocab.n + IDS_SPARE; /* an entry takes more than 4 bytes */
    if (max_id > INT32_MAX - 1) max_id = INT32_MAX - 1;
    while ((status = qn_json_pull_key(&p, &more, &key)) == QN_OK && more) {
        /* The key may lie in the parser's buffer, which reading the id does not touch. */
        if ((status = qn_json_pull_i64(&p, 0, max_id, &id)) != QN_OK) break;
        if ((status = add_once(&g, &p, (int32_t)id, key)) != QN_OK) break;
    }
    if (status == QN_OK) status = settle(&g, &p);
    if (status == QN_OK && t->vocab.n_tokens == 0)
        status = qn_fail(QN_E_FORMAT, "%s: model.vocab is empty", m->what);
out:
    qn_json_pull_free(&p);
    return status;
}

/* Both spellings: "a b" and ["a", "b"]. left is working memory. */
static qn_status read_merge(qn_json_pull *p, qn_buf *left, qn_merges *merges)
{
    qn_json_text s;
    int more;
    if (qn_json_pull_peek(p) == '"') {
        QN_TRY(qn_json_pull_string(p, &s));
        const char *space = memchr(s.data, ' ', s.n);
        const char *right = space ? space + 1 : NULL;
        if (!space || memchr(right, ' ', s.n - (size_t)(right - s.data)))
            return qn_json_pull_fail(p, "a merge is not two tokens with a space between them");
        return qn_merges_add(merges, s.data, (size_t)(space - s.data), right, s.n - (size_t)(right - s.data));
    }
    QN_TRY(qn_json_pull_enter(p, '['));
    for (int i = 0; i < 2; i++) {
        QN_TRY(qn_json_pull_element(p, &more));
        if (!more) return qn_json_pull_fail(p, "a merge has %d tokens", i);
        QN_TRY(qn_json_pull_string(p, &s));
        if (i) break;
        qn_buf_reset(left); /* the next string may take the parser's memory of this one */
        qn_buf_append(left, s.data, s.n);
        if (left->status != QN_OK) return left->status;
    }
    QN_TRY(qn_merges_add(merges, left->data, left->length, s.data, s.n));
    QN_TRY(qn_json_pull_element(p, &more));
    return more ? qn_json_pull_fail(p, "a merge has more than two tokens") : QN_OK;
}

static qn_status read_merges(const qn_model_json *m, qn_json_pull *p, qn_tokenizer *t)
{
    qn_buf left = {0};
    qn_merges merges = {.what = m->what, .vocab = &t->vocab, .bpe = t->bpe};
    int more = 1;
    qn_status status = qn_json_pull_enter(p, '[');
    while (status == QN_OK && (status = qn_json_pull_element(p, &more)) == QN_OK && more)
        status = read_merge(p, &left, &merges);
    if (status == QN_OK) status = qn_merges_finish(&merges);
    qn_merges_free(&merges);
    qn_buf_free(&left);
    return status;
}

/* p stands before the merges. */
static qn_status read_at_once(qn_model_json *m, qn_json_pull *p, qn_tokenizer *t)
{
    const qn_bpe_options o = {.unk_id = -1};
    const int has_prefix = !missing(m->prefix) && !qn_json_text_is(m->prefix, "\"\""); /* refused later */
    if (has_prefix || qn_json_pull_peek(p) != '[') return qn_json_pull_skip(p, &m->merges);
    const size_t at = p->at;
    QN_TRY(read_vocab(m, t));
    QN_TRY(qn_bpe_new(&t->vocab, &o, (p->n - at) / TYPICAL_MERGE, &t->bpe));
    QN_TRY(read_merges(m, p, t));
    m->merges = (qn_json_text){p->text + at, p->at - at};
    m->has_merges = 1;
    return QN_OK;
}

qn_status qn_model_json_read(qn_model_json *m, qn_json_pull *p, qn_tokenizer *t)
{
    qn_json_text key, value;
    int more;
    m->seen = 1;
    const struct {
        const char *name;
        qn_json_text *text;
        int *flag;
    } members[] = {
        {"type", &m->type, NULL},
        {"vocab", &m->vocab, NULL},
        {"merges", &m->merges, NULL},
        {"unk_token", &m->unk_token, NULL},
        {"unk_id", &m->unk_id, NULL},
        {"continuing_subword_prefix", &m->prefix, NULL},
        {"max_input_chars_per_word", &m->max_chars, NULL},
        {"byte_fallback", NULL, &m->byte_fallback},
        {"fuse_unk", NULL, &m->fuse_unk},
        {"ignore_merges", NULL, &m->ignore_merges},
    };
    QN_TRY(qn_json_pull_enter(p, '{'));
    for (;;) {
        QN_TRY(qn_json_pull_key(p, &more, &key));
        if (!more) return QN_OK;
        qn_json_text *text = NULL;
        int *flag = NULL;
        for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
            if (!qn_json_text_is(key, members[i].name)) continue;
            text = members[i].text;
            flag = members[i].flag;
        }
        if (flag) {
            QN_TRY(optional_bool(p, flag));
        } else if (m->has_merges && (text == &m->vocab || text == &m->merges || text == &m->type)) {
            return qn_json_pull_fail(p, "a member of the model after its merges, or twice");
        } else if (text == &m->merges && m->vocab.data && qn_json_text_is(m->type, "\"BPE\"")) {
            QN_TRY(read_at_once(m, p, t));
        } else if (text == &m->vocab || text == &m->merges) {
            QN_TRY(qn_json_pull_skip_counted(p, text, text == &m->vocab ? &m->n_vocab : &m->n_merges));
        } else if (qn_json_text_is(key, "end_of_word_suffix")) {
            QN_TRY(qn_json_pull_skip(p, &value));
            if (!qn_json_text_is(value, "null") && !qn_json_text_is(value, "\"\""))
                return qn_fail(QN_E_UNSUPPORTED, "%s: model.end_of_word_suffix %.*s is not supported",
                               m->what, shown(value.n), value.data);
        } else if (qn_json_text_is(key, "dropout")) {
            QN_TRY(qn_json_pull_skip(p, &value));
            if (!qn_json_text_is(value, "null") && !qn_json_text_is(value, "0") &&
                !qn_json_text_is(value, "0.0"))
                return qn_fail(QN_E_UNSUPPORTED,
                               "%s: model.dropout is set: such a tokenizer gives random ids", m->what);
        } else {
            QN_TRY(qn_json_pull_skip(p, text));
        }
    }
}

/* ---- the models ---------------------------------------------------------------------------------------- */

/* Byte tokens stand for what has no token: text that lacks one is lost where there is no unk_token either. */
static void check_byte_tokens(const qn_model_json *m, const qn_tokenizer *t)
{
    char name[8];
    for (int i = 0; i < 256 && m->byte_fallback && t->unk_id < 0; i++) {
        snprintf(name, sizeof name, "<0x%02X>", i);
        if (qn_vocab_find(&t->vocab, name, 6) >= 0) continue;
        qn_log(QN_LOG_WARNING,
               "%s: model.byte_fallback is true, but there is neither a token %s nor an unk_token: text "
               "without tokens is left out",
               m->what, name);
        return;
    }
}

/* The id of unk_token; -1: there is none. */
static qn_status find_unk(const qn_model_json *m, const qn_tokenizer *t, int32_t *id)
{
    qn_buf name = {0};
    *id = -1;
    if (missing(m->unk_token)) return QN_OK;
    qn_status status = read_string(m, m->unk_token, &name);
    if (status == QN_OK) *id = qn_vocab_find(&t->vocab, name.data, name.length);
    if (status == QN_OK && *id < 0)
        status = qn_fail(QN_E_FORMAT, "%s: model.unk_token \"%.*s\" is not in the vocabulary", m->what,
                         shown(name.length), name.data);
    qn_buf_free(&name);
    return status;
}

static qn_status build_bpe(const qn_model_json *m, qn_tokenizer *t)
{
    qn_bpe_options o = {
        .byte_fallback = m->byte_fallback, .fuse_unk = m->fuse_unk, .ignore_merges = m->ignore_merges};
    if (!m->vocab.data || !m->merges.data)
        return qn_fail(QN_E_FORMAT, "%s: model has no %s", m->what, m->vocab.data ? "merges" : "vocab");
    if (!missing(m->prefix) && !qn_json_text_is(m->prefix, "\"\""))
        return qn_fail(QN_E_UNSUPPORTED, "%s: model.continuing_subword_prefix %.*s is not supported", m->what,
                       shown(m->prefix.n), m->prefix.data);
    if (!m->has_merges) QN_TRY(read_vocab(m, t));
    QN_TRY(find_unk(m, t, &o.unk_id));
    t->unk_id = o.unk_id;
    check_byte_tokens(m, t);
    if (m->has_merges) {
        qn_bpe_set_options(t->bpe, &o);
        return QN_OK;
    }
    qn_json_pull p;
    QN_TRY(qn_bpe_new(&t->vocab, &o, m->n_merges, &t->bpe));
    open_part(m, m->merges, &p);
    qn_status status = read_merges(m, &p, t);
    qn_json_pull_free(&p);
    return status;
}

static qn_status build_wordpiece(const qn_model_json *m, qn_tokenizer *t)
{
    const struct {
        const char *name;
        qn_json_text text;
    } needed[] = {{"vocab", m->vocab},
                  {"unk_token", m->unk_token},
                  {"continuing_subword_prefix", m->prefix},
                  {"max_input_chars_per_word", m->max_chars}};
    int64_t most = 0;
    qn_buf prefix = {0}, unk = {0};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (missing(needed[i].text))
            return qn_fail(QN_E_FORMAT, "%s: model has no %s", m->what, needed[i].name);
    QN_TRY(read_vocab(m, t));
    qn_status status = read_integer(m, m->max_chars, INT64_MAX, &most);
    if (status == QN_OK) status = read_string(m, m->prefix, &prefix);
    if (status == QN_OK) status = read_string(m, m->unk_token, &unk);
    if (status == QN_OK) {
        t->unk_id = qn_vocab_find(&t->vocab, unk.data, unk.length);
        qn_wordpiece_options o = {.unk_id = t->unk_id,
                                  .max_chars = (uint64_t)most,
                                  .prefix = prefix.data,
                                  .n_prefix = prefix.length};
        status = qn_wordpiece_new(&t->vocab, &o, &t->wordpiece);
    }
    qn_buf_free(&prefix);
    qn_buf_free(&unk);
    return status;
}

/* [["text", score], ...]: a text given twice has the later id. */
static qn_status read_scored(qn_json_pull *p, qn_vocab *v, int32_t id, double *score)
{
    qn_json_text text, number;
    int more;
    QN_TRY(qn_json_pull_enter(p, '['));
    QN_TRY(qn_json_pull_element(p, &more));
    if (!more) return qn_json_pull_fail(p, "a piece has no text");
    QN_TRY(qn_json_pull_string(p, &text));
    QN_TRY(qn_vocab_add(v, id, text.data, text.n, 0));
    QN_TRY(qn_json_pull_element(p, &more));
    if (!more) return qn_json_pull_fail(p, "a piece has no score");
    char first = qn_json_pull_peek(p);
    QN_TRY(qn_json_pull_skip(p, &number));
    if (first != '-' && (first < '0' || first > '9')) return qn_json_pull_fail(p, "a score is not a number");
    *score = qn_parse_real(number.data, NULL); /* more text follows, so the number ends */
    if (!isfinite(*score)) return qn_json_pull_fail(p, "a score is out of range");
    QN_TRY(qn_json_pull_element(p, &more));
    return more ? qn_json_pull_fail(p, "a piece has more than a text and a score") : QN_OK;
}

static qn_status read_pieces(const qn_model_json *m, qn_tokenizer *t, double **scores, double *lowest)
{
    qn_json_pull p;
    int more;
    size_t capacity = 0, n = 0;
    open_part(m, m->vocab, &p);
    qn_status status = qn_vocab_init(&t->vocab, m->n_vocab, m->vocab.n / 2);
    if (status == QN_OK) status = qn_json_pull_enter(&p, '[');
    while (status == QN_OK && (status = qn_json_pull_element(&p, &more)) == QN_OK && more) {
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            double *grown = qn_realloc(*scores, capacity * sizeof *grown);
            if (!grown) {
                status = QN_E_NOMEM;
                break;
            }
            *scores = grown;
        }
        status = read_scored(&p, &t->vocab, (int32_t)n, &(*scores)[n]);
        if (status == QN_OK && (*scores)[n] < *lowest) *lowest = (*scores)[n];
        n++;
    }
    if (status == QN_OK && n == 0) status = qn_fail(QN_E_FORMAT, "%s: model.vocab is empty", m->what);
    qn_json_pull_free(&p);
    return status;
}

static qn_status build_unigram(const qn_model_json *m, qn_tokenizer *t)
{
    qn_unigram_options o = {.unk_id = -1, .byte_fallback = m->byte_fallback, .min_score = INFINITY};
    double *scores = NULL;
    int64_t unk_id = -1;
    if (!m->vocab.data) return qn_fail(QN_E_FORMAT, "%s: model has no vocab", m->what);
    qn_status status = read_pieces(m, t, &scores, &o.min_score);
    if (status == QN_OK && !missing(m->unk_id))
        status = read_integer(m, m->unk_id, (int64_t)t->vocab.n_ids - 1, &unk_id);
    if (status == QN_OK) {
        o.unk_id = t->unk_id = (int32_t)unk_id;
        status = qn_unigram_new(&t->vocab, &o, scores, &t->unigram);
    }
    if (status != QN_OK) qn_free(scores);
    return status;
}

qn_status qn_model_json_build(const qn_model_json *m, qn_tokenizer *t)
{
    static const struct {
        const char *type;
        qn_status (*build)(const qn_model_json *m, qn_tokenizer *t);
    } kinds[] = {{"BPE", build_bpe}, {"WordPiece", build_wordpiece}, {"Unigram", build_unigram}};
    qn_buf type = {0};
    qn_status status = read_string(m, m->type, &type);
    if (status == QN_OK && !type.length) /* files of before there was a type */
        qn_buf_puts(&type, m->merges.data      ? "BPE"
                           : m->max_chars.data ? "WordPiece"
                           : m->unk_id.data    ? "Unigram"
                                               : "BPE");
    if (status == QN_OK) status = type.status;
    size_t i = 0, n_kinds = sizeof kinds / sizeof kinds[0];
    while (status == QN_OK && i < n_kinds && strcmp(kinds[i].type, type.data) != 0) i++;
    if (status == QN_OK)
        status = i < n_kinds ? kinds[i].build(m, t)
                             : qn_fail(QN_E_UNSUPPORTED, "%s: model.type \"%.*s\" is not supported", m->what,
                                       shown(type.length), type.data);
    qn_buf_free(&type);
    return status;
}
