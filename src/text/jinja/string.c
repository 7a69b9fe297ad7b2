/* Strings of template values and their builder: bytes and provenance move together. */
#include <string.h>

#include "base/checked.h"
#include "base/utf8.h"
#include "text/jinja/value.h"

qn_status qn_jstring_borrow(qn_jheap *h, const char *data, size_t n, const uint8_t *mask, int user,
                            qn_jvalue *out)
{
    qn_jstring *s = qn_jheap_alloc(h, 1, sizeof *s);
    if (!s) return h->status;
    *s = (qn_jstring){.data = data, .n = n, .mask = mask, .user = user != 0, .n_chars = -1};
    *out = (qn_jvalue){.kind = QN_J_STRING, .user = user != 0, .s = s};
    return QN_OK;
}

qn_status qn_jstring_bytes(qn_jheap *h, const qn_jstring *s, size_t from, size_t to, qn_jvalue *out)
{
    return qn_jstring_borrow(h, s->data + from, to - from, s->mask ? s->mask + from : NULL, s->user, out);
}

int64_t qn_jstring_length(qn_jstring *s)
{
    if (s->n_chars < 0) {
        int64_t count = 0;
        for (size_t i = 0; i < s->n; i++) count += ((unsigned char)s->data[i] & 0xC0) != 0x80;
        s->n_chars = count;
    }
    return s->n_chars;
}

size_t qn_jstring_offset(qn_jstring *s, int64_t i_char)
{
    if (qn_jstring_length(s) == (int64_t)s->n) return (size_t)i_char;
    if (i_char >= s->n_chars) return s->n;
    size_t at = 0;
    for (int64_t seen = -1; at < s->n; at++) {
        seen += ((unsigned char)s->data[at] & 0xC0) != 0x80;
        if (seen == i_char) break;
    }
    return at;
}

int qn_jstring_is(const qn_jstring *s, const char *text)
{
    size_t n = strlen(text);
    return s->n == n && memcmp(s->data, text, n) == 0;
}

int qn_jstring_user(const qn_jstring *s)
{
    return s->mask ? memchr(s->mask, 1, s->n) != NULL : s->user && s->n;
}

size_t qn_jstring_find(const qn_jstring *s, const qn_jstring *needle, size_t from)
{
    if (from > s->n || needle->n > s->n - from) return SIZE_MAX;
    if (!needle->n) return from;
    const char *hit = memmem(s->data + from, s->n - from, needle->data, needle->n);
    return hit ? (size_t)(hit - s->data) : SIZE_MAX;
}

int qn_jspace(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

size_t qn_jdecode(const char *s, size_t n, uint32_t *code_point)
{
    size_t length = qn_utf8_decode(s, n, code_point);
    if (length) return length;
    *code_point = 0xFFFD;
    return n ? 1 : 0;
}

void qn_jbuild_init(qn_jbuild *b, qn_jheap *h)
{
    *b = (qn_jbuild){.heap = h};
}

qn_status qn_jbuild_exact(qn_jbuild *b, qn_jheap *h, size_t n)
{
    *b = (qn_jbuild){.heap = h, .capacity = n, .data = qn_jheap_alloc(h, n, 1)};
    return b->data ? QN_OK : h->status;
}

/* Room for n more bytes of which some have this provenance. */
static int make_room(qn_jbuild *b, size_t n, int mixed, int user)
{
    size_t need;
    if (b->status != QN_OK) return 0;
    if (!qn_add_size(b->n, n, &need) || (b->limit_bytes && need > b->limit_bytes)) {
        b->status = qn_fail(QN_E_FULL, "more than %zu bytes of output", b->limit_bytes);
        return 0;
    }
    if (need > b->capacity) {
        size_t capacity = b->capacity ? b->capacity * 2 : 64;
        if (capacity < need) capacity = need;
        char *data = qn_jheap_alloc(b->heap, capacity, 1);
        uint8_t *mask = data && b->mask ? qn_jheap_alloc(b->heap, capacity, 1) : NULL;
        if (!data || (b->mask && !mask)) {
            b->status = b->heap->status;
            return 0;
        }
        if (b->n) memcpy(data, b->data, b->n);
        if (b->n && mask) memcpy(mask, b->mask, b->n);
        b->data = data;
        b->mask = mask;
        b->capacity = capacity;
    }
    if (b->n == 0 && !b->mask) b->user = user;
    if (!b->mask && (mixed || b->user != user)) {
        b->mask = qn_jheap_alloc(b->heap, b->capacity, 1);
        if (!b->mask) {
            b->status = b->heap->status;
            return 0;
        }
        memset(b->mask, b->user, b->n);
    }
    return 1;
}

void qn_jbuild_bytes(qn_jbuild *b, const char *data, size_t n, int user)
{
    user = user != 0;
    if (!n || !make_room(b, n, 0, user)) return;
    memcpy(b->data + b->n, data, n);
    if (b->mask) memset(b->mask + b->n, user, n);
    b->n += n;
}

void qn_jbuild_text(qn_jbuild *b, const char *text, int user)
{
    qn_jbuild_bytes(b, text, strlen(text), user);
}

void qn_jbuild_fill(qn_jbuild *b, char c, int64_t count, int user)
{
    user = user != 0;
    if (count <= 0 || !make_room(b, (size_t)count, 0, user)) return;
    memset(b->data + b->n, c, (size_t)count);
    if (b->mask) memset(b->mask + b->n, user, (size_t)count);
    b->n += (size_t)count;
}

void qn_jbuild_char(qn_jbuild *b, uint32_t code_point, int user)
{
    char bytes[4];
    qn_jbuild_bytes(b, bytes, qn_utf8_encode(code_point, bytes), user);
}

void qn_jbuild_part(qn_jbuild *b, const qn_jstring *s, size_t from, size_t to)
{
    size_t n = to - from;
    if (!s->mask) {
        qn_jbuild_bytes(b, s->data + from, n, s->user);
        return;
    }
    if (!n || !make_room(b, n, 1, 0)) return;
    memcpy(b->data + b->n, s->data + from, n);
    memcpy(b->mask + b->n, s->mask + from, n);
    b->n += n;
}

void qn_jbuild_string(qn_jbuild *b, const qn_jstring *s)
{
    qn_jbuild_part(b, s, 0, s->n);
}

qn_status qn_jbuild_take(qn_jbuild *b, qn_jvalue *out)
{
    if (b->status != QN_OK) return b->status;
    return qn_jstring_borrow(b->heap, b->data ? b->data : "", b->n, b->mask, b->user, out);
}
