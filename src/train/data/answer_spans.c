#include "train/data/answer_spans.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"

static int is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "assistant") == 0;
}

/* ---- rendering a part of the chat ---- */

typedef struct {
    const qn_chat_text *text;
    const json_t *request, *messages;
    const qn_rendered *whole;
} chat;

/* The first n messages, that at place `changed` by another (NULL: as they are). *found 0: the template
 * refuses such a chat. */
static qn_status render(const chat *c, size_t n, int asks, size_t changed, json_t *other, qn_rendered *out,
                        int *found)
{
    json_t *request = qn_json_copy(c->request), *messages = json_array();
    int failed = !request || !messages;
    for (size_t i = 0; i < n && !failed; i++)
        failed =
            json_array_append(messages, other && i == changed ? other : json_array_get(c->messages, i)) != 0;
    failed = failed || json_object_set(request, "messages", messages) ||
             json_object_set_new(request, "add_generation_prompt", json_boolean(asks));
    *out = (qn_rendered){0};
    qn_status status = failed ? qn_fail_nomem(sizeof *out) : qn_chat_text_render_parts(c->text, request, out);
    json_decref(messages);
    json_decref(request);
    *found = status == QN_OK;
    return status == QN_E_NOMEM ? status : QN_OK;
}

/* ---- comparing texts ---- */

static size_t common_begin(const qn_rendered *a, const qn_rendered *b)
{
    size_t n = 0, most = a->n < b->n ? a->n : b->n;
    while (n < most && a->text[n] == b->text[n]) n++;
    return n;
}

/* Of what lies behind the first `from` bytes of both. */
static size_t common_end(const qn_rendered *a, const qn_rendered *b, size_t from)
{
    size_t n = 0, most = (a->n < b->n ? a->n : b->n) - from;
    while (n < most && a->text[a->n - 1 - n] == b->text[b->n - 1 - n]) n++;
    return n;
}

