#include "text/tokenizer/split/charsmap.h"

#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/split/reference.h"

enum {
    CLUSTER_MAX = 6, /* clusters of so many bytes are mapped character by character */
    MARK = 0x301,    /* of those that join the letter before them */
};

void qn_charsmap_free(qn_charsmap *m)
{
    qn_free(m->units);
    qn_free(m->texts);
    *m = (qn_charsmap){0};
}

qn_status qn_charsmap_read(const void *data, size_t n, qn_charsmap *out)
{
    const uint8_t *bytes = data;
    qn_charsmap m = {0};
    if (n < 4) return qn_fail(QN_E_FORMAT, "precompiled_charsmap: %zu bytes are too few", n);
    const size_t size = bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 24;
    if (size < 4 || size % 4 || size > n - 4)
        return qn_fail(QN_E_FORMAT, "precompiled_charsmap: an array of %zu bytes in %zu bytes", size, n);
    const char *texts = (const char *)bytes + 4 + size;
    const size_t n_texts = n - 4 - size;
    if (qn_utf8_valid_prefix(texts, n_texts) != n_texts)
        return qn_fail(QN_E_FORMAT, "precompiled_charsmap: a text is not valid UTF-8");
    m.n_units = size / 4;
    m.n_texts = n_texts;
    m.units = qn_alloc_array(m.n_units, sizeof *m.units);
    m.texts = m.units ? qn_strndup(texts, n_texts) : NULL;
    if (!m.texts) {
        qn_charsmap_free(&m);
        return QN_E_NOMEM;
    }
    for (size_t i = 0; i < m.n_units; i++) {
        const uint8_t *unit = bytes + 4 + 4 * i;
        m.units[i] = unit[0] | (uint32_t)unit[1] << 8 | (uint32_t)unit[2] << 16 | (uint32_t)unit[3] << 24;
    }
    *out = m;
    return QN_OK;
}

/* A walk down the double array. */
typedef struct {
    const qn_charsmap *m;
    size_t place;
} walk;

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1 << 9) >> 6);
}

static int begin_walk(const qn_charsmap *m, walk *w)
{
    if (!m->n_units) return 0;
    *w = (walk){m, offset_of(m->units[0])};
    return 1;
}

/* 0: no rule goes on with this byte. *value: of the rule that ends here; -1: none does. */
static int step(walk *w, uint8_t byte, int64_t *value)
{
    const qn_charsmap *m = w->m;
    *value = -1;
    w->place ^= byte;
    if (w->place >= m->n_units) return 0;
    const uint32_t unit = m->units[w->place];
    if ((unit & (1u << 31 | 0xff)) != byte) return 0;
    w->place ^= offset_of(unit);
    if (!(unit >> 8 & 1)) return 1;
    if (w->place >= m->n_units) return 0;
    *value = m->units[w->place] & ~(1u << 31);
    return 1;
}

/* The text of a rule. NULL: the value points at none. */
static const char *text_of(const qn_charsmap *m, int64_t value, size_t *n)
{
    if (value < 0 || (uint64_t)value >= m->n_texts) return NULL;
    const char *text = m->texts + value;
    if (((uint8_t)*text & 0xc0) == 0x80) return NULL; /* in the middle of a character */
    *n = strnlen(text, m->n_texts - (size_t)value);
    return text;
}

const char *qn_charsmap_longest(const qn_charsmap *m, const char *text, size_t n, size_t *used, size_t *n_out)
{
    walk w;
    int64_t value, best = -1;
    if (!begin_walk(m, &w)) return NULL;
    for (size_t i = 0; i < n && step(&w, (uint8_t)text[i], &value); i++) {
        if (value < 0) continue;
        best = value;
        *used = i + 1;
    }
    return text_of(m, best, n_out);
}

static const char *shortest(const qn_charsmap *m, const char *text, size_t n, size_t *n_out)
{
    walk w;
    int64_t value = -1;
    if (!begin_walk(m, &w)) return NULL;
    for (size_t i = 0; i < n && text[i] && value < 0; i++)
        if (!step(&w, (uint8_t)text[i], &value)) return NULL;
    return text_of(m, value, n_out);
}

static int append_mapped(const qn_charsmap *m, const char *text, size_t n, qn_buf *out)
{
    size_t n_to;
    const char *to = shortest(m, text, n, &n_to);
    if (to) qn_buf_append(out, to, n_to);
    return to != NULL;
}

static void append_cluster(const qn_charsmap *m, const char *text, size_t n, qn_buf *out)
{
    uint32_t cp;
    if (n < CLUSTER_MAX && append_mapped(m, text, n, out)) return;
    for (size_t i = 0, used; i < n && (used = qn_utf8_decode(text + i, n - i, &cp)); i += used)
        if (!append_mapped(m, text + i, used, out)) qn_buf_append(out, text + i, used);
}

void qn_charsmap_clusters(const qn_charsmap *m, const char *text, size_t n, qn_buf *out)
{
    size_t begin = 0;
    utf8proc_int32_t state = 0;
    uint32_t cp, last = 0;
    for (size_t i = 0, used; i < n && (used = qn_utf8_decode(text + i, n - i, &cp)); i += used) {
        if (cp > MARK && qn_cp_in(&qn_late_extends, cp)) cp = MARK;
        if (i && utf8proc_grapheme_break_stateful((utf8proc_int32_t)last, (utf8proc_int32_t)cp, &state)) {
            append_cluster(m, text + begin, i - begin, out);
            begin = i;
        }
        last = cp;
    }
    append_cluster(m, text + begin, n - begin, out);
}
