#include "text/tokenizer/detokenize.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/split/byte_level.h"
#include "text/tokenizer/split/normalize.h"
#include "text/tokenizer/vocab.h"

enum {
    STAGES_MAX = 32,
    /* A broken byte becomes 3 bytes: what grows by more is a chain made to grow. */
    GROWTH_MAX = 64,
    GROWTH_SPARE = 1 << 20,
};

typedef enum {
    JOIN,          /* no decoder: tokens with spaces between them */
    BYTE_LEVEL,    /* byte alphabet to bytes; makes one token of all */
    LOSSY,         /* bytes to UTF-8, broken sequences to U+FFFD */
    BYTE_FALLBACK, /* runs of <0xNN> tokens to text */
    BYTE_TOKENS, /* GGUF: each <0xNN> token is its byte, whatever stands beside it; makes one token of all */
    FUSE,        /* all tokens are one */
    STRIP,
    METASPACE,
    REPLACE,
    WORD_PIECE, /* words with spaces between them, pieces that go on a word without their prefix */
} stage_kind;

typedef struct {
    stage_kind kind;
    int keep_added; /* BYTE_LEVEL, BYTE_TOKENS: added tokens pass as they are */
    int after_fuse; /* its input is one token that comes in parts */
    char *from;     /* REPLACE literal; STRIP and METASPACE: the character; WORD_PIECE: the prefix */
    size_t n_from;
    char *to;
    size_t n_to;
    qn_regex *regex;
    size_t start, stop;    /* STRIP */
    int drop_first;        /* METASPACE: the first token's marks go away */
    qn_first_spaces first; /* BYTE_TOKENS */
    int cleanup;           /* WORD_PIECE: no space before punctuation and contractions */
    int whole; /* needs each token as a whole: parts are gathered until the next token or the end */
} stage;

struct qn_decoder {
    stage stages[STAGES_MAX];
    int n_stages;
    size_t n_texts; /* bytes of the texts in the stages */
};

typedef struct {
    qn_buf held;    /* held back, or being rewritten */
    int holds;      /* a token is being gathered (whole) */
    size_t tokens;  /* begun so far */
    size_t cut;     /* STRIP: characters that may still go from the front of this token */
    int past_first; /* BYTE_TOKENS: no space goes away any more */
} stage_state;

struct qn_decoder_state {
    const qn_decoder *d;
    qn_regex_match *match;
    int raw, middle;
    int added;        /* the token being fed is an added one */
    size_t fed, made; /* bytes since the start: of tokens, with one for each, and of output */
    qn_buf *out;
    stage_state stages[STAGES_MAX];
};

/* ---- reading ------------------------------------------------------------------------------------------- */

static qn_status bad_field(const char *what, const char *type, const char *field)
{
    return qn_fail(QN_E_FORMAT, "%s: decoder %s: bad or missing %s", what, type, field);
}

static qn_status take(const json_t *value, char **text, size_t *n)
{
    *n = json_string_length(value);
    *text = qn_strndup(json_string_value(value), *n);
    return *text ? QN_OK : QN_E_NOMEM;
}

static int is_one_char(const json_t *value)
{
    uint32_t cp;
    size_t n = json_string_length(value);
    return n > 0 && qn_utf8_decode(json_string_value(value), n, &cp) == n;
}

