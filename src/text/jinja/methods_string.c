/* Methods of str. */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja/case.h"

static qn_status method_upper(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, "upper", a, "", 0, NULL));
    return qn_jcase_change(r, self.s, QN_JCASE_UPPER, out);
}

static qn_status method_lower(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, "lower", a, "", 0, NULL));
    return qn_jcase_change(r, self.s, QN_JCASE_LOWER, out);
}

static qn_status method_casefold(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, "casefold", a, "", 0, NULL));
    return qn_jcase_change(r, self.s, QN_JCASE_FOLD, out);
}

static qn_status method_capitalize(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, "capitalize", a, "", 0, NULL));
    return qn_jcase_change(r, self.s, QN_JCASE_CAPITALIZE, out);
}

static qn_status method_title(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, "title", a, "", 0, NULL));
    return qn_jcase_change(r, self.s, QN_JCASE_TITLE, out);
}

static qn_status method_swapcase(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jargs_bind(r, "swapcase", a, "", 0, NULL));
    return qn_jcase_change(r, self.s, QN_JCASE_SWAP, out);
}

/* Is the code point at data[i] one of chars, or white space when chars is NULL? */
static size_t strippable(const qn_jstring *s, size_t i, const qn_jstring *chars)
{
    uint32_t c, other;
    size_t n = qn_jdecode(s->data + i, s->n - i, &c), m;
    if (!chars) return qn_jspace(c) ? n : 0;
    for (size_t j = 0; j < chars->n; j += m) {
        m = qn_jdecode(chars->data + j, chars->n - j, &other);
        if (other == c) return n;
    }
    return 0;
}

static size_t previous_char(const qn_jstring *s, size_t i)
{
    do i--;
    while (i > 0 && ((unsigned char)s->data[i] & 0xC0) == 0x80);
    return i;
}

static qn_status strip(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int left, int right, qn_jvalue *out)
{
    qn_jvalue bound[1];
    qn_jstring *s = self.s, *chars = NULL;
    QN_TRY(qn_jargs_bind(r, "strip", a, "chars", 0, bound));
    if (bound[0].kind != QN_J_MISSING && bound[0].kind != QN_J_NONE)
        QN_TRY(qn_jarg_string(bound[0], "strip: chars", &chars));
    size_t from = 0, to = s->n, n, weight = chars ? chars->n / 4 + 1 : 1;
    while (left && from < to && (n = strippable(s, from, chars)) != 0) from += n;
    while (right && to > from && strippable(s, previous_char(s, to), chars)) to = previous_char(s, to);
    QN_TRY(qn_jheap_walk(&r->heap, (s->n - (to - from)) * weight));
    return qn_jstring_bytes(&r->heap, s, from, to, out);
}

static qn_status method_strip(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return strip(r, self, a, 1, 1, out);
}

static qn_status method_lstrip(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return strip(r, self, a, 1, 0, out);
}

static qn_status method_rstrip(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return strip(r, self, a, 0, 1, out);
}

/* Optional start and end of find, count, startswith...: byte range of self. 0: an empty range beyond the end.
 */
static qn_status bound_range(qn_jrun *r, qn_jstring *s, qn_jvalue from, qn_jvalue to, size_t *start,
                             size_t *end)
{
    qn_jvalue bounds[3] = {from, to, {.kind = QN_J_MISSING}}, part;
    qn_jvalue self = {.kind = QN_J_STRING, .s = s};
    QN_TRY(qn_jheap_scan(&r->heap, s->n));
    QN_TRY(qn_jgetslice(r, self, bounds, &part));
    *start = (size_t)(part.s->data - s->data);
    *end = *start + part.s->n;
    return QN_OK;
}

/* Does s[start, end) begin (or end) with any of the alternatives, a string or a tuple? */
static qn_status affix(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int at_end, qn_jvalue *out)
{
    qn_jvalue bound[3], *alternatives = &bound[0];
    int64_t n = 1;
    size_t start, end;
    QN_TRY(qn_jargs_bind(r, at_end ? "endswith" : "startswith", a, "prefix start end", 1, bound));
    QN_TRY(bound_range(r, self.s, bound[1], bound[2], &start, &end));
    if (bound[0].kind == QN_J_LIST && bound[0].l->shape == QN_JSHAPE_TUPLE) {
        alternatives = bound[0].l->items;
        n = bound[0].l->n;
    }
    *out = qn_jbool(0, 0);
    for (int64_t i = 0; i < n; i++) {
        qn_jstring *s;
        QN_TRY(
            qn_jarg_string(alternatives[i], at_end ? "endswith: the suffix" : "startswith: the prefix", &s));
        size_t at = at_end ? end - s->n : start;
        if (s->n <= end - start && (!s->n || memcmp(self.s->data + at, s->data, s->n) == 0))
            *out = qn_jbool(1, 0);
    }
    return QN_OK;
}

