#include "text/tokenizer/split/normalize.h"

#include <string.h>

#include "base/bytes/base64.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/split/byte_level.h"
#include "text/tokenizer/split/charsmap.h"
#include "text/tokenizer/split/reference.h"
#include "text/tokenizer/split/unicode.h"

enum {
    STEPS_MAX = 64,
    TEXT_MAX = INT32_MAX,
    /* The longest decomposition in Unicode makes 11 bytes of one, byte-level spelling 2: what grows by more
     * is a chain made to grow. */
    GROWTH_MAX = 64,
    GROWTH_SPARE = 4096,
    SORT_FEW = 32, /* marks in a row that are sorted by insertion */
};

typedef enum {
    FORM,
    LOWERCASE,
    STRIP,
    STRIP_ACCENTS,
    PREPEND,
    REPLACE,
    BYTE_LEVEL,
    BERT_CLEAN,   /* controls go, white space becomes a space */
    BERT_CHINESE, /* a space on both sides */
    PRECOMPILED,
    PIECES,
} step_kind;

typedef struct {
    step_kind kind;
    utf8proc_option_t form; /* FORM */
    int left, right;        /* STRIP */
    const qn_cp_set *marks; /* STRIP_ACCENTS */
    char *text;             /* PREPEND: what; REPLACE: by what */
    size_t n;
    char *literal; /* REPLACE: of what, or NULL and regex */
    size_t n_literal;
    qn_regex *regex;
    qn_charsmap map;      /* PRECOMPILED */
    qn_piece_rules rules; /* PIECES */
} step;

struct qn_normalizer {
    step steps[STEPS_MAX];
    int n_steps;
    size_t n_texts; /* bytes of the texts in the steps */
};

size_t qn_find_bytes(const char *text, size_t n, size_t from, const char *needle, size_t n_needle)
{
    if (!n_needle || from >= n) return n;
    const char *p = memmem(text + from, n - from, needle, n_needle);
    return p ? (size_t)(p - text) : n;
}

qn_status qn_pattern_from_json(const char *what, const json_t *component, const char **literal, size_t *n,
                               qn_regex **regex)
{
    const json_t *pattern = json_object_get(component, "pattern");
    const json_t *string = json_object_get(pattern, "String"),
                 *expression = json_object_get(pattern, "Regex");
    if (json_is_string(string)) {
        *literal = json_string_value(string);
        *n = json_string_length(string);
        return QN_OK;
    }
    if (!json_is_string(expression))
        return qn_fail(QN_E_FORMAT, "%s: %s: pattern is neither {\"String\": ...} nor {\"Regex\": ...}", what,
                       json_string_value(json_object_get(component, "type")));
    *literal = NULL;
    qn_status status = qn_regex_new(json_string_value(expression), json_string_length(expression), regex);
    return status == QN_OK ? QN_OK
                           : qn_fail_prefix(status, "%s: %s", what,
                                            json_string_value(json_object_get(component, "type")));
}

static qn_status take_string(const char *what, const char *type, const json_t *value, const char *field,
                             char **text, size_t *n)
{
    const json_t *v = json_object_get(value, field);
    if (!json_is_string(v))
        return qn_fail(QN_E_FORMAT, "%s: normalizer %s: %s is not a string", what, type, field);
    *n = json_string_length(v);
    *text = qn_strndup(json_string_value(v), *n);
    return *text ? QN_OK : QN_E_NOMEM;
}

static const struct {
    const char *type;
    utf8proc_option_t form;
} forms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

