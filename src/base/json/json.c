#include "base/json/json.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int qn_json_depth_ok(const char *text, size_t n, int depth_max)
{
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') {
            for (i++; i < n && text[i] != '"'; i++)
                if (text[i] == '\\') i++;
        } else if (c == '{' || c == '[') {
            if (++depth > depth_max) return 0;
        } else if (c == '}' || c == ']') {
            if (depth > 0) depth--;
        }
    }
    return 1;
}

size_t qn_json_cost(const char *text, size_t n)
{
    /* Of jansson 2.14 with glibc: a value 24 to 48 bytes and its place in an array, which doubles; a member a node of
     * a table with its key; an object a table of 8 places, and 16 more for each member. */
    enum { OBJECT = 400, ARRAY = 200, ELEMENT = 56, MEMBER = 112, TEXT = 48, DIGITS_64_BITS = 19 };
    size_t cost = OBJECT, n_digits = 0, n_exact = 0;
    for (size_t i = 0; i < n; i++) {
        n_digits = text[i] >= '0' && text[i] <= '9' ? n_digits + 1 : 0;
        if (n_digits == DIGITS_64_BITS) n_exact++;
        switch (text[i]) {
        case '"':
            cost += TEXT;
            for (i++; i < n && text[i] != '"'; i++)
                if (text[i] == '\\') i++;
            break;
        case '{':
            cost += OBJECT;
            break;
        case '[':
            cost += ARRAY;
            break;
        case ',':
            cost += ELEMENT;
            break;
        case ':':
            cost += MEMBER;
            break;
        default:
            break;
        }
    }
    /* Integers beyond 64 bits: the text is read twice, each of them becomes an array with a text. */
    return (cost + n) * (n_exact ? 2 : 1) + n_exact * (ARRAY + TEXT);
}

/* ---- watching for the end of memory -------------------------------------------------------------------- */

/* When an allocation fails jansson's reader may leave a byte out and go on, or call the text malformed. So
 * its allocator is watched, by a function that gives what malloc gives: values made before and after, by us
 * and by others, stay interchangeable. Who set an allocator of his own keeps it. */
static _Thread_local int is_reading, ran_out;

static void *watched_malloc(size_t size_bytes)
{
    void *p = qn_foreign_malloc(size_bytes);
    if (!p) ran_out = 1;
    /* A failure that a test asked for is reported, but the reader does not see it: when its buffer cannot
     * grow it drops the closing quote of a string and reads on behind its end. */
    return p || !is_reading ? p : malloc(size_bytes); /* foreign: jansson's */
}

static void watch(void)
{
    json_malloc_t allocate;
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    if (allocate == malloc) json_set_alloc_funcs(watched_malloc, release);
}

/* ---- integers beyond 64 bits --------------------------------------------------------------------------- */

/* 1: the digits text[0..n), with the sign before them, do not fit an int64_t. */
static int beyond_int64(const char *digits, size_t n, int negative)
{
    return n > 19 ||
           (n == 19 && memcmp(digits, negative ? "9223372036854775808" : "9223372036854775807", 19) > 0);
}

typedef enum {
    AS_REALS,  /* Python writes int(1e30) into tokenizer_config.json as 31 digits */
    AS_ROUND,  /* a small real number of as many bytes: no value is too large, no column moves */
    AS_STRINGS /* digits and sign in quotes */
} spelling;

/* A copy of a JSON text in which integers that jansson has no type for are spelled otherwise. NULL: out of memory. */
static char *respell_integers(const char *text, size_t n, spelling as, size_t *out_n, size_t *digits_max)
{
    char *copy = qn_alloc(n + n / 9 + 3), *to = copy; /* two bytes for each 19 or more */
    if (!copy) return NULL;
    for (size_t i = 0, begin; i < n;) {
        begin = i;
        if (text[i] == '"') {
            for (i++; i < n && text[i] != '"'; i++)
                if (text[i] == '\\') i++;
            i = i < n ? i + 1 : n;
        } else {
            while (i < n && ((text[i] >= '0' && text[i] <= '9') || (text[i] && strchr("+-.eE", text[i]))))
                i++;
            if (i == begin) i++;
        }
        int negative = text[begin] == '-';
        size_t first = begin + (size_t)negative, digits = first;
        while (digits < i && text[digits] >= '0' && text[digits] <= '9') digits++;
        const int respell = digits == i && beyond_int64(text + first, digits - first, negative);
        if (respell && digits - first > *digits_max) *digits_max = digits - first;
        if (respell && as == AS_STRINGS) *to++ = '"';
        memcpy(to, text + begin, i - begin);
        to += i - begin;
        if (respell && as == AS_STRINGS) *to++ = '"';
        if (respell && as == AS_REALS) {
            memcpy(to, "e0", 2);
            to += 2;
        }
        if (respell && as == AS_ROUND && text[first] != '0') {
            char *number = to - (digits - first);
            memset(number, '0', digits - first);
            number[1] = '.';
        }
    }
    *out_n = (size_t)(to - copy);
    return copy;
}

