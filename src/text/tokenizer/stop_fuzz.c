/* Stop strings over a text that comes in any pieces. The input: strings, each ended by a NUL, an empty one
 * behind the last, then the text. What comes out must be the text up to the first stop string, which a plain
 * search finds too, and the same for the whole at once. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "text/tokenizer/stop.h"

enum { STRINGS_MAX = 16, TEXT_MAX = 2048, PIECE_MAX = 9 };

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

/* Pieces of sizes that the seed draws; 0: all at once. Returns whether a string was met. */
static int run(const qn_stop_set *set, const char *text, size_t n, uint64_t seed, qn_buf *out)
{
    qn_stop s = {.set = set};
    for (size_t at = 0, i = 0, piece; at < n; at += piece, i++) {
        piece = seed ? qn_random_bits(seed, i) % PIECE_MAX : n;
        if (piece > n - at) piece = n - at;
        size_t before = out->length;
        int hit = s.hit;
        check(qn_stop_feed(&s, text + at, piece, out) == QN_OK);
        check(!hit || out->length == before);
        check(out->length + s.held.length <= at + piece);
    }
    check(qn_stop_flush(&s, out) == QN_OK);
    int hit = s.hit;
    qn_stop_end(&s);
    return hit;
}

/* The first end of a string, then the longest string that ends there. */
static size_t search(const char *const *strings, size_t n, const char *text, size_t length, int *hit)
{
    for (size_t end = 1; end <= length; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            size_t m = strlen(strings[i]);
            if (m <= end && m > longest && memcmp(text + end - m, strings[i], m) == 0) longest = m;
        }
        *hit = longest > 0;
        if (longest) return end - longest;
    }
    *hit = 0;
    return length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *strings[STRINGS_MAX], *text = (const char *)data, *end = text + size, *stop;
    size_t n = 0;
    uint64_t seed = size;
    while (n < STRINGS_MAX && text < end && *text && (stop = memchr(text, 0, (size_t)(end - text)))) {
        strings[n++] = text;
        text = stop + 1;
    }
    if (text < end && !*text) text++;
    size_t length = (size_t)(end - text);
    if (length > TEXT_MAX) length = TEXT_MAX;
    for (size_t i = 0; i < size; i++) seed = qn_random_bits(seed, data[i]);
    qn_stop_set *set = NULL;
    if (qn_stop_set_new(strings, n, &set) != QN_OK) return 0;
    int hit;
    size_t want = search(strings, n, text, length, &hit);
    for (int cut = 0; cut < 2; cut++) {
        qn_buf out = {0};
        check(run(set, text, length, cut ? seed | 1 : 0, &out) == hit);
        check(out.length == want && (!want || memcmp(out.data, text, want) == 0));
        qn_buf_free(&out);
    }
    qn_stop_set_free(set);
    return 0;
}