static qn_status new_step(qn_normalizer *z, const char *what, step_kind kind, step **out)
{
    if (z->n_steps == STEPS_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d normalizers in sequence", what, STEPS_MAX);
    *out = &z->steps[z->n_steps++]; /* counted first, so that a failure frees what it holds */
    **out = (step){.kind = kind};
    return QN_OK;
}

static qn_status add_bert(qn_normalizer *z, const char *what, const json_t *value)
{
    static const char *const names[] = {"clean_text", "handle_chinese_chars", "lowercase"};
    enum { CLEAN, CHINESE, LOWER };
    int given[3];
    step *s = NULL;
    for (int i = 0; i < 3; i++) {
        const json_t *v = json_object_get(value, names[i]);
        if (!json_is_boolean(v))
            return qn_fail(QN_E_FORMAT, "%s: normalizer BertNormalizer: %s is neither true nor false", what,
                           names[i]);
        given[i] = json_is_true(v);
    }
    const json_t *accents = json_object_get(value, "strip_accents");
    if (accents && !json_is_boolean(accents) && !json_is_null(accents))
        return qn_fail(QN_E_FORMAT,
                       "%s: normalizer BertNormalizer: strip_accents is neither true, false nor null", what);
    if (given[CLEAN]) QN_TRY(new_step(z, what, BERT_CLEAN, &s));
    if (given[CHINESE]) QN_TRY(new_step(z, what, BERT_CHINESE, &s));
    if (json_is_boolean(accents) ? json_is_true(accents) : given[LOWER]) {
        QN_TRY(new_step(z, what, FORM, &s));
        s->form = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
        QN_TRY(new_step(z, what, STRIP_ACCENTS, &s));
        s->marks = &qn_marks_of_bert;
    }
    return given[LOWER] ? new_step(z, what, LOWERCASE, &s) : QN_OK;
}

static qn_status read_map(const char *what, const json_t *value, qn_charsmap *map)
{
    const json_t *text = json_object_get(value, "precompiled_charsmap");
    qn_buf bytes = {0};
    if (!json_is_string(text))
        return qn_fail(QN_E_FORMAT, "%s: normalizer Precompiled: precompiled_charsmap is not a text", what);
    qn_status status = qn_base64_decode(json_string_value(text), json_string_length(text), &bytes);
    if (status == QN_OK) status = qn_charsmap_read(bytes.data, bytes.length, map);
    qn_buf_free(&bytes);
    return status == QN_E_FORMAT ? qn_fail_prefix(status, "%s: normalizer Precompiled", what) : status;
}

static qn_status add(qn_normalizer *z, const char *what, const json_t *value, int depth)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!type) return qn_fail(QN_E_FORMAT, "%s: a normalizer has no type", what);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(value, "normalizers");
        if (!json_is_array(list) || depth > 8)
            return qn_fail(QN_E_FORMAT,
                           "%s: normalizer Sequence: normalizers is not a list, or is nested too deeply",
                           what);
        for (size_t i = 0; i < json_array_size(list); i++)
            QN_TRY(add(z, what, json_array_get(list, i), depth + 1));
        return QN_OK;
    }
    if (strcmp(type, "BertNormalizer") == 0) return add_bert(z, what, value);
    step *s = NULL;
    QN_TRY(new_step(z, what, FORM, &s));
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (strcmp(type, forms[i].type) == 0) {
            s->kind = FORM;
            s->form = forms[i].form;
            return QN_OK;
        }
    if (strcmp(type, "Lowercase") == 0) {
        s->kind = LOWERCASE;
    } else if (strcmp(type, "StripAccents") == 0) {
        s->kind = STRIP_ACCENTS;
        s->marks = &qn_accents;
    } else if (strcmp(type, "ByteLevel") == 0) {
        s->kind = BYTE_LEVEL;
    } else if (strcmp(type, "Precompiled") == 0) {
        s->kind = PRECOMPILED;
        return read_map(what, value, &s->map);
    } else if (strcmp(type, "Strip") == 0) {
        s->kind = STRIP;
        s->left = json_is_true(json_object_get(value, "strip_left"));
        s->right = json_is_true(json_object_get(value, "strip_right"));
    } else if (strcmp(type, "Prepend") == 0) {
        s->kind = PREPEND;
        QN_TRY(take_string(what, type, value, "prepend", &s->text, &s->n));
        z->n_texts += s->n;
    } else if (strcmp(type, "Replace") == 0) {
        const char *literal;
        s->kind = REPLACE;
        QN_TRY(take_string(what, type, value, "content", &s->text, &s->n));
        z->n_texts += s->n;
        QN_TRY(qn_pattern_from_json(what, value, &literal, &s->n_literal, &s->regex));
        if (literal && !(s->literal = qn_strndup(literal, s->n_literal))) return QN_E_NOMEM;
    } else {
        z->n_steps--;
        return qn_fail(QN_E_UNSUPPORTED, "%s: normalizer \"%s\" is not supported", what, type);
    }
    return QN_OK;
}

qn_status qn_normalizer_from_json(const char *what, const json_t *value, qn_normalizer **out)
{
    qn_normalizer *z = qn_calloc(1, sizeof *z);
    if (!z) return QN_E_NOMEM;
    qn_status status = !value || json_is_null(value) ? QN_OK : add(z, what, value, 0);
    if (status != QN_OK) {
        qn_normalizer_free(z);
        return status;
    }
    *out = z;
    return QN_OK;
}