static qn_status method_startswith(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return affix(r, self, a, 0, out);
}

static qn_status method_endswith(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return affix(r, self, a, 1, out);
}

static qn_status remove_affix(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int at_end, qn_jvalue *out)
{
    qn_jvalue bound[1];
    qn_jstring *s = self.s, *part;
    QN_TRY(qn_jargs_bind(r, "removeprefix", a, "affix", 1, bound));
    QN_TRY(qn_jarg_string(bound[0], "the prefix or suffix", &part));
    *out = self;
    QN_TRY(qn_jheap_scan(&r->heap, part->n));
    if (!part->n || part->n > s->n || memcmp(s->data + (at_end ? s->n - part->n : 0), part->data, part->n))
        return QN_OK;
    return qn_jstring_bytes(&r->heap, s, at_end ? 0 : part->n, at_end ? s->n - part->n : s->n, out);
}

static qn_status method_removeprefix(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return remove_affix(r, self, a, 0, out);
}

static qn_status method_removesuffix(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return remove_affix(r, self, a, 1, out);
}

/* The last needle in s[start, end), or SIZE_MAX. Its positions are paid for by the caller, here the bytes
 * that agree at them: of two long texts much alike they are many. */
static qn_status find_last(qn_jrun *r, const qn_jstring *s, const qn_jstring *needle, size_t start,
                           size_t end, size_t *at)
{
    enum { PAY_EVERY = 4096 };
    size_t same = 0;
    *at = SIZE_MAX;
    if (needle->n > end - start) return QN_OK;
    for (size_t i = end - needle->n + 1; i-- > start;) {
        size_t k = 0;
        while (k < needle->n && s->data[i + k] == needle->data[k]) k++;
        if (k == needle->n) {
            *at = i;
            return QN_OK;
        }
        same += k;
        if (same < PAY_EVERY) continue;
        QN_TRY(qn_jheap_search(&r->heap, same));
        same = 0;
    }
    return QN_OK;
}

/* The first (or last) needle in s[start, end), or SIZE_MAX. */
static qn_status find_in(qn_jrun *r, const qn_jstring *s, const qn_jstring *needle, size_t start, size_t end,
                         int last, size_t *at)
{
    QN_TRY(qn_jheap_search(&r->heap, end - start));
    if (last) {
        QN_TRY(find_last(r, s, needle, start, end, at));
        return qn_jheap_search(&r->heap, end - start);
    }
    qn_jstring part = *s;
    part.n = end;
    *at = qn_jstring_find(&part, needle, start);
    return QN_OK;
}

static qn_status find(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int last, int must, qn_jvalue *out)
{
    qn_jvalue bound[3];
    qn_jstring *needle;
    size_t start, end, at;
    QN_TRY(qn_jargs_bind(r, "find", a, "sub start end", 1, bound));
    QN_TRY(qn_jarg_string(bound[0], "find: the substring", &needle));
    QN_TRY(bound_range(r, self.s, bound[1], bound[2], &start, &end));
    QN_TRY(find_in(r, self.s, needle, start, end, last, &at));
    if (at == SIZE_MAX && must) return qn_fail(QN_E_ARG, "substring not found");
    qn_jstring before = {.data = self.s->data, .n = at, .n_chars = -1};
    *out = qn_jint(at == SIZE_MAX ? -1 : qn_jstring_length(&before), 0);
    return QN_OK;
}

static qn_status method_find(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return find(r, self, a, 0, 0, out);
}

static qn_status method_rfind(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return find(r, self, a, 1, 0, out);
}

static qn_status method_index(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return find(r, self, a, 0, 1, out);
}

static qn_status method_rindex(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return find(r, self, a, 1, 1, out);
}