/* Loads the text with integers beyond 64 bits spelled otherwise. */
static json_t *load_respelled(const char *text, size_t n, spelling as, size_t flags, json_error_t *error)
{
    size_t respelled_n, digits_max = 0;
    char *respelled = respell_integers(text, n, as, &respelled_n, &digits_max);
    json_t *value = NULL;
    if (!respelled)
        ran_out = 1;
    else if (as != AS_REALS && digits_max > QN_JSON_DIGITS_MAX)
        snprintf(error->text, sizeof error->text - 1, "an integer has more than %d digits",
                 QN_JSON_DIGITS_MAX);
    else
        value = json_loadb(respelled, respelled_n, flags, error);
    qn_free(respelled);
    return value;
}

/* The second element begins with a byte that no UTF-8 has. */
static const char exact_mark = '\xff';

static json_t *make_exact(const json_t *digits)
{
    char text[QN_JSON_DIGITS_MAX + 2] = {exact_mark};
    const size_t n = json_string_length(digits);
    memcpy(text + 1, json_string_value(digits), n);
    json_t *pair = json_array();
    const int failed = json_array_append_new(pair, json_null()) ||
                       json_array_append_new(pair, json_stringn_nocheck(text, n + 1));
    if (!failed) return pair;
    ran_out = 1;
    json_decref(pair);
    return NULL;
}

const char *qn_json_digits(const json_t *value)
{
    const char *text = json_array_size(value) == 2 ? json_string_value(json_array_get(value, 1)) : NULL;
    return text && text[0] == exact_mark ? text + 1 : NULL;
}

static int is_exact(const json_t *value, const json_t *quoted)
{
    return json_is_real(value) && json_is_string(quoted);
}

/* Two trees of one text, the second with strings for integers beyond 64 bits: these become exact in the first one.
 * The caller has looked at the roots. */
static void set_exact(json_t *value, const json_t *quoted)
{
    json_t *each;
    size_t i;
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        const json_t *other =
            json_object_getn(quoted, json_object_iter_key(at), json_object_iter_key_len(at));
        each = json_object_iter_value(at);
        if (!is_exact(each, other))
            set_exact(each, other);
        else if (!(each = make_exact(other)) || json_object_iter_set_new(value, at, each))
            ran_out = 1;
    }
    json_array_foreach(value, i, each)
    {
        const json_t *other = json_array_get(quoted, i);
        if (!is_exact(each, other))
            set_exact(each, other);
        else if (!(each = make_exact(other)) || json_array_set_new(value, i, each))
            ran_out = 1;
    }
}

static json_t *load_exact(const char *text, size_t n, size_t flags, json_error_t *error)
{
    /* This first tree holds that the text is JSON: a string may stand where a number may not. */
    json_t *value = load_respelled(text, n, AS_ROUND, flags, error);
    json_t *quoted = value ? load_respelled(text, n, AS_STRINGS, flags, error) : NULL;
    if (quoted && is_exact(value, quoted)) {
        json_decref(value);
        value = make_exact(quoted);
    } else if (quoted) {
        set_exact(value, quoted);
    } else {
        json_decref(value);
        value = NULL;
    }
    json_decref(quoted);
    return value;
}

static json_t *load(const char *text, size_t n, int exact, size_t flags, json_error_t *error)
{
    flags |= JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *value = json_loadb(text, n, flags, error);
    if (value || json_error_code(error) != json_error_numeric_overflow) return value;
    return exact ? load_exact(text, n, flags, error) : load_respelled(text, n, AS_REALS, flags, error);
}

enum { EXACT = 1, ONE_LINE = 2 /* messages do not say in which line of the text */ };

