#include "text/tokenizer/split/pretokenize.h"

#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/split/byte_level.h"
#include "text/tokenizer/split/normalize.h"
#include "text/tokenizer/split/reference.h"
#include "text/tokenizer/split/split_fast.h"
#include "text/tokenizer/split/stand_in.h"
#include "text/tokenizer/split/unicode.h"

enum { STEPS_MAX = 64 };

typedef enum {
    REMOVED,
    ISOLATED,
    MERGED_WITH_PREVIOUS,
    MERGED_WITH_NEXT,
    CONTIGUOUS,
    BEHAVIOR_COUNT
} behavior;
static const char *const behavior_names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                             "Contiguous"};

typedef enum { SPLIT, BYTE_LEVEL, METASPACE, FIXED_LENGTH } step_kind;
typedef int class_fn(uint32_t cp);

typedef struct {
    step_kind kind;
    /* SPLIT, and what BYTE_LEVEL and METASPACE split by: the first of these that is set finds the delimiters.
     */
    class_fn *class; /* every character of a class */
    qn_regex *regex;
    char *literal;
    size_t n_literal;
    qn_split_kind fast;
    behavior behavior;
    int invert;
    int splits; /* BYTE_LEVEL: use_regex, METASPACE: split */
    int prefix; /* BYTE_LEVEL: a space in front; METASPACE: 1 always, 2 first */
    char replacement[8];
    size_t n_replacement;
    size_t length; /* FIXED_LENGTH */
} step;

struct qn_pretokenizer {
    step steps[STEPS_MAX];
    int n_steps;
    int fast;
};

void qn_pieces_free(qn_pieces *p)
{
    qn_buf_free(&p->text);
    qn_free(p->start);
    qn_free(p->length);
    *p = (qn_pieces){0};
}

static qn_status push(qn_pieces *p, size_t start, size_t end)
{
    if (start == end) return QN_OK;
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 64, total;
        if (!qn_mul_size(capacity, sizeof *p->start, &total)) return qn_fail_nomem(SIZE_MAX);
        size_t *starts = qn_realloc(p->start, total);
        if (!starts) return QN_E_NOMEM;
        p->start = starts;
        size_t *lengths = qn_realloc(p->length, total);
        if (!lengths) return QN_E_NOMEM;
        p->length = lengths;
        p->capacity = capacity;
    }
    p->start[p->n] = start;
    p->length[p->n++] = end - start;
    return QN_OK;
}