static qn_status new_stage(qn_decoder *d, const char *what, stage_kind kind, stage **out)
{
    if (d->n_stages == STAGES_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d decoders in sequence", what, STAGES_MAX);
    stage *s = &d->stages[d->n_stages];
    *s = (stage){.kind = kind};
    for (int i = 0; i < d->n_stages; i++) {
        stage_kind k = d->stages[i].kind;
        s->after_fuse |= k == FUSE || k == BYTE_LEVEL || k == BYTE_TOKENS;
    }
    d->n_stages++;
    *out = s;
    return QN_OK;
}

static qn_status add(qn_decoder *d, const char *what, const json_t *value, int depth)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    stage *s = NULL;
    if (!type) return qn_fail(QN_E_FORMAT, "%s: a decoder has no type", what);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(value, "decoders");
        if (!json_is_array(list) || depth > 8) return bad_field(what, type, "decoders");
        for (size_t i = 0; i < json_array_size(list); i++)
            QN_TRY(add(d, what, json_array_get(list, i), depth + 1));
        return QN_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        QN_TRY(new_stage(d, what, BYTE_LEVEL, &s));
        s->whole = s->after_fuse; /* one character outside the alphabet makes all of a token plain text */
        return new_stage(d, what, LOSSY, &s);
    }
    if (strcmp(type, "ByteFallback") == 0) {
        QN_TRY(new_stage(d, what, BYTE_FALLBACK, &s));
        s->whole = s->after_fuse; /* a fused text is no byte token unless all of it is */
        return QN_OK;
    }
    if (strcmp(type, "Fuse") == 0) return new_stage(d, what, FUSE, &s);
    if (strcmp(type, "Strip") == 0) {
        const json_t *content = json_object_get(value, "content");
        json_int_t start = json_integer_value(json_object_get(value, "start"));
        json_int_t stop = json_integer_value(json_object_get(value, "stop"));
        QN_TRY(new_stage(d, what, STRIP, &s));
        if (!is_one_char(content)) return bad_field(what, type, "content");
        if (start < 0 || stop < 0) return bad_field(what, type, start < 0 ? "start" : "stop");
        s->start = (size_t)start;
        s->stop = (size_t)stop;
        s->whole = s->after_fuse && stop > 0;
        return take(content, &s->from, &s->n_from);
    }
    if (strcmp(type, "Metaspace") == 0) {
        const json_t *replacement = json_object_get(value, "replacement");
        const json_t *scheme = json_object_get(value, "prepend_scheme");
        QN_TRY(new_stage(d, what, METASPACE, &s));
        if (!is_one_char(replacement)) return bad_field(what, type, "replacement");
        s->drop_first = json_is_string(scheme) ? strcmp(json_string_value(scheme), "never") != 0
                                               : !json_is_false(json_object_get(value, "add_prefix_space"));
        return take(replacement, &s->from, &s->n_from);
    }
    if (strcmp(type, "WordPiece") == 0) {
        const json_t *prefix = json_object_get(value, "prefix"), *cleanup = json_object_get(value, "cleanup");
        QN_TRY(new_stage(d, what, WORD_PIECE, &s));
        if (!json_is_string(prefix)) return bad_field(what, type, "prefix");
        if (!json_is_boolean(cleanup)) return bad_field(what, type, "cleanup");
        s->cleanup = json_is_true(cleanup);
        s->whole = s->after_fuse;
        return take(prefix, &s->from, &s->n_from);
    }
    if (strcmp(type, "Replace") == 0) {
        const json_t *content = json_object_get(value, "content");
        const char *literal;
        QN_TRY(new_stage(d, what, REPLACE, &s));
        if (!json_is_string(content)) return bad_field(what, type, "content");
        QN_TRY(take(content, &s->to, &s->n_to));
        d->n_texts += s->n_to;
        QN_TRY(qn_pattern_from_json(what, value, &literal, &s->n_from, &s->regex));
        if (literal && !(s->from = qn_strndup(literal, s->n_from))) return QN_E_NOMEM;
        /* A character is never split between parts; anything longer may be. */
        s->whole = s->after_fuse &&
                   (!literal || !is_one_char(json_object_get(json_object_get(value, "pattern"), "String")));
        return QN_OK;
    }
    return qn_fail(QN_E_UNSUPPORTED, "%s: decoder \"%s\" is not supported", what, type);
}

qn_status qn_decoder_from_json(const char *what, const json_t *value, qn_decoder **out)
{
    stage *s = NULL;
    qn_decoder *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    qn_status status = !value || json_is_null(value) ? new_stage(d, what, JOIN, &s) : add(d, what, value, 0);
    if (status != QN_OK) {
        qn_decoder_free(d);
        return status;
    }
    *out = d;
    return QN_OK;
}

static qn_status for_vocabulary(const char *what, int byte_level, int strip_first, qn_first_spaces first,
                                qn_decoder **out)
{
    stage *s = NULL;
    qn_decoder *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    qn_status status = new_stage(d, what, byte_level ? BYTE_LEVEL : BYTE_TOKENS, &s);
    if (status == QN_OK) {
        s->keep_added = 1;
        s->first = first;
    }
    if (status == QN_OK && strip_first && (status = new_stage(d, what, STRIP, &s)) == QN_OK) {
        s->start = 1;
        s->n_from = 1;
        s->from = qn_strdup(" ");
        if (!s->from) status = QN_E_NOMEM;
    }
    if (status == QN_OK) status = new_stage(d, what, LOSSY, &s);
    if (status != QN_OK) {
        qn_decoder_free(d);
        return status;
    }
    *out = d;
    return QN_OK;
}

qn_status qn_decoder_for_gguf(int byte_level, int strip_first, qn_decoder **out)
{
    return for_vocabulary("GGUF", byte_level, strip_first, QN_FIRST_KEPT, out);
}

qn_status qn_decoder_for_pieces(qn_first_spaces first, qn_decoder **out)
{
    return for_vocabulary("SentencePiece", 0, 0, first, out);
}