static int begins_with(const qn_rendered *a, const qn_rendered *b)
{
    return a->n >= b->n && common_begin(a, b) == b->n;
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Where templates end a word of their own. */
static int ends_word(char c)
{
    return is_space(c) || c == '>' || c == ']';
}

/* The end of text[0..end) without the template's own white space. */
static size_t without_space(const qn_rendered *r, size_t end, size_t least)
{
    size_t i = r->n_segments;
    while (i && r->segments[i - 1].offset >= end) i--;
    while (end > least && i && is_space(r->text[end - 1])) {
        if (!r->segments[i - 1].trusted) break;
        end--;
        if (end == r->segments[i - 1].offset) i--;
    }
    return end;
}

/* Is text[0..end) at its end what other[begin..begin + n) is? */
static int ends_with(const qn_rendered *r, size_t end, const qn_rendered *other, size_t begin, size_t n)
{
    return end >= n && memcmp(r->text + end - n, other->text + begin, n) == 0;
}

/* ---- one answer ---- */

/* The chat up to an answer, and that with the answer. */
typedef struct {
    size_t i;            /* of the message */
    qn_rendered before;  /* the messages before it, asking for it */
    qn_rendered with;    /* the messages up to it */
    size_t header, said; /* of `with`: where what the template writes before an answer begins, and ends */
    int has_header;      /* else header is just some bytes before the answer */
    int is_known;        /* said is; else the texts do not agree on it */
} turn;

/* The end of the last byte that is not the template's. */
static size_t last_words(const qn_rendered *r)
{
    size_t i = r->n_segments;
    while (i && r->segments[i - 1].trusted) i--;
    return i ? r->segments[i - 1].offset + r->segments[i - 1].n : 0;
}

/* What stands before the answer in t->with, and where that ends if t->before goes on in another way. */
static qn_status find_header(const chat *c, turn *t)
{
    enum { HEADER_LEAST = 8, HEADER_UNKNOWN = 24 };
    qn_rendered history;
    int rendered;
    QN_TRY(render(c, t->i, 0, 0, NULL, &history, &rendered));
    /* Where asking makes no difference the history does not tell where the header begins. */
    t->has_header = rendered && history.n < t->before.n;
    t->header = t->has_header ? common_begin(&history, &t->with) : 0;
    qn_rendered_free(&history);
    if (!t->is_known && t->i) { /* asking opens more than answers begin with, such as a tag for reasoning */
        while (t->said && !ends_word(t->with.text[t->said - 1])) t->said--;
        t->is_known = t->said >= t->header && t->said >= last_words(&t->before);
    }
    const size_t least = t->has_header ? HEADER_LEAST : HEADER_UNKNOWN;
    if (t->has_header && t->header + least <= t->said) return QN_OK;
    t->header = t->said > least ? t->said - least : 0;
    t->has_header = 0;
    return QN_OK;
}

/* The calls with another name in the first one. Copies are shallow: what changes is copied, all else shared.
 */
static json_t *rename_call(const json_t *calls, const char *word)
{
    const json_t *call = json_array_get(calls, 0), *function = json_object_get(call, "function");
    json_t *named = qn_json_copy(function ? function : call), *list = qn_json_copy(calls), *outer = NULL;
    int failed = !named || !list || json_object_set_new(named, "name", json_string(word));
    if (!failed && function) {
        outer = qn_json_copy(call);
        failed = !outer || json_object_set(outer, "function", named);
    }
    failed = failed || json_array_set(list, 0, function ? outer : named);
    json_decref(outer);
    json_decref(named);
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

static int says_content(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    return json_string_length(content) || json_array_size(content);
}

/* The answer with another word in it. NULL: it says nothing, or there is no memory (*status). */
static json_t *change_words(const json_t *message, const char *word, qn_status *status)
{
    const json_t *content = json_object_get(message, "content"),
                 *calls = json_object_get(message, "tool_calls");
    const char *key = "content";
    json_t *value, *changed;
    if (json_string_length(content)) {
        value = json_string(word);
    } else if (json_array_size(content)) {
        value = json_pack("[{s:s, s:s}]", "type", "text", "text", word);
    } else if (json_is_object(json_array_get(calls, 0))) {
        key = "tool_calls";
        value = rename_call(calls, word);
    } else {
        return NULL;
    }
    changed = value ? qn_json_copy(message) : NULL;
    if (changed && json_object_set(changed, key, value) == 0) {
        json_decref(value);
        return changed;
    }
    json_decref(value);
    json_decref(changed);
    *status = qn_fail_nomem(sizeof *changed);
    return NULL;
}

static const char *unused_word(const qn_rendered *a, const qn_rendered *b)
{
    static const char *const words[] = {"\xe2\x98\x83", "\xe2\x99\x9e", "\xe2\x9d\x82", "\xce\x9e"};
    size_t i = 0, n = sizeof words / sizeof *words;
    while (i + 1 < n && (strstr(a->text, words[i]) || strstr(b->text, words[i]))) i++;
    return words[i];
}

/* What of r changes when the message's words do: whole characters. *found 0: nothing does. */
static qn_status find_words(const chat *c, const qn_rendered *r, size_t n, const turn *t, json_t *changed,
                            size_t *begin, size_t *end, int *found)
{
    qn_rendered other;
    QN_TRY(render(c, n, 0, t->i, changed, &other, found));
    if (*found) {
        *begin = common_begin(r, &other);
        *end = r->n - common_end(r, &other, *begin);
        while (*begin && ((uint8_t)r->text[*begin] & 0xc0) == 0x80) --*begin;
        while (*end < r->n && ((uint8_t)r->text[*end] & 0xc0) == 0x80) ++*end;
        *found = *begin < *end;
    }
    qn_rendered_free(&other);
    return QN_OK;
}

/* With how many bytes of the header text[0..end) ends: all, or its first words, since history may leave out
 * the reasoning that asking opens. 0: too few. */
static size_t match_header(const qn_rendered *r, size_t end, const turn *t)
{
    enum { LEAST = 4 };
    size_t n = t->said - t->header;
    if (ends_with(r, end, &t->with, t->header, n)) return n;
    for (; t->has_header && n >= LEAST; n--)
        if (ends_word(t->with.text[t->header + n - 1]) && ends_with(r, end, &t->with, t->header, n)) return n;
    return 0;
}

/* How much of what t->with has between header and words stands before the words in r too, the header before
 * it. */
static int find_lead(const qn_rendered *r, size_t words, const turn *t, size_t with_words, size_t *out)
{
    const size_t whole = with_words - t->said;
    size_t most = 0;
    while (most < whole && most < words && r->text[words - 1 - most] == t->with.text[with_words - 1 - most])
        most++;
    for (size_t n = most + 1; n-- > 0;)
        if (ends_with(r, words - n, &t->with, t->header, t->said - t->header)) {
            *out = n;
            return 1;
        }
    const size_t behind = match_header(r, words - most, t), at_once = match_header(r, words, t);
    *out = behind > at_once ? most : 0;
    return behind || at_once;
}

/* The answer in a text that has another history, or another form of it, than t->with. What comes before its
 * words is its own only behind a header as it is there. */
static qn_status find_by_words(const chat *c, const turn *t, qn_answer_span *out)
{
    size_t with_begin, with_end, begin, end;
    qn_status status = QN_OK;
    int found = 0;
    const json_t *message = json_array_get(c->messages, t->i);
    json_t *changed = change_words(message, unused_word(c->whole, &t->with), &status);
    if (changed) status = find_words(c, &t->with, t->i + 1, t, changed, &with_begin, &with_end, &found);
    if (status == QN_OK && found)
        status = find_words(c, c->whole, json_array_size(c->messages), t, changed, &begin, &end, &found);
    json_decref(changed);
    if (status != QN_OK || !found) return status;
    size_t lead = 0;
    const int is_known = t->is_known && with_begin >= t->said;
    if (!(is_known && find_lead(c->whole, begin, t, with_begin, &lead)) && !says_content(message))
        return QN_OK; /* the name of a call is not how the answer begins */
    begin -= lead;
    const size_t tail = without_space(&t->with, t->with.n, with_end) - with_end;
    if (tail <= c->whole->n - end && ends_with(c->whole, end + tail, &t->with, with_end, tail)) end += tail;
    *out = (qn_answer_span){begin, end};
    return QN_OK;
}

/* Templates write a preamble of their own before the first message, but not where there is none: of a chat
 * that the assistant begins, what asking gives stands behind that preamble, or what is asked for is not
 * known. */
static void skip_preamble(turn *t)
{
    const char *text = t->with.text,
               *at = t->before.n ? memmem(text, t->with.n, t->before.text, t->before.n) : NULL;
    t->is_known = at != NULL;
    if (at) t->said = (size_t)(at - text) + t->before.n;
}

static qn_status find_answer(const chat *c, size_t i, qn_answer_span *out)
{
    turn t = {.i = i};
    int rendered = 0;
    qn_status status = render(c, i, 1, 0, NULL, &t.before, &rendered);
    if (status == QN_OK && rendered) status = render(c, i + 1, 0, 0, NULL, &t.with, &rendered);
    if (status == QN_OK && rendered) {
        const int goes_on = begins_with(c->whole, &t.with);
        t.said = common_begin(&t.before, &t.with);
        t.is_known = t.said == t.before.n;
        if (!t.is_known && !i) skip_preamble(&t);
        if (!(t.is_known && goes_on)) status = find_header(c, &t);
        if (status == QN_OK && t.is_known && goes_on)
            *out = (qn_answer_span){t.said, without_space(c->whole, t.with.n, t.said)};
        else if (status == QN_OK)
            status = find_by_words(c, &t, out);
    }
    qn_rendered_free(&t.before);
    qn_rendered_free(&t.with);
    return status;
}

/* ---- all of them ---- */

/* The first token in text[begin..end) that ends a turn. end == begin: there is none. */
static qn_answer_span find_turn_end(const qn_tokenizer *t, const char *text, size_t begin, size_t end)
{
    size_t n_ids[2], n;
    const int32_t *ids[2] = {qn_tokenizer_turn_end_ids(t, &n_ids[0]), qn_tokenizer_eos_ids(t, &n_ids[1])};
    qn_answer_span found = {end, end};
    for (int list = 0; list < 2; list++)
        for (size_t k = 0; k < n_ids[list]; k++) {
            const char *own = qn_tokenizer_token_text(t, ids[list][k], &n);
            const char *at = own && n ? memmem(text + begin, end - begin, own, n) : NULL;
            if (at && (size_t)(at - text) < found.begin)
                found = (qn_answer_span){(size_t)(at - text), (size_t)(at - text) + n};
        }
    return found;
}

/* An answer ends with the first token behind its words that ends a turn. Some templates write that only when
 * another message follows: it may lie behind the span, next to it or where the span has nothing but words. */
static void end_at_turn(const qn_chat_text *c, const qn_rendered *r, qn_answer_span *s)
{
    const qn_tokenizer *t = qn_chat_text_tokenizer(c);
    size_t words = s->begin, i = 0;
    for (; i < r->n_segments && r->segments[i].offset < s->end; i++)
        if (!r->segments[i].trusted) words = r->segments[i].offset + r->segments[i].n;
    if (words > s->end) return; /* the template has put a name into it that is not its own */
    if (words == s->end && i < r->n_segments && r->segments[i].trusted) i++;
    const size_t run_end = i ? r->segments[i - 1].offset + r->segments[i - 1].n : s->end;
    const qn_answer_span inside = find_turn_end(t, r->text, words, s->end);
    if (inside.begin < inside.end) {
        s->end = inside.end;
        return;
    }
    size_t next = s->end;
    while (next < run_end && is_space(r->text[next])) next++;
    const qn_answer_span behind = find_turn_end(t, r->text, next, run_end);
    if (behind.begin < behind.end && (behind.begin == next || words == s->end)) s->end = behind.end;
}

/* Each answer takes a few renderings of what comes before it. */
static qn_status check_work(const chat *c, size_t n_answers)
{
    enum { WORK_MAX = 1 << 28, WORK_PER_MESSAGE = 256 };
    const size_t n = json_array_size(c->messages), each = c->whole->n + n * WORK_PER_MESSAGE;
    if (n_answers <= WORK_MAX / each) return QN_OK;
    return qn_fail(QN_E_FULL,
                   "a chat of %zu messages and %zu bytes is too long, because the chat template does not "
                   "mark the answers",
                   n, c->whole->n);
}

qn_status qn_answer_spans_find(const qn_chat_text *c, const json_t *request, size_t first,
                               const qn_rendered *whole, qn_answer_spans *out)
{
    const json_t *messages = json_object_get(request, "messages");
    const chat all = {c, request, messages, whole};
    size_t n_before = 0, n = 0, done = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!is_answer(json_array_get(messages, i))) continue;
        n_before += i < first;
        n += i >= first;
    }
    qn_answer_spans made = {.spans = qn_calloc(n, sizeof *made.spans)};
    if (!made.spans) return QN_E_NOMEM;
    const int is_marked = n && whole->n_generations == n_before + n;
    qn_status status = is_marked ? QN_OK : check_work(&all, n);
    for (size_t i = first; i < json_array_size(messages) && status == QN_OK; i++) {
        if (!is_answer(json_array_get(messages, i))) continue;
        const qn_rendered_span *mark = is_marked ? &whole->generations[n_before + (size_t)made.n] : NULL;
        qn_answer_span span = {0};
        if (mark)
            span = (qn_answer_span){mark->offset, mark->offset + mark->n};
        else
            status = find_answer(&all, i, &span);
        if (span.begin < span.end) end_at_turn(c, whole, &span);
        if (span.begin < done || span.end <= span.begin) span = (qn_answer_span){done, done};
        done = span.end;
        made.spans[made.n++] = span;
    }
    if (status == QN_OK)
        *out = made;
    else
        qn_answer_spans_free(&made);
    return status;
}

void qn_answer_spans_free(qn_answer_spans *s)
{
    qn_free(s->spans);
    *s = (qn_answer_spans){0};
}