qn_status qn_pieces_set(qn_pieces *p, const char *text, size_t n)
{
    qn_buf_reset(&p->text);
    qn_buf_append(&p->text, text, n);
    if (p->text.status != QN_OK) return p->text.status;
    p->n = 0;
    return push(p, 0, n);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static qn_status bad_field(const char *what, const char *type, const char *field)
{
    return qn_fail(QN_E_FORMAT, "%s: pre-tokenizer %s: bad or missing %s", what, type, field);
}

static qn_status read_behavior(const char *what, const char *type, const json_t *value, behavior missing,
                               behavior *out)
{
    const json_t *v = json_object_get(value, "behavior");
    if (!v) {
        *out = missing;
        return QN_OK;
    }
    for (int i = 0; i < BEHAVIOR_COUNT && json_is_string(v); i++)
        if (strcasecmp(json_string_value(v), behavior_names[i]) == 0) {
            *out = (behavior)i;
            return QN_OK;
        }
    return bad_field(what, type, "behavior");
}

static qn_status read_split(const char *what, const json_t *value, step *s)
{
    const char *literal;
    QN_TRY(read_behavior(what, "Split", value, BEHAVIOR_COUNT, &s->behavior));
    if (s->behavior == BEHAVIOR_COUNT) return bad_field(what, "Split", "behavior");
    s->invert = json_is_true(json_object_get(value, "invert"));
    QN_TRY(qn_pattern_from_json(what, value, &literal, &s->n_literal, &s->regex));
    if (literal) {
        s->literal = qn_strndup(literal, s->n_literal);
        return s->literal ? QN_OK : QN_E_NOMEM;
    }
    size_t n;
    const char *pattern = qn_regex_pattern(s->regex, &n);
    /* The scanners give pieces without gaps: the same for every behaviour that cuts at each match and keeps
     * it. */
    if (s->behavior == ISOLATED || (s->behavior == REMOVED && s->invert))
        s->fast = qn_split_kind_of(pattern, n);
    return QN_OK;
}

static qn_status read_metaspace(const char *what, const json_t *value, step *s)
{
    const json_t *replacement = json_object_get(value, "replacement");
    const json_t *scheme = json_object_get(value, "prepend_scheme"), *split = json_object_get(value, "split");
    const json_t *add_prefix = json_object_get(value, "add_prefix_space");
    uint32_t cp;
    s->n_replacement = json_string_length(replacement);
    if (s->n_replacement == 0 || s->n_replacement > 4 ||
        qn_utf8_decode(json_string_value(replacement), s->n_replacement, &cp) != s->n_replacement)
        return bad_field(what, "Metaspace", "replacement");
    memcpy(s->replacement, json_string_value(replacement), s->n_replacement);
    if (json_is_string(scheme)) {
        const char *name = json_string_value(scheme);
        s->prefix = strcmp(name, "always") == 0 ? 1 : strcmp(name, "first") == 0 ? 2 : 0;
        if (!s->prefix && strcmp(name, "never") != 0) return bad_field(what, "Metaspace", "prepend_scheme");
    } else {
        s->prefix = !json_is_false(add_prefix); /* files of before there was a scheme */
    }
    s->splits = !json_is_false(split);
    return QN_OK;
}

static int class_space(uint32_t cp)
{
    return qn_cp_is_space(cp);
}

static int class_number(uint32_t cp)
{
    return cp < 0x80 ? cp >= '0' && cp <= '9' : qn_cp_in(&qn_digits, cp);
}

static int class_punctuation(uint32_t cp)
{
    return qn_cp_in(&qn_punctuation, cp);
}

static qn_status add(qn_pretokenizer *p, const char *what, const json_t *value, int depth);

static qn_status add_sequence(qn_pretokenizer *p, const char *what, const json_t *value, int depth)
{
    const json_t *list = json_object_get(value, "pretokenizers");
    if (!json_is_array(list) || depth > 8) return bad_field(what, "Sequence", "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++)
        QN_TRY(add(p, what, json_array_get(list, i), depth + 1));
    return QN_OK;
}

static qn_status add(qn_pretokenizer *p, const char *what, const json_t *value, int depth)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!type) return qn_fail(QN_E_FORMAT, "%s: a pre-tokenizer has no type", what);
    if (strcmp(type, "Sequence") == 0) return add_sequence(p, what, value, depth);
    if (p->n_steps == STEPS_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d pre-tokenizers in sequence", what, STEPS_MAX);
    step *s = &p->steps[p->n_steps++];
    *s = (step){.kind = SPLIT};
    if (strcmp(type, "Split") == 0) return read_split(what, value, s);
    if (strcmp(type, "ByteLevel") == 0) {
        s->kind = BYTE_LEVEL;
        s->prefix = !json_is_false(json_object_get(value, "add_prefix_space"));
        s->splits = !json_is_false(json_object_get(value, "use_regex"));
        s->behavior = ISOLATED;
        s->fast = QN_SPLIT_GPT2;
        return s->splits ? qn_regex_new(qn_gpt2_pattern, strlen(qn_gpt2_pattern), &s->regex) : QN_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        s->kind = METASPACE;
        return read_metaspace(what, value, s);
    }
    if (strcmp(type, "Digits") == 0) {
        s->class = class_number;
        s->behavior = json_is_true(json_object_get(value, "individual_digits")) ? ISOLATED : CONTIGUOUS;
        return QN_OK;
    }
    if (strcmp(type, "BertPreTokenizer") == 0) { /* at white space, then around punctuation */
        s->class = class_space;
        s->behavior = REMOVED;
        if (p->n_steps == STEPS_MAX)
            return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d pre-tokenizers in sequence", what, STEPS_MAX);
        p->steps[p->n_steps++] = (step){.kind = SPLIT, .class = class_punctuation, .behavior = ISOLATED};
        return QN_OK;
    }
    if (strcmp(type, "Punctuation") == 0) {
        s->class = class_punctuation;
        return read_behavior(what, type, value, ISOLATED, &s->behavior);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        s->class = class_space;
        s->behavior = REMOVED;
        return QN_OK;
    }
    if (strcmp(type, "Whitespace") == 0) {
        /* \w+|[^\w\s]+ of another library, whose words also hold the zero-width joiners. */
        static const char pattern[] = "[\\w\\x{200c}\\x{200d}]+|[^\\w\\x{200c}\\x{200d}\\s]+";
        s->behavior = REMOVED;
        s->invert = 1;
        return qn_regex_new(pattern, strlen(pattern), &s->regex);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        const json_t *delimiter = json_object_get(value, "delimiter");
        s->n_literal = json_string_length(delimiter);
        s->behavior = REMOVED;
        if (s->n_literal == 0) return bad_field(what, type, "delimiter");
        s->literal = qn_strndup(json_string_value(delimiter), s->n_literal);
        return s->literal ? QN_OK : QN_E_NOMEM;
    }
    if (strcmp(type, "FixedLength") == 0) {
        json_int_t length = json_integer_value(json_object_get(value, "length"));
        if (length < 1) return bad_field(what, type, "length");
        s->kind = FIXED_LENGTH;
        s->length = (size_t)length;
        return QN_OK;
    }
    return qn_fail(QN_E_UNSUPPORTED, "%s: pre-tokenizer \"%s\" is not supported", what, type);
}

qn_status qn_pretokenizer_from_json(const char *what, const json_t *value, qn_pretokenizer **out)
{
    qn_pretokenizer *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    p->fast = 1;
    qn_status status = !value || json_is_null(value) ? QN_OK : add(p, what, value, 0);
    if (status != QN_OK) {
        qn_pretokenizer_free(p);
        return status;
    }
    *out = p;
    return QN_OK;
}

void qn_pretokenizer_free(qn_pretokenizer *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_steps; i++) {
        qn_regex_free(p->steps[i].regex);
        qn_free(p->steps[i].literal);
    }
    qn_free(p);
}