/* flags are jansson's, ways those above. */
static qn_status parse(const char *what, const char *text, size_t n, size_t flags, int ways, json_t **out)
{
    if (!qn_json_depth_ok(text, n, QN_JSON_DEPTH_MAX))
        return qn_fail(QN_E_FORMAT, "%s: JSON nested deeper than %d", what, QN_JSON_DEPTH_MAX);
    /* jansson overlooks a NUL behind a number or a word ("2\0", "[true\0]"). A raw one is never JSON. */
    const char *nul = n ? memchr(text, 0, n) : NULL;
    if (nul) return qn_fail(QN_E_FORMAT, "%s: NUL byte at offset %zu", what, (size_t)(nul - text));
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
    ran_out = 0;
    json_error_t error = {0}; /* jansson leaves its code as it is when memory is out */
    is_reading = 1;
    json_t *value = load(text, n, ways & EXACT, flags, &error);
    is_reading = 0;
    if (ran_out || (!value && json_error_code(&error) == json_error_out_of_memory)) {
        json_decref(value);
        return qn_fail(QN_E_NOMEM, "%s: out of memory", what);
    }
    if (!value && !(ways & ONE_LINE))
        return qn_fail(QN_E_FORMAT, "%s: line %d column %d: %s", what, error.line, error.column, error.text);
    if (!value) return qn_fail(QN_E_FORMAT, "%s: column %d: %s", what, error.column, error.text);
    *out = value;
    return QN_OK;
}

qn_status qn_json_parse(const char *what, const char *text, size_t n, json_t **out)
{
    return parse(what, text, n, JSON_REJECT_DUPLICATES, 0, out);
}

qn_status qn_json_parse_exact(const char *what, const char *text, size_t n, json_t **out)
{
    return parse(what, text, n, JSON_REJECT_DUPLICATES, EXACT, out);
}

/* The length of a bare word of Python's at text[0..n); 0: there is none. */
static size_t python_word(const char *text, size_t n)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t m = strlen(words[i]);
        if (n < m || memcmp(text, words[i], m) != 0) continue;
        return n == m || strchr(",]} \t\r\n", text[m]) ? m : 0;
    }
    return 0;
}

/* A copy in which the words outside strings have quotes. NULL: out of memory. */
static char *quote_words(const char *text, size_t n, size_t *out_n)
{
    char *copy = qn_alloc(2 * n + 1), *to = copy;
    int in_string = 0, after_value = 0;
    if (!copy) return NULL;
    for (size_t i = 0; i < n;) {
        const size_t word = in_string || after_value ? 0 : python_word(text + i, n - i);
        const size_t step = word ? word : in_string && text[i] == '\\' && i + 1 < n ? 2 : 1;
        if (word) *to++ = '"';
        memcpy(to, text + i, step);
        to += step;
        if (word) *to++ = '"';
        if (!word && text[i] == '"') in_string = !in_string;
        after_value = !in_string && !strchr(",:[{ \t\r\n", text[i]);
        i += step;
    }
    *out_n = (size_t)(to - copy);
    return copy;
}

qn_status qn_json_parse_python(const char *what, const char *text, size_t n, json_t **out)
{
    if (!n || (!memmem(text, n, "NaN", 3) && !memmem(text, n, "Infinity", 8)))
        return qn_json_parse(what, text, n, out);
    size_t quoted_n;
    char *quoted = quote_words(text, n, &quoted_n);
    if (!quoted) return QN_E_NOMEM;
    qn_status status = qn_json_parse(what, quoted, quoted_n, out);
    qn_free(quoted);
    return status;
}

void qn_json_unquote_python(char *text)
{
    char *to = text;
    for (const char *at = text; *at;) {
        if (*at != '"') {
            *to++ = *at++;
            continue;
        }
        const char *end = at + 1;
        while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
        if (*end) end++;
        const size_t n = (size_t)(end - at), word = n > 2 ? python_word(at + 1, n - 2) : 0;
        const int is_value = word && word == n - 2 && *end != ':';
        memmove(to, at + is_value, n - 2 * (size_t)is_value);
        to += n - 2 * (size_t)is_value;
        at = end;
    }
    *to = 0;
}

qn_status qn_json_parse_lenient(const char *what, const char *text, size_t n, json_t **out)
{
    return parse(what, text, n, 0, EXACT, out);
}

qn_status qn_json_parse_line(const char *what, const char *text, size_t n, json_t **out)
{
    return parse(what, text, n, JSON_REJECT_DUPLICATES, EXACT | ONE_LINE, out);
}

static int append(const char *piece, size_t n, void *user)
{
    qn_buf *out = user;
    qn_buf_append(out, piece, n);
    return out->status == QN_OK ? 0 : -1;
}

/* jansson asks for each piece whether it could be written, but for keys; the buffer's status sticks. */
qn_status qn_json_write(qn_buf *out, const json_t *value, size_t flags)
{
    const int failed = json_dump_callback(value, append, out, flags);
    if (failed && out->status == QN_OK) out->status = qn_fail_nomem(0);
    return out->status;
}

json_t *qn_json_copy(const json_t *value)
{
    json_t *copy = json_copy((json_t *)value);
    if (json_object_size(copy) == json_object_size(value) && json_array_size(copy) == json_array_size(value))
        return copy;
    json_decref(copy);
    return NULL;
}