void qn_decoder_free(qn_decoder *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_stages; i++) {
        qn_free(d->stages[i].from);
        qn_free(d->stages[i].to);
        qn_regex_free(d->stages[i].regex);
    }
    qn_free(d);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static qn_status too_long(const qn_decoder_state *s, size_t most)
{
    return qn_fail(QN_E_FULL, "the decoder makes more than %zu bytes from tokens of %zu bytes", most, s->fed);
}

/* What the tokens so far may become. */
static size_t most_bytes(const qn_decoder_state *s)
{
    size_t spare = s->d->n_texts + GROWTH_SPARE;
    return s->fed < (SIZE_MAX - spare) / GROWTH_MAX ? s->fed * GROWTH_MAX + spare : SIZE_MAX;
}

static qn_status feed(qn_decoder_state *s, int i, const char *text, size_t n, int begins);

static qn_status feed_byte_level(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    /* A token with a character outside the alphabet is plain text, all of it. */
    char bytes[256];
    size_t n_bytes = 0, used;
    int plain = s->d->stages[i].keep_added && s->added;
    for (size_t j = 0; j < n && !plain; j += used) {
        uint32_t cp;
        used = qn_utf8_decode(text + j, n - j, &cp);
        plain = !used || qn_byte_level_byte(cp) < 0;
    }
    if (plain) return feed(s, i + 1, text, n, begins);
    for (size_t j = 0; j < n; j += used) {
        uint32_t cp;
        used = qn_utf8_decode(text + j, n - j, &cp);
        bytes[n_bytes++] = (char)qn_byte_level_byte(cp);
        if (n_bytes == sizeof bytes) {
            QN_TRY(feed(s, i + 1, bytes, n_bytes, begins));
            begins = 0;
            n_bytes = 0;
        }
    }
    return feed(s, i + 1, bytes, n_bytes, begins);
}

static qn_status feed_lossy(qn_decoder_state *s, int i, const char *text, size_t n, int begins, int last)
{
    qn_buf *held = &s->stages[i].held;
    if (s->raw) return feed(s, i + 1, text, n, begins);
    if (held->length) {
        qn_buf_append(held, text, n);
        if (held->status != QN_OK) return held->status;
        text = held->data;
        n = held->length;
    }
    for (size_t done = 0; done < n;) {
        size_t valid = qn_utf8_valid_prefix(text + done, n - done);
        if (valid) QN_TRY(feed(s, i + 1, text + done, valid, begins));
        begins = valid ? 0 : begins;
        done += valid;
        if (done == n) break;
        int incomplete;
        size_t bad = qn_utf8_invalid_length(text + done, n - done, &incomplete);
        if (incomplete && !last) { /* at most three bytes; text may be the held bytes themselves */
            char tail[4];
            size_t left = n - done < sizeof tail ? n - done : sizeof tail;
            memcpy(tail, text + done, left);
            qn_buf_reset(held);
            qn_buf_append(held, tail, left);
            if (held->status != QN_OK) return held->status;
            return begins ? feed(s, i + 1, "", 0, 1) : QN_OK;
        }
        QN_TRY(feed(s, i + 1, "\xef\xbf\xbd", 3, begins));
        begins = 0;
        done += bad;
    }
    qn_buf_reset(held);
    return begins ? feed(s, i + 1, "", 0, 1) : QN_OK;
}

static qn_status flush_bytes(qn_decoder_state *s, int i)
{
    qn_buf *held = &s->stages[i].held;
    size_t n = held->length;
    if (!n) return QN_OK;
    qn_status status = QN_OK;
    if (qn_utf8_valid_prefix(held->data, n) == n) {
        status = feed(s, i + 1, held->data, n, 1);
    } else {
        for (size_t j = 0; j < n && status == QN_OK; j++) status = feed(s, i + 1, "\xef\xbf\xbd", 3, 1);
    }
    qn_buf_reset(held);
    return status;
}

static qn_status feed_byte_fallback(qn_decoder_state *s, int i, const char *text, size_t n)
{
    int byte = qn_byte_token_value(text, n);
    if (byte < 0) {
        QN_TRY(flush_bytes(s, i));
        return feed(s, i + 1, text, n, 1);
    }
    char c = (char)byte;
    if (s->raw) return feed(s, i + 1, &c, 1, 1);
    qn_buf_putc(&s->stages[i].held, c);
    return s->stages[i].held.status;
}