int qn_pretokenizer_is_byte_level(const qn_pretokenizer *p)
{
    for (int i = 0; i < p->n_steps; i++)
        if (p->steps[i].kind == BYTE_LEVEL) return 1;
    return 0;
}

void qn_pretokenizer_set_fast(qn_pretokenizer *p, int fast)
{
    p->fast = fast;
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* Pieces of one text from its runs of matches and gaps, which come in order and cover it. */
typedef struct {
    qn_pieces *out;
    size_t base; /* where the text starts in out->text */
    behavior behavior;
    int invert;
    int previous_match; /* of the run before */
    size_t start, end;  /* a piece that may still grow (relative to base); start == end: none */
} assembler;

static qn_status flush(assembler *a)
{
    QN_TRY(push(a->out, a->base + a->start, a->base + a->end));
    a->start = a->end;
    return QN_OK;
}

/* One run [start, end). An empty match separates like any other. */
static qn_status run(assembler *a, size_t start, size_t end, int match)
{
    match ^= a->invert;
    int joins = 0;
    switch (a->behavior) {
    case REMOVED:
        if (!match) QN_TRY(push(a->out, a->base + start, a->base + end));
        return QN_OK;
    case ISOLATED:
        return push(a->out, a->base + start, a->base + end);
    case CONTIGUOUS:
        joins = match == a->previous_match;
        break;
    case MERGED_WITH_PREVIOUS:
        joins = match && !a->previous_match;
        break;
    case MERGED_WITH_NEXT:
        /* As seen from behind: a delimiter joins what follows it, unless that is a delimiter too. */
        joins = !match && a->previous_match;
        break;
    case BEHAVIOR_COUNT:
        break;
    }
    a->previous_match = match;
    if (!joins) {
        QN_TRY(flush(a));
        a->start = start;
    }
    a->end = end;
    return QN_OK;
}

static size_t char_length(const char *s, size_t n, size_t i)
{
    size_t end = i + 1;
    while (end < n && ((uint8_t)s[end] & 0xc0) == 0x80) end++;
    return end - i;
}

static int find_class(class_fn *class, const char *text, size_t n, size_t from, size_t *start, size_t *end)
{
    for (size_t used; from < n; from += used) {
        uint32_t cp;
        used = qn_utf8_decode(text + from, n - from, &cp);
        if (!used) return 0; /* cannot be: the text was made valid before */
        if (!class(cp)) continue;
        *start = from;
        *end = from + used;
        return 1;
    }
    return 0;
}

static qn_status split_at(const step *s, int fast, qn_regex_match *m, const char *text, size_t n, size_t base,
                          qn_pieces *out)
{
    if (fast && s->fast != QN_SPLIT_NONE) {
        for (size_t at = 0; at < n;) {
            size_t end = qn_split_next(s->fast, text, n, at);
            QN_TRY(push(out, base + at, base + end));
            at = end;
        }
        return QN_OK;
    }
    assembler a = {.out = out, .base = base, .behavior = s->behavior, .invert = s->invert};
    qn_regex_walk w = {0};
    size_t done = 0;
    for (;;) {
        int found = 0;
        size_t start = n, end = n;
        if (s->class) {
            found = find_class(s->class, text, n, done, &start, &end);
        } else if (s->regex) {
            QN_TRY(qn_regex_next(s->regex, m, text, n, &w, &found, &start, &end));
        } else {
            start = qn_find_bytes(text, n, done, s->literal, s->n_literal);
            end = start + s->n_literal;
            found = start < n;
        }
        if (!found) break;
        if (done < start) QN_TRY(run(&a, done, start, 0));
        QN_TRY(run(&a, start, end, 1));
        done = end;
    }
    if (done < n) QN_TRY(run(&a, done, n, 0));
    return flush(&a);
}

/* Cuts text[0..n), which lies at base in out->text. */
static qn_status split(const step *s, int fast, qn_regex_match *m, const char *text, size_t n, size_t base,
                       qn_pieces *out)
{
    qn_buf copy = {0};
    qn_status status = s->regex ? qn_replace_young(&text, n, &copy) : QN_OK;
    if (status == QN_OK) status = split_at(s, fast, m, text, n, base, out);
    qn_buf_free(&copy);
    return status;
}

static int starts_with(const char *s, size_t n, const char *prefix, size_t n_prefix)
{
    return n >= n_prefix && memcmp(s, prefix, n_prefix) == 0;
}

static qn_status run_byte_level(const step *s, int fast, qn_regex_match *m, const char *text, size_t n,
                                qn_text_place place, qn_pieces *out, qn_buf *prefixed, qn_pieces *words)
{
    if (s->prefix && place != QN_AFTER_TEXT && text[0] != ' ') {
        qn_buf_reset(prefixed);
        qn_buf_putc(prefixed, ' ');
        qn_buf_append(prefixed, text, n);
        if (prefixed->status != QN_OK) return prefixed->status;
        text = prefixed->data;
        n = prefixed->length;
    }
    words->n = 0;
    if (s->splits)
        QN_TRY(split(s, fast, m, text, n, 0, words));
    else
        QN_TRY(push(words, 0, n));
    qn_buf_reserve(&out->text, 2 * n);
    for (size_t i = 0; i < words->n; i++) {
        size_t base = out->text.length;
        qn_byte_level_encode(text + words->start[i], words->length[i], &out->text);
        QN_TRY(push(out, base, out->text.length));
    }
    return out->text.status;
}

static qn_status run_metaspace(const step *s, const char *text, size_t n, qn_text_place place, qn_pieces *out)
{
    size_t base = out->text.length;
    int prefix = s->prefix == 2 ? place == QN_AFTER_NOTHING : s->prefix && place != QN_AFTER_TEXT;
    if (prefix && text[0] != ' ' && !starts_with(text, n, s->replacement, s->n_replacement))
        qn_buf_append(&out->text, s->replacement, s->n_replacement);
    for (size_t done = 0; done < n;) {
        size_t at = qn_find_bytes(text, n, done, " ", 1);
        qn_buf_append(&out->text, text + done, at - done);
        if (at < n) qn_buf_append(&out->text, s->replacement, s->n_replacement);
        done = at + 1;
    }
    if (out->text.status != QN_OK) return out->text.status;
    n = out->text.length - base;
    if (!s->splits) return push(out, base, base + n);
    step by = {.kind = SPLIT,
               .literal = (char *)s->replacement,
               .n_literal = s->n_replacement,
               .behavior = MERGED_WITH_NEXT};
    return split(&by, 0, NULL, out->text.data + base, n, base, out);
}

static qn_status run_fixed(const step *s, const char *text, size_t n, size_t base, qn_pieces *out)
{
    for (size_t at = 0; at < n;) {
        size_t end = at;
        for (size_t i = 0; i < s->length && end < n; i++) end += char_length(text, n, end);
        QN_TRY(push(out, base + at, base + end));
        at = end;
    }
    return QN_OK;
}

qn_status qn_pretokenizer_run(const qn_pretokenizer *p, qn_regex_match *m, qn_text_place place,
                              qn_pieces *pieces, qn_pieces *spare)
{
    qn_buf prefixed = {0};
    qn_pieces words = {0};
    qn_status status = QN_OK;
    for (int i = 0; i < p->n_steps && status == QN_OK; i++) {
        const step *s = &p->steps[i];
        int rewrites = s->kind == BYTE_LEVEL || s->kind == METASPACE;
        spare->n = 0;
        qn_buf_reset(&spare->text);
        if (!rewrites) { /* the text stays where it is; only the cuts are new */
            qn_buf text = spare->text;
            spare->text = pieces->text;
            pieces->text = text;
        }
        const char *from = rewrites ? pieces->text.data : spare->text.data;
        for (size_t j = 0; j < pieces->n && status == QN_OK; j++) {
            const char *text = from + pieces->start[j];
            size_t n = pieces->length[j];
            qn_text_place here = j == 0 ? place : QN_AFTER_TOKEN;
            if (s->kind == BYTE_LEVEL)
                status = run_byte_level(s, p->fast, m, text, n, here, spare, &prefixed, &words);
            else if (s->kind == METASPACE)
                status = run_metaspace(s, text, n, here, spare);
            else if (s->kind == FIXED_LENGTH)
                status = run_fixed(s, text, n, pieces->start[j], spare);
            else
                status = split(s, p->fast, m, text, n, pieces->start[j], spare);
        }
        qn_pieces swap = *pieces;
        *pieces = *spare;
        *spare = swap;
    }
    qn_buf_free(&prefixed);
    qn_pieces_free(&words);
    return status;
}