qn_status qn_normalizer_for_pieces(qn_piece_rules *rules, qn_normalizer **out)
{
    qn_normalizer *z = qn_calloc(1, sizeof *z);
    if (!z) return QN_E_NOMEM;
    z->steps[0] = (step){.kind = PIECES, .rules = *rules};
    z->n_steps = 1;
    *rules = (qn_piece_rules){0};
    *out = z;
    return QN_OK;
}

void qn_normalizer_free(qn_normalizer *z)
{
    if (!z) return;
    for (int i = 0; i < z->n_steps; i++) {
        qn_free(z->steps[i].text);
        qn_free(z->steps[i].literal);
        qn_regex_free(z->steps[i].regex);
        qn_charsmap_free(&z->steps[i].map);
        qn_piece_rules_free(&z->steps[i].rules);
    }
    qn_free(z);
}

int qn_normalizer_is_empty(const qn_normalizer *z)
{
    return z->n_steps == 0;
}

static int is_ascii(const char *s, size_t n)
{
    size_t i = 0;
    uint64_t word;
    for (; i + 8 <= n; i += 8) {
        memcpy(&word, s + i, 8);
        if (word & 0x8080808080808080u) return 0;
    }
    for (; i < n; i++)
        if ((uint8_t)s[i] >= 0x80) return 0;
    return 1;
}

/* Puts the marks of points[0..n) that follow each other in the order of their combining classes, those of one
 * class as they were (the canonical ordering). Long rows by counting: a text may be nothing but marks.
 * spare: [n]. */
static void order_marks(int32_t *points, size_t n, int32_t *spare)
{
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && utf8proc_get_property(points[end])->combining_class;) end++;
        if (end - i < 2) continue;
        if (end - i <= SORT_FEW) {
            for (size_t k = i + 1; k < end; k++) {
                int32_t point = points[k];
                int class = utf8proc_get_property(point)->combining_class;
                size_t at = k;
                for (; at > i && utf8proc_get_property(points[at - 1])->combining_class > class; at--)
                    points[at] = points[at - 1];
                points[at] = point;
            }
            continue;
        }
        size_t place[257] = {0}; /* of the next mark of a class */
        for (size_t k = i; k < end; k++) place[utf8proc_get_property(points[k])->combining_class + 1]++;
        for (int c = 0; c < 256; c++) place[c + 1] += place[c];
        for (size_t k = i; k < end; k++)
            spare[place[utf8proc_get_property(points[k])->combining_class]++] = points[k];
        memcpy(points + i, spare, (end - i) * sizeof *points);
    }
}

/* A run in decomposed form, marks in order: points[0..*n), which grows; spare likewise. */
static qn_status decompose(utf8proc_option_t form, const char *text, size_t n_text, int32_t **points,
                           int32_t **spare, size_t *capacity, size_t *n)
{
    enum { LONGEST = 32 }; /* code points that one decomposes into: 18 */
    size_t count = 0;
    uint32_t cp;
    for (size_t i = 0, used; i < n_text && (used = qn_utf8_decode(text + i, n_text - i, &cp)); i += used) {
        if (*capacity - count < LONGEST) {
            size_t more = *capacity * 2 + n_text + LONGEST, size_bytes;
            if (!qn_mul_size(more, sizeof **points, &size_bytes)) return qn_fail_nomem(SIZE_MAX);
            int32_t *fresh = qn_realloc(*points, size_bytes);
            if (!fresh) return QN_E_NOMEM;
            *points = fresh;
            fresh = qn_realloc(*spare, size_bytes);
            if (!fresh) return QN_E_NOMEM;
            *spare = fresh;
            *capacity = more;
        }
        utf8proc_ssize_t made =
            utf8proc_decompose_char((utf8proc_int32_t)cp, *points + count, LONGEST, form, NULL);
        if (made < 0 || made > LONGEST)
            return qn_fail(QN_E_INTERNAL, "Unicode normalisation: %s", utf8proc_errmsg(made));
        count += (size_t)made;
    }
    order_marks(*points, count, *spare);
    *n = count;
    return QN_OK;
}

/* The end of the run of code points from at on that a form may change or reorder. *inert: bytes of the code
 * point there, if the run ends before one that the reference leaves alone and utf8proc does not. */