static qn_status feed_byte_tokens(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    static const char mark[] = "\xe2\x96\x81";
    int byte = qn_byte_token_value(text, n);
    char c = (char)byte;
    stage_state *t = &s->stages[i];
    if (s->added || byte >= 0) t->past_first = 1;
    if (s->added) return feed(s, i + 1, text, n, begins);
    if (byte >= 0) return feed(s, i + 1, &c, 1, begins);
    if (s->d->stages[i].first != QN_FIRST_KEPT && !s->middle && !t->past_first) {
        const int cut = n >= 3 && memcmp(text, mark, 3) == 0;
        text += cut ? 3 : 0;
        n -= cut ? 3 : 0;
        t->past_first = n > 0 || (cut && s->d->stages[i].first == QN_FIRST_ONCE);
    }
    if (begins) QN_TRY(feed(s, i + 1, "", 0, 1));
    for (size_t done = 0; done < n;) {
        size_t at = qn_find_bytes(text, n, done, mark, 3);
        if (at > done) QN_TRY(feed(s, i + 1, text + done, at - done, 0));
        if (at < n) QN_TRY(feed(s, i + 1, " ", 1, 0));
        done = at < n ? at + 3 : n;
    }
    return QN_OK;
}

static qn_status feed_strip(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    const stage *g = &s->d->stages[i];
    stage_state *t = &s->stages[i];
    if (begins) t->cut = s->middle && g->after_fuse ? 0 : g->start;
    size_t start = 0, end = n;
    while (t->cut && start < end) {
        if (end - start < g->n_from || memcmp(text + start, g->from, g->n_from) != 0) {
            t->cut = 0;
            break;
        }
        t->cut--;
        start += g->n_from;
    }
    for (size_t k = 0; k < g->stop && end - start >= g->n_from; k++) {
        if (memcmp(text + end - g->n_from, g->from, g->n_from) != 0) break;
        end -= g->n_from;
    }
    return feed(s, i + 1, text + start, end - start, begins);
}

/* Stages that rewrite give each part they get as one part, since a later stage may need the token as a whole.
 */
static qn_status feed_metaspace(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    const stage *g = &s->d->stages[i];
    stage_state *t = &s->stages[i];
    t->tokens += (size_t)begins;
    int drop = g->drop_first && t->tokens == 1 && !s->middle;
    qn_buf_reset(&t->held);
    for (size_t done = 0; done < n;) {
        size_t at = qn_find_bytes(text, n, done, g->from, g->n_from);
        qn_buf_append(&t->held, text + done, at - done);
        if (at < n && !drop) qn_buf_putc(&t->held, ' ');
        done = at < n ? at + g->n_from : n;
    }
    if (t->held.status != QN_OK) return t->held.status;
    return feed(s, i + 1, t->held.data, t->held.length, begins);
}

/* text[0..n) with every `from` replaced, in place: `to` is not longer. */
static void replace_all(qn_buf *b, const char *from, const char *to)
{
    const size_t n_from = strlen(from), n_to = strlen(to);
    size_t kept = 0;
    for (size_t done = 0; done < b->length;) {
        size_t at = qn_find_bytes(b->data, b->length, done, from, n_from);
        memmove(b->data + kept, b->data + done, at - done);
        kept += at - done;
        done = at;
        if (at == b->length) break;
        memcpy(b->data + kept, to, n_to);
        kept += n_to;
        done += n_from;
    }
    b->length = kept;
}