static qn_status method_count(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3];
    qn_jstring *needle, part;
    size_t start, end;
    int64_t count = 0;
    QN_TRY(qn_jargs_bind(r, "count", a, "sub start end", 1, bound));
    QN_TRY(qn_jarg_string(bound[0], "count: the substring", &needle));
    QN_TRY(bound_range(r, self.s, bound[1], bound[2], &start, &end));
    part = *self.s;
    part.n = end;
    part.n_chars = -1;
    if (!needle->n) {
        qn_jstring inside = {.data = part.data + start, .n = end - start, .n_chars = -1};
        *out = qn_jint(qn_jstring_length(&inside) + 1, 0);
        return QN_OK;
    }
    QN_TRY(qn_jheap_search(&r->heap, end - start));
    while ((start = qn_jstring_find(&part, needle, start)) != SIZE_MAX) {
        start += needle->n;
        count++;
    }
    *out = qn_jint(count, 0);
    return QN_OK;
}

qn_status qn_jreplace(qn_jrun *r, const qn_jstring *s, const qn_jstring *old, const qn_jstring *fresh,
                      int64_t count, qn_jvalue *out)
{
    qn_jbuild b;
    size_t from = 0;
    qn_jbuild_init(&b, &r->heap);
    QN_TRY(qn_jheap_search(&r->heap, s->n));
    while (count != 0 && b.status == QN_OK) {
        QN_TRY(qn_jheap_step(&r->heap, 1));
        if (!old->n) { /* between all characters */
            uint32_t c;
            qn_jbuild_string(&b, fresh);
            if (from == s->n) break;
            size_t n = qn_jdecode(s->data + from, s->n - from, &c);
            qn_jbuild_part(&b, s, from, from + n);
            from += n;
        } else {
            size_t at = qn_jstring_find(s, old, from);
            if (at == SIZE_MAX) break;
            qn_jbuild_part(&b, s, from, at);
            qn_jbuild_string(&b, fresh);
            from = at + old->n;
        }
        if (count > 0) count--;
    }
    qn_jbuild_part(&b, s, from, s->n);
    return qn_jbuild_take(&b, out);
}

static qn_status method_replace(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3];
    qn_jstring *old, *fresh;
    int64_t count;
    QN_TRY(qn_jargs_bind(r, "replace", a, "old new count", 2, bound));
    QN_TRY(qn_jarg_string(bound[0], "replace: the old text", &old));
    QN_TRY(qn_jarg_string(bound[1], "replace: the new text", &fresh));
    QN_TRY(qn_jarg_int(bound[2], "replace: count", -1, &count));
    return qn_jreplace(r, self.s, old, fresh, count, out);
}

/* A list of parts that grows. */
typedef struct {
    qn_jrun *run;
    qn_jvalue list;
    int64_t capacity;
} part_list;

static qn_status add_part(part_list *p, qn_jvalue v)
{
    QN_TRY(qn_jheap_step(&p->run->heap, 1));
    if (p->list.l->n == p->capacity) {
        qn_jvalue bigger;
        QN_TRY(qn_jlist_new(&p->run->heap, QN_JSHAPE_LIST, p->capacity * 2, p->list.user, &bigger));
        memcpy(bigger.l->items, p->list.l->items, (size_t)p->list.l->n * sizeof v);
        bigger.l->n = p->list.l->n;
        p->list = bigger;
        p->capacity *= 2;
    }
    p->list.l->items[p->list.l->n++] = v;
    return QN_OK;
}

static qn_status add_bytes(part_list *p, const qn_jstring *s, size_t from, size_t to)
{
    qn_jvalue v;
    QN_TRY(qn_jstring_bytes(&p->run->heap, s, from, to, &v));
    return add_part(p, v);
}

static qn_status open_parts(part_list *p, qn_jrun *r, int user)
{
    p->run = r;
    p->capacity = 8;
    return qn_jlist_new(&r->heap, QN_JSHAPE_LIST, p->capacity, user, &p->list);
}

static void reverse_parts(qn_jlist *l)
{
    for (int64_t i = 0, j = l->n - 1; i < j; i++, j--) {
        qn_jvalue v = l->items[i];
        l->items[i] = l->items[j];
        l->items[j] = v;
    }
}

static int space_before(const qn_jstring *s, size_t to)
{
    return to > 0 && strippable(s, previous_char(s, to), NULL) != 0;
}

/* Split at white space. */
static qn_status split_words(part_list *p, const qn_jstring *s, int64_t most)
{
    size_t at = 0, n;
    while (1) {
        while (at < s->n && (n = strippable(s, at, NULL)) != 0) at += n;
        if (at == s->n) return QN_OK;
        size_t from = at;
        if (most-- == 0) return add_bytes(p, s, from, s->n);
        uint32_t c;
        while (at < s->n && !strippable(s, at, NULL)) at += qn_jdecode(s->data + at, s->n - at, &c);
        QN_TRY(add_bytes(p, s, from, at));
    }
}