static size_t run_end(const qn_buf *in, size_t at, size_t *inert)
{
    uint32_t cp;
    *inert = 0;
    for (size_t used; at < in->length && (uint8_t)in->data[at] >= 0x80; at += used) {
        used = qn_utf8_decode(in->data + at, in->length - at, &cp);
        if (!used) used = 1; /* cannot be: the text was made valid before */
        if (!qn_cp_in(&qn_never_normalized, cp)) continue;
        *inert = used;
        break;
    }
    return at;
}

/* Unicode normalisation works on runs that start and end with ASCII, which no form changes or reorders; that
 * keeps the working memory (8 bytes a code point) small and leaves most text alone. */
static qn_status normal_form(utf8proc_option_t form, const qn_buf *in, qn_buf *out)
{
    if (is_ascii(in->data, in->length)) {
        qn_buf_append(out, in->data, in->length);
        return out->status;
    }
    size_t capacity = 0, n = 0;
    int32_t *points = NULL, *spare = NULL;
    qn_status status = QN_OK;
    for (size_t i = 0; i < in->length && status == QN_OK;) {
        size_t plain = i;
        while (plain < in->length && (uint8_t)in->data[plain] < 0x80) plain++;
        size_t inert, end = run_end(in, plain, &inert);
        size_t start = plain > i ? plain - 1 : plain; /* the last ASCII letter may take a mark */
        qn_buf_append(out, in->data + i, start - i);
        status = decompose(form, in->data + start, end - start, &points, &spare, &capacity, &n);
        if (status != QN_OK) break;
        int64_t n_normal = utf8proc_normalize_utf32(points, (utf8proc_ssize_t)n, form);
        for (int64_t j = 0; j < n_normal; j++) {
            char utf8[4];
            qn_buf_append(out, utf8, qn_utf8_encode((uint32_t)points[j], utf8));
        }
        qn_buf_append(out, in->data + end, inert);
        i = end + inert;
    }
    qn_free(points);
    qn_free(spare);
    return status == QN_OK ? out->status : status;
}

static uint32_t lower(uint32_t cp)
{
    uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    for (int i = 0; i < qn_late_lower_count && low == cp && cp >= qn_late_lower[0].from; i++)
        if (cp - qn_late_lower[i].from < qn_late_lower[i].count)
            low = qn_late_lower[i].to + (cp - qn_late_lower[i].from);
    return low;
}

static void lowercase(const qn_buf *in, qn_buf *out)
{
    uint32_t cp;
    for (size_t i = 0, used; i < in->length && (used = qn_utf8_decode(in->data + i, in->length - i, &cp));
         i += used) {
        char utf8[4];
        if (cp == 0x130) /* the one letter whose lower case is two code points */
            qn_buf_puts(out, "i\xcc\x87");
        else
            qn_buf_append(out, utf8, qn_utf8_encode(lower(cp), utf8));
    }
}

static void strip(const step *s, const qn_buf *in, qn_buf *out)
{
    size_t start = 0, end = in->length, used;
    uint32_t cp;
    while (s->left && start < end && (used = qn_utf8_decode(in->data + start, end - start, &cp)) &&
           qn_cp_is_space(cp))
        start += used;
    while (s->right && end > start) {
        size_t at = end - 1;
        while (at > start && ((uint8_t)in->data[at] & 0xc0) == 0x80) at--;
        if (!qn_utf8_decode(in->data + at, end - at, &cp) || !qn_cp_is_space(cp)) break;
        end = at;
    }
    qn_buf_append(out, in->data + start, end - start);
}

static void strip_accents(const step *s, const qn_buf *in, qn_buf *out)
{
    uint32_t cp;
    for (size_t i = 0, used; i < in->length && (used = qn_utf8_decode(in->data + i, in->length - i, &cp));
         i += used)
        if (cp < 0x80 || !qn_cp_in(s->marks, cp)) qn_buf_append(out, in->data + i, used);
}

static void bert_clean(const qn_buf *in, qn_buf *out)
{
    uint32_t cp;
    for (size_t i = 0, used; i < in->length && (used = qn_utf8_decode(in->data + i, in->length - i, &cp));
         i += used) {
        if (cp == '\t' || cp == '\n' || cp == '\r')
            qn_buf_putc(out, ' ');
        else if (cp > ' ' && cp < 0x7f)
            qn_buf_putc(out, (char)cp);
        else if (qn_cp_in(&qn_removed_by_bert, cp))
            continue;
        else if (qn_cp_is_space(cp))
            qn_buf_putc(out, ' ');
        else
            qn_buf_append(out, in->data + i, used);
    }
}