static qn_status feed_word_piece(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    static const char *const cleanups[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    const stage *g = &s->d->stages[i];
    stage_state *t = &s->stages[i];
    int first = t->tokens++ == 0 && !s->middle;
    qn_buf_reset(&t->held);
    if (!first) {
        if (n >= g->n_from && memcmp(text, g->from, g->n_from) == 0) {
            text += g->n_from;
            n -= g->n_from;
        } else {
            qn_buf_putc(&t->held, ' ');
        }
    }
    qn_buf_append(&t->held, text, n);
    if (t->held.status != QN_OK) return t->held.status;
    for (size_t k = 0; g->cleanup && k < sizeof cleanups / sizeof cleanups[0]; k++)
        replace_all(&t->held, cleanups[k][0], cleanups[k][1]);
    return feed(s, i + 1, t->held.data, t->held.length, begins);
}

static qn_status feed_replace(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    const stage *g = &s->d->stages[i];
    qn_buf *out = &s->stages[i].held;
    qn_buf_reset(out);
    out->limit_bytes = most_bytes(s);
    qn_regex_walk w = {0};
    size_t done = 0;
    while (out->status == QN_OK) {
        size_t start = n, end = n;
        int found = 1;
        if (g->from) {
            start = qn_find_bytes(text, n, done, g->from, g->n_from);
            found = start < n;
            end = start + g->n_from;
        } else {
            QN_TRY(qn_regex_next(g->regex, s->match, text, n, &w, &found, &start, &end));
        }
        if (!found) break;
        qn_buf_append(out, text + done, start - done);
        qn_buf_append(out, g->to, g->n_to);
        done = end;
    }
    qn_buf_append(out, text + done, n - done);
    if (out->status == QN_E_FULL) return too_long(s, out->limit_bytes);
    if (out->status != QN_OK) return out->status;
    return feed(s, i + 1, out->data, out->length, begins);
}

static qn_status run_stage(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    switch (s->d->stages[i].kind) {
    case JOIN:
        if (begins && s->stages[i].tokens++ && !s->middle) QN_TRY(feed(s, i + 1, " ", 1, 1));
        return feed(s, i + 1, text, n, begins);
    case BYTE_LEVEL:
        begins = s->stages[i].tokens++ == 0;
        return feed_byte_level(s, i, text, n, begins);
    case LOSSY:
        return feed_lossy(s, i, text, n, begins, 0);
    case BYTE_FALLBACK:
        return feed_byte_fallback(s, i, text, n);
    case BYTE_TOKENS:
        begins = s->stages[i].tokens++ == 0;
        return feed_byte_tokens(s, i, text, n, begins);
    case FUSE:
        begins = s->stages[i].tokens++ == 0;
        return feed(s, i + 1, text, n, begins);
    case STRIP:
        return feed_strip(s, i, text, n, begins);
    case METASPACE:
        return feed_metaspace(s, i, text, n, begins);
    case REPLACE:
        return feed_replace(s, i, text, n, begins);
    case WORD_PIECE:
        return feed_word_piece(s, i, text, n, begins);
    }
    return QN_OK;
}

/* What a stage gathered, if it gathers, goes through it. */
static qn_status release(qn_decoder_state *s, int i)
{
    stage_state *t = &s->stages[i];
    if (!t->holds) return QN_OK;
    t->holds = 0;
    qn_buf token = t->held; /* taken away, because the stage may use the buffer for itself */
    t->held = (qn_buf){0};
    qn_status status = run_stage(s, i, token.data, token.length, 1);
    qn_buf_free(&token);
    return status;
}

/* A part of a token for stage i; begins: its first. Past the last stage it is output. */
static qn_status feed(qn_decoder_state *s, int i, const char *text, size_t n, int begins)
{
    if (i == s->d->n_stages) {
        s->made += n;
        if (s->made > most_bytes(s)) return too_long(s, most_bytes(s));
        qn_buf_append(s->out, text, n);
        return s->out->status;
    }
    if (!s->d->stages[i].whole) return run_stage(s, i, text, n, begins);
    stage_state *t = &s->stages[i];
    if (begins) {
        QN_TRY(release(s, i));
        t->holds = 1;
    }
    qn_buf_append(&t->held, text, n);
    return t->held.status;
}

qn_status qn_decoder_state_new(const qn_decoder *d, int raw, int middle, qn_decoder_state **out)
{
    qn_decoder_state *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->d = d;
    s->raw = raw;
    s->middle = middle;
    for (int i = 0; i < d->n_stages; i++)
        if (d->stages[i].regex && !s->match && !(s->match = qn_regex_match_new())) {
            qn_decoder_state_free(s);
            return QN_E_NOMEM;
        }
    *out = s;
    return QN_OK;
}

void qn_decoder_state_free(qn_decoder_state *s)
{
    if (!s) return;
    for (int i = 0; i < STAGES_MAX; i++) qn_buf_free(&s->stages[i].held);
    qn_regex_match_free(s->match);
    qn_free(s);
}

qn_status qn_decoder_feed(qn_decoder_state *s, const char *text, size_t n, int added, qn_buf *out)
{
    s->added = added;
    s->out = out;
    s->fed += n + 1;
    return feed(s, 0, text, n, 1);
}

qn_status qn_decoder_finish(qn_decoder_state *s, qn_buf *out)
{
    qn_status status = QN_OK;
    s->out = out;
    for (int i = 0; i < s->d->n_stages; i++) {
        stage_state *t = &s->stages[i];
        if (status == QN_OK) status = release(s, i);
        if (status == QN_OK && s->d->stages[i].kind == LOSSY && t->held.length)
            status = feed_lossy(s, i, "", 0, 0, 1);
        if (status == QN_OK && s->d->stages[i].kind == BYTE_FALLBACK) status = flush_bytes(s, i);
        qn_buf_reset(&t->held);
        t->holds = 0;
        t->tokens = t->cut = 0;
        t->past_first = 0;
    }
    s->fed = s->made = 0;
    return status;
}
