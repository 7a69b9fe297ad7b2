/* A model's answer on its way to the terminal. The first byte chooses the width and whether the prompt opened
 * the thinking. Whatever the pieces, the runs of thinking and text are the same and join to the answer; what
 * is wrapped has no control characters and has every other character of the answer. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "cli/chat/think_split.h"
#include "cli/term/word_wrap.h"

enum { PIECE_MAX = 11 };

typedef struct {
    qn_buf joined, kinds;
} runs;

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void take(void *user, int is_thinking, const char *text, size_t n)
{
    runs *r = user;
    check(n > 0 && (is_thinking == 0 || is_thinking == 1));
    qn_buf_append(&r->joined, text, n);
    for (size_t i = 0; i < n; i++) qn_buf_putc(&r->kinds, (char)('0' + is_thinking));
}

static int same(const qn_buf *a, const qn_buf *b)
{
    return a->length == b->length && (!a->length || memcmp(a->data, b->data, a->length) == 0);
}

static size_t next_piece(const char *text, size_t n, size_t at, uint64_t seed, uint64_t i,
                         int whole_characters)
{
    size_t piece = seed ? qn_random_bits(seed, i) % PIECE_MAX : n;
    if (piece > n - at) piece = n - at;
    while (whole_characters && at + piece < n && ((uint8_t)text[at + piece] & 0xc0) == 0x80) piece++;
    return piece;
}

static void split(const char *text, size_t n, uint64_t seed, int inside, runs *r)
{
    qn_think_split t;
    qn_think_split_begin(&t, inside);
    for (size_t at = 0, i = 0, piece; at < n; at += piece, i++) {
        piece = next_piece(text, n, at, seed, i, 0);
        qn_think_split_put(&t, text + at, piece, take, r);
    }
    qn_think_split_flush(&t, take, r);
}

static void wrap(const char *text, size_t n, uint64_t seed, int width, qn_buf *out)
{
    qn_word_wrap w = {0};
    qn_word_wrap_begin(&w, width);
    for (size_t at = 0, i = 0, piece; at < n; at += piece, i++) {
        piece = next_piece(text, n, at, seed, i, 1);
        qn_word_wrap_put(&w, text + at, piece, out);
    }
    qn_word_wrap_flush(&w, out);
    check(out->status == QN_OK && w.word.status == QN_OK && w.spaces.status == QN_OK);
    qn_word_wrap_end(&w);
}

/* Compares what was wrapped with what was not, less spaces and line ends. */
static void check_characters(const qn_buf *wrapped, const qn_buf *plain)
{
    size_t i = 0, j = 0;
    for (;;) {
        while (i < wrapped->length && memchr(" \t\n", wrapped->data[i], 3)) i++;
        while (j < plain->length && memchr(" \t\n", plain->data[j], 3)) j++;
        if (i == wrapped->length || j == plain->length) break;
        check(wrapped->data[i++] == plain->data[j++]);
    }
    check(i == wrapped->length && j == plain->length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    const char *text = (const char *)data + 1;
    const size_t n = size - 1;
    const int width = data[0] >> 1;
    uint64_t seed = size;
    for (size_t i = 0; i < size; i++) seed = qn_random_bits(seed, data[i]);
    runs whole = {0}, cut = {0};
    split(text, n, 0, data[0] & 1, &whole);
    split(text, n, seed | 1, data[0] & 1, &cut);
    check(whole.joined.length == n && (!n || memcmp(whole.joined.data, text, n) == 0));
    check(same(&whole.joined, &cut.joined) && same(&whole.kinds, &cut.kinds));
    qn_buf plain = {0}, at_once = {0}, in_pieces = {0};
    wrap(text, n, 0, 0, &plain);
    wrap(text, n, 0, width, &at_once);
    wrap(text, n, seed | 1, width, &in_pieces);
    check(same(&at_once, &in_pieces));
    check_characters(&at_once, &plain);
    check(qn_utf8_valid_prefix(at_once.data ? at_once.data : "", at_once.length) == at_once.length);
    for (size_t i = 0; i < at_once.length; i++) {
        unsigned char c = (unsigned char)at_once.data[i];
        check((c >= 0x20 || c == '\n' || c == '\t') && c != 0x7f);
        check(c != 0xc2 || i + 1 == at_once.length || (uint8_t)at_once.data[i + 1] >= 0xa0);
    }
    qn_buf_free(&whole.joined);
    qn_buf_free(&whole.kinds);
    qn_buf_free(&cut.joined);
    qn_buf_free(&cut.kinds);
    qn_buf_free(&plain);
    qn_buf_free(&at_once);
    qn_buf_free(&in_pieces);
    return 0;
}