static qn_status split_words_back(part_list *p, const qn_jstring *s, int64_t most)
{
    size_t to = s->n;
    while (1) {
        while (space_before(s, to)) to = previous_char(s, to);
        if (!to) return QN_OK;
        if (most-- == 0) return add_bytes(p, s, 0, to);
        size_t from = to;
        while (from > 0 && !space_before(s, from)) from = previous_char(s, from);
        QN_TRY(add_bytes(p, s, from, to));
        to = from;
    }
}

static qn_status split_at(part_list *p, const qn_jstring *s, const qn_jstring *separator, int64_t most)
{
    size_t from = 0, at;
    while (most-- != 0 && (at = qn_jstring_find(s, separator, from)) != SIZE_MAX) {
        QN_TRY(add_bytes(p, s, from, at));
        from = at + separator->n;
    }
    return add_bytes(p, s, from, s->n);
}

static qn_status split_at_back(part_list *p, const qn_jstring *s, const qn_jstring *separator, int64_t most)
{
    size_t to = s->n, at;
    while (most-- != 0) {
        QN_TRY(find_last(p->run, s, separator, 0, to, &at));
        if (at == SIZE_MAX) break;
        QN_TRY(add_bytes(p, s, at + separator->n, to));
        to = at;
    }
    return add_bytes(p, s, 0, to);
}

static qn_status split(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int back, qn_jvalue *out)
{
    qn_jvalue bound[2];
    qn_jstring *separator;
    int64_t most;
    part_list p;
    QN_TRY(qn_jargs_bind(r, back ? "rsplit" : "split", a, "sep maxsplit", 0, bound));
    QN_TRY(qn_jarg_int(bound[1], "split: maxsplit", -1, &most));
    if (most < 0) most = -1; /* no limit; it is counted down */
    QN_TRY(open_parts(&p, r, self.user));
    QN_TRY(qn_jheap_walk(&r->heap, self.s->n));
    if (bound[0].kind == QN_J_MISSING || bound[0].kind == QN_J_NONE) {
        QN_TRY(back ? split_words_back(&p, self.s, most) : split_words(&p, self.s, most));
    } else {
        QN_TRY(qn_jarg_string(bound[0], "split: the separator", &separator));
        if (!separator->n) return qn_fail(QN_E_ARG, "empty separator");
        QN_TRY(back ? split_at_back(&p, self.s, separator, most) : split_at(&p, self.s, separator, most));
    }
    if (back) reverse_parts(p.list.l);
    *out = p.list;
    return QN_OK;
}

static qn_status method_split(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return split(r, self, a, 0, out);
}

static qn_status method_rsplit(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return split(r, self, a, 1, out);
}

/* Length of the line end at s[i]; 0: none. */
static size_t line_end(const qn_jstring *s, size_t i)
{
    uint32_t c;
    size_t n = qn_jdecode(s->data + i, s->n - i, &c);
    if (c == '\r' && i + 1 < s->n && s->data[i + 1] == '\n') return 2;
    int ends = (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return ends ? n : 0;
}

qn_status qn_jsplitlines(qn_jrun *r, const qn_jstring *s, int keep_ends, qn_jvalue *out)
{
    part_list p;
    size_t from = 0, n;
    uint32_t c;
    QN_TRY(open_parts(&p, r, qn_jstring_user(s)));
    QN_TRY(qn_jheap_walk(&r->heap, s->n));
    for (size_t i = 0; i < s->n;) {
        if ((n = line_end(s, i)) == 0) {
            i += qn_jdecode(s->data + i, s->n - i, &c);
            continue;
        }
        QN_TRY(add_bytes(&p, s, from, keep_ends ? i + n : i));
        from = i += n;
    }
    if (from < s->n) QN_TRY(add_bytes(&p, s, from, s->n));
    *out = p.list;
    return QN_OK;
}

static qn_status method_splitlines(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    QN_TRY(qn_jargs_bind(r, "splitlines", a, "keepends", 0, bound));
    return qn_jsplitlines(r, self.s, qn_jvalue_truth(bound[0]), out);
}

static qn_status partition(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int back, qn_jvalue *out)
{
    qn_jvalue bound[1], *items;
    qn_jstring *separator, *s = self.s;
    size_t at;
    QN_TRY(qn_jargs_bind(r, "partition", a, "sep", 1, bound));
    QN_TRY(qn_jarg_string(bound[0], "partition: the separator", &separator));
    if (!separator->n) return qn_fail(QN_E_ARG, "empty separator");
    QN_TRY(find_in(r, s, separator, 0, s->n, back, &at));
    QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_TUPLE, 3, self.user, out));
    items = out->l->items;
    out->l->n = 3;
    size_t from = at != SIZE_MAX ? at : back ? 0 : s->n, to = at != SIZE_MAX ? at + separator->n : from;
    QN_TRY(qn_jstring_bytes(&r->heap, s, 0, from, &items[0]));
    QN_TRY(qn_jstring_bytes(&r->heap, s, from, to, &items[1]));
    return qn_jstring_bytes(&r->heap, s, to, s->n, &items[2]);
}

