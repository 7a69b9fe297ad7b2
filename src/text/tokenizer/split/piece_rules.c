#include "text/tokenizer/split/piece_rules.h"

#include <string.h>

#include "base/utf8.h"

void qn_piece_rules_free(qn_piece_rules *r)
{
    qn_charsmap_free(&r->map);
    qn_trie_free(&r->whole);
    *r = (qn_piece_rules){0};
}

size_t qn_longest_whole(const qn_trie *whole, const char *text, size_t n)
{
    uint32_t node = 0;
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        const qn_trie_edge *e = qn_trie_step(whole, node, (uint8_t)text[i]);
        if (!e) break;
        node = e->child;
        if (e->value >= 0) best = i + 1;
    }
    return best;
}

/* What the begin of a text becomes; *used of its bytes. */
static const char *next(const qn_piece_rules *r, const char *text, size_t n, size_t *used, size_t *n_out)
{
    uint32_t cp;
    if (r->has_whole && (*used = qn_longest_whole(&r->whole, text, n))) {
        *n_out = *used;
        return text;
    }
    const char *mapped = qn_charsmap_longest(&r->map, text, n, used, n_out);
    if (mapped) return mapped;
    *used = qn_utf8_decode(text, n, &cp);
    if (!*used) *used = 1; /* cannot be: the text was made valid before */
    *n_out = *used;
    return text;
}

static void put_space(const qn_piece_rules *r, qn_buf *out)
{
    qn_buf_puts(out, r->escape_spaces ? "\xe2\x96\x81" : " ");
}

void qn_piece_rules_run(const qn_piece_rules *r, const char *text, size_t n, int prefix, int middle,
                        qn_buf *out)
{
    const char *to;
    size_t used, n_to, at = 0;
    while (r->remove_spaces && !middle && at < n) {
        to = next(r, text + at, n - at, &used, &n_to);
        if (n_to != 1 || *to != ' ') break;
        at += used;
    }
    if (at == n) return;
    const size_t begin = out->length;
    if (r->dummy_prefix && !r->space_is_suffix && prefix) put_space(r, out);
    int after_space = r->remove_spaces && !middle;
    for (; at < n; at += used) {
        to = next(r, text + at, n - at, &used, &n_to);
        for (; after_space && n_to && *to == ' '; n_to--) to++;
        for (size_t i = 0; i < n_to; i++) {
            if (to[i] == ' ')
                put_space(r, out);
            else
                qn_buf_putc(out, to[i]);
        }
        if (n_to) after_space = to[n_to - 1] == ' ';
        if (!r->remove_spaces) after_space = 0;
        if (out->status != QN_OK) return;
    }
    const char *space = r->escape_spaces ? "\xe2\x96\x81" : " ";
    const size_t n_space = strlen(space);
    while (r->remove_spaces && out->length - begin >= n_space &&
           memcmp(out->data + out->length - n_space, space, n_space) == 0)
        out->length -= n_space;
    if (r->dummy_prefix && r->space_is_suffix && prefix) put_space(r, out);
}