static int is_chinese(uint32_t cp)
{
    static const qn_cp_range rows[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                       {0x20000, 0x2a6df}, {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf},
                                       {0x2f800, 0x2fa1f}};
    static const qn_cp_set set = {rows, sizeof rows / sizeof rows[0]};
    return cp >= rows[0].first && qn_cp_in(&set, cp);
}

static void bert_chinese(const qn_buf *in, qn_buf *out)
{
    uint32_t cp;
    for (size_t i = 0, used; i < in->length && (used = qn_utf8_decode(in->data + i, in->length - i, &cp));
         i += used) {
        int apart = is_chinese(cp);
        if (apart) qn_buf_putc(out, ' ');
        qn_buf_append(out, in->data + i, used);
        if (apart) qn_buf_putc(out, ' ');
    }
}

static qn_status replace(const step *s, qn_regex_match *m, const qn_buf *in, qn_buf *out)
{
    size_t done = 0;
    if (s->literal) {
        for (;;) {
            size_t at = qn_find_bytes(in->data, in->length, done, s->literal, s->n_literal);
            qn_buf_append(out, in->data + done, at - done);
            if (at == in->length) return out->status;
            qn_buf_append(out, s->text, s->n);
            done = at + s->n_literal;
        }
    }
    qn_regex_walk w = {0};
    for (;;) {
        int found;
        size_t start, end;
        QN_TRY(qn_regex_next(s->regex, m, in->data, in->length, &w, &found, &start, &end));
        if (!found) break;
        qn_buf_append(out, in->data + done, start - done);
        qn_buf_append(out, s->text, s->n);
        done = end;
        if (out->status != QN_OK) return out->status;
    }
    qn_buf_append(out, in->data + done, in->length - done);
    return out->status;
}

static qn_status run_step(const step *s, qn_regex_match *m, qn_text_place place, const qn_buf *in,
                          qn_buf *out)
{
    switch (s->kind) {
    case FORM:
        return normal_form(s->form, in, out);
    case LOWERCASE:
        lowercase(in, out);
        break;
    case STRIP:
        strip(s, in, out);
        break;
    case STRIP_ACCENTS:
        strip_accents(s, in, out);
        break;
    case BERT_CLEAN:
        bert_clean(in, out);
        break;
    case PIECES:
        qn_piece_rules_run(&s->rules, in->data, in->length,
                           place == QN_AFTER_NOTHING || (place == QN_AFTER_TOKEN && !s->rules.prefix_once),
                           place == QN_AFTER_TEXT, out);
        break;
    case PRECOMPILED:
        qn_charsmap_clusters(&s->map, in->data, in->length, out);
        break;
    case BERT_CHINESE:
        bert_chinese(in, out);
        break;
    case PREPEND:
        if (in->length) qn_buf_append(out, s->text, s->n);
        qn_buf_append(out, in->data, in->length);
        break;
    case REPLACE:
        return replace(s, m, in, out);
    case BYTE_LEVEL:
        qn_byte_level_encode(in->data, in->length, out);
        break;
    }
    return out->status;
}

qn_status qn_normalizer_run(const qn_normalizer *z, qn_regex_match *m, qn_text_place place, qn_buf *text,
                            qn_buf *spare)
{
    size_t n = text->length, most = TEXT_MAX;
    if (n < most / GROWTH_MAX && z->n_texts < most / 2 - GROWTH_SPARE)
        most = n * GROWTH_MAX + z->n_texts + GROWTH_SPARE;
    for (int i = 0; i < z->n_steps; i++) {
        if (place == QN_AFTER_TEXT && z->steps[i].kind == PREPEND) continue;
        qn_buf_reset(spare);
        spare->limit_bytes = most;
        qn_buf_append(text, "", 0); /* data is never NULL */
        if (text->status != QN_OK) return text->status;
        qn_status status = run_step(&z->steps[i], m, place, text, spare);
        if (status == QN_E_FULL)
            return qn_fail(QN_E_FULL, "the normalizer makes more than %zu bytes from a text of %zu bytes",
                           most, n);
        QN_TRY(status);
        qn_buf swap = *text;
        *text = *spare;
        *spare = swap;
    }
    text->limit_bytes = spare->limit_bytes = 0; /* another text has other limits */
    return text->status;
}