static qn_status method_partition(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return partition(r, self, a, 0, out);
}

static qn_status method_rpartition(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return partition(r, self, a, 1, out);
}

static qn_status method_join(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1], *items;
    int64_t n;
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "join", a, "iterable", 1, bound));
    QN_TRY(qn_jvalue_items(&r->heap, bound[0], &items, &n));
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)n));
    qn_jbuild_init(&b, &r->heap);
    for (int64_t i = 0; i < n; i++) {
        qn_jstring *part;
        QN_TRY(qn_jarg_string(items[i], "join: an item", &part));
        if (i) qn_jbuild_string(&b, self.s);
        qn_jbuild_string(&b, part);
    }
    return qn_jbuild_take(&b, out);
}

/* Padding to a width; where: -1 text left, 0 centre, 1 text right. */
static qn_status pad(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int where, qn_jvalue *out)
{
    qn_jvalue bound[2];
    int64_t width, n = qn_jstring_length(self.s);
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "center", a, "width fillchar", 1, bound));
    QN_TRY(qn_jarg_int(bound[0], "the width", 0, &width));
    if (bound[1].kind != QN_J_MISSING && (bound[1].kind != QN_J_STRING || bound[1].s->n != 1))
        return qn_fail(QN_E_ARG, "the fill character must be one ASCII character");
    char fill = bound[1].kind == QN_J_STRING ? bound[1].s->data[0] : ' ';
    int user = bound[1].kind == QN_J_STRING && qn_jstring_user(bound[1].s);
    int64_t total = width > n ? width - n : 0, left = where < 0 ? 0 : total;
    if (where == 0) left = total / 2 + (total & width & 1);
    qn_jbuild_init(&b, &r->heap);
    qn_jbuild_fill(&b, fill, left, user);
    qn_jbuild_string(&b, self.s);
    qn_jbuild_fill(&b, fill, total - left, user);
    return qn_jbuild_take(&b, out);
}

static qn_status method_ljust(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return pad(r, self, a, -1, out);
}

static qn_status method_center(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return pad(r, self, a, 0, out);
}

static qn_status method_rjust(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return pad(r, self, a, 1, out);
}

static qn_status method_zfill(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    int64_t width, n = qn_jstring_length(self.s);
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "zfill", a, "width", 1, bound));
    QN_TRY(qn_jarg_int(bound[0], "the width", 0, &width));
    size_t sign = self.s->n && (self.s->data[0] == '-' || self.s->data[0] == '+');
    qn_jbuild_init(&b, &r->heap);
    qn_jbuild_part(&b, self.s, 0, sign);
    qn_jbuild_fill(&b, '0', width > n ? width - n : 0, 0);
    qn_jbuild_part(&b, self.s, sign, self.s->n);
    return qn_jbuild_take(&b, out);
}

static qn_status method_expandtabs(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    int64_t size, column = 0;
    const qn_jstring *s = self.s;
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "expandtabs", a, "tabsize", 0, bound));
    QN_TRY(qn_jarg_int(bound[0], "expandtabs: the size", 8, &size));
    qn_jbuild_init(&b, &r->heap);
    QN_TRY(qn_jheap_walk(&r->heap, s->n));
    for (size_t i = 0; i < s->n && b.status == QN_OK; i++) {
        if (s->data[i] == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            qn_jbuild_fill(&b, ' ', n, qn_jstring_user_at(s, i));
            column += n;
            continue;
        }
        qn_jbuild_part(&b, s, i, i + 1);
        if (((unsigned char)s->data[i] & 0xC0) != 0x80) column++;
        if (s->data[i] == '\n' || s->data[i] == '\r') column = 0;
    }
    return qn_jbuild_take(&b, out);
}

/* Tests of all characters. */

static int is_alpha(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static int is_decimal(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static int is_digit(uint32_t c)
{
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}

static int is_numeric(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

static int is_alnum(uint32_t c)
{
    return is_alpha(c) || is_numeric(c);
}

static int is_ascii(uint32_t c)
{
    return c < 128;
}

static qn_status all_are(qn_jrun *r, qn_jvalue self, const qn_jargs *a, int (*is)(uint32_t), int empty,
                         qn_jvalue *out)
{
    const qn_jstring *s = self.s;
    int all = s->n ? 1 : empty;
    QN_TRY(qn_jargs_bind(r, "the test of a string", a, "", 0, NULL));
    QN_TRY(qn_jheap_walk(&r->heap, s->n));
    for (size_t i = 0; i < s->n && all;) {
        uint32_t c;
        i += qn_jdecode(s->data + i, s->n - i, &c);
        all = is(c);
    }
    *out = qn_jbool(all, 0);
    return QN_OK;
}

static qn_status method_isalpha(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return all_are(r, self, a, is_alpha, 0, out);
}

static qn_status method_isalnum(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return all_are(r, self, a, is_alnum, 0, out);
}

static qn_status method_isascii(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return all_are(r, self, a, is_ascii, 1, out);
}

static qn_status method_isdigit(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return all_are(r, self, a, is_digit, 0, out);
}

static qn_status method_isdecimal(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return all_are(r, self, a, is_decimal, 0, out);
}

static qn_status method_isnumeric(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return all_are(r, self, a, is_numeric, 0, out);
}

static qn_status method_isspace(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return all_are(r, self, a, qn_jspace, 0, out);
}

static qn_status method_isupper(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jheap_walk(&r->heap, self.s->n));
    *out = qn_jbool(qn_jcase_is(self.s, 1), 0);
    return qn_jargs_bind(r, "isupper", a, "", 0, NULL);
}

static qn_status method_islower(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jheap_walk(&r->heap, self.s->n));
    *out = qn_jbool(qn_jcase_is(self.s, 0), 0);
    return qn_jargs_bind(r, "islower", a, "", 0, NULL);
}

/* Words start with a capital and go on in small letters, and there is a letter. */
static qn_status method_istitle(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue title, lower;
    int is_title, is_lower;
    QN_TRY(method_title(r, self, a, &title));
    QN_TRY(method_lower(r, self, a, &lower));
    QN_TRY(qn_jvalue_equal(&r->heap, self, title, &is_title));
    QN_TRY(qn_jvalue_equal(&r->heap, self, lower, &is_lower));
    *out = qn_jbool(is_title && !is_lower, 0);
    return QN_OK;
}

static const qn_jfunction_row string_methods[] = {
    {"split", method_split},
    {"strip", method_strip},
    {"lstrip", method_lstrip},
    {"rstrip", method_rstrip},
    {"startswith", method_startswith},
    {"endswith", method_endswith},
    {"replace", method_replace},
    {"join", method_join},
    {"format", qn_jmethod_format},
    {"upper", method_upper},
    {"lower", method_lower},
    {"casefold", method_casefold},
    {"capitalize", method_capitalize},
    {"title", method_title},
    {"swapcase", method_swapcase},
    {"removeprefix", method_removeprefix},
    {"removesuffix", method_removesuffix},
    {"find", method_find},
    {"rfind", method_rfind},
    {"index", method_index},
    {"rindex", method_rindex},
    {"count", method_count},
    {"rsplit", method_rsplit},
    {"splitlines", method_splitlines},
    {"partition", method_partition},
    {"rpartition", method_rpartition},
    {"ljust", method_ljust},
    {"center", method_center},
    {"rjust", method_rjust},
    {"zfill", method_zfill},
    {"expandtabs", method_expandtabs},
    {"isalpha", method_isalpha},
    {"isalnum", method_isalnum},
    {"isascii", method_isascii},
    {"isdigit", method_isdigit},
    {"isdecimal", method_isdecimal},
    {"isnumeric", method_isnumeric},
    {"isspace", method_isspace},
    {"isupper", method_isupper},
    {"islower", method_islower},
    {"istitle", method_istitle},
};

const qn_jfunction_row *qn_jstring_method_find(const qn_jstring *name)
{
    return qn_jrow_find(string_methods, sizeof string_methods / sizeof *string_methods, name);
}
