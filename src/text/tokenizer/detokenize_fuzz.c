/* The decoder of a stranger's tokenizer.json, up to the first 0xff byte (which no UTF-8 has), and tokens,
 * each behind such a byte. Whatever is built must give valid UTF-8 and the same text each time. Behind Fuse,
 * and for the added tokens of a GGUF file, the text does not depend on how it is cut into tokens. */
#include <stdint.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/tokenizer/detokenize.h"

enum { TOKENS_MAX = 64, PIECE_MAX = 7 };

typedef struct {
    const char *data;
    size_t n;
} token;

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static int is_continued(const char *text, size_t n, size_t at)
{
    return at < n && ((uint8_t)text[at] & 0xc0) == 0x80;
}

static int same(const qn_buf *a, const qn_buf *b)
{
    return a->length == b->length && (!a->length || memcmp(a->data, b->data, a->length) == 0);
}

/* Decodes all tokens, twice with one state. The status is that of the first call that failed. */
static qn_status decode(const qn_decoder *d, int raw, int middle, const token *tokens, size_t n, int added,
                        qn_buf *out)
{
    qn_decoder_state *s = NULL;
    qn_status status[2] = {QN_OK, QN_OK};
    qn_buf again = {0}, *to[2] = {out, &again};
    check(qn_decoder_state_new(d, raw, middle, &s) == QN_OK);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < n && status[round] == QN_OK; i++)
            status[round] = qn_decoder_feed(s, tokens[i].data, tokens[i].n, added, to[round]);
        if (status[round] == QN_OK) status[round] = qn_decoder_finish(s, to[round]);
        if (status[round] != QN_OK) break; /* what is left in the state then is of no use */
        check(raw || !to[round]->length ||
              qn_utf8_valid_prefix(to[round]->data, to[round]->length) == to[round]->length);
    }
    check(status[0] != QN_OK || (status[1] == QN_OK && same(out, &again)));
    qn_buf_free(&again);
    qn_decoder_state_free(s);
    return status[0];
}

/* Cuts text into tokens; whole_characters: between characters alone. */
static size_t cut(const char *text, size_t n, uint64_t seed, int whole_characters, token *tokens)
{
    size_t n_tokens = 0, at = 0;
    while (at < n && n_tokens < TOKENS_MAX) {
        size_t piece = n_tokens == TOKENS_MAX - 1 ? n : qn_random_bits(seed, n_tokens) % PIECE_MAX;
        if (piece > n - at) piece = n - at;
        while (whole_characters && is_continued(text, n, at + piece)) piece++;
        tokens[n_tokens++] = (token){text + at, piece};
        at += piece;
    }
    if (!n_tokens) tokens[n_tokens++] = (token){text, n};
    return n_tokens;
}

/* The text as one token and in pieces; equal unless one of them was refused for its size or its steps. */
static void compare(const qn_decoder *d, int variant, const char *text, size_t n, uint64_t seed, int added)
{
    token tokens[TOKENS_MAX], one = {text, n};
    qn_buf whole = {0}, joined = {0};
    size_t n_tokens = cut(text, n, seed, !added, tokens);
    if (decode(d, variant & 1, variant >> 1, &one, 1, added, &whole) == QN_OK &&
        decode(d, variant & 1, variant >> 1, tokens, n_tokens, added, &joined) == QN_OK)
        check(same(&whole, &joined));
    qn_buf_free(&whole);
    qn_buf_free(&joined);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    token tokens[TOKENS_MAX];
    const char *at = (const char *)data, *end = at + size;
    const char *stop = size ? memchr(at, 0xff, size) : NULL;
    size_t n_json = stop ? (size_t)(stop - at) : size, n_tokens = 0;
    uint64_t seed = size;
    qn_buf text = {0};
    json_t *json = NULL, *fused = NULL;
    qn_decoder *d = NULL;
    for (size_t i = 0; i < size; i++) seed = qn_random_bits(seed, data[i]);
    for (; stop && n_tokens < TOKENS_MAX; stop = memchr(at, 0xff, (size_t)(end - at))) {
        at = stop + 1;
        const char *next = at < end ? memchr(at, 0xff, (size_t)(end - at)) : NULL;
        token t = {at, (size_t)((next ? next : end) - at)};
        if (t.n > 512) t.n = 512;
        qn_buf_append(&text, t.data, t.n);
        if (qn_utf8_valid_prefix(t.data, t.n) == t.n) tokens[n_tokens++] = t;
        if (!next) break;
    }
    for (int gguf = 0; gguf < 4; gguf++) {
        check(qn_decoder_for_gguf(gguf & 1, gguf >> 1, &d) == QN_OK);
        for (int variant = 0; variant < 4; variant++) {
            qn_buf out = {0};
            compare(d, variant, text.length ? text.data : "", text.length, seed, 1);
            decode(d, variant & 1, variant >> 1, tokens, n_tokens, 0, &out);
            qn_buf_free(&out);
        }
        qn_decoder_free(d);
    }
    if (qn_json_parse("fuzz", (const char *)data, n_json, &json) == QN_OK &&
        qn_decoder_from_json("fuzz", json, &d) == QN_OK) {
        for (int variant = 0; variant < 4; variant++) {
            qn_buf out = {0};
            decode(d, variant & 1, variant >> 1, tokens, n_tokens, 0, &out);
            qn_buf_free(&out);
        }
        qn_decoder_free(d);
        fused = json_pack("{s:s,s:[{s:s},O]}", "type", "Sequence", "decoders", "type", "Fuse", json);
        qn_buf_reset(&text);
        for (size_t i = 0; i < n_tokens; i++) qn_buf_append(&text, tokens[i].data, tokens[i].n);
        if (qn_decoder_from_json("fuzz", fused, &d) == QN_OK) {
            for (int variant = 0; variant < 4; variant++)
                compare(d, variant, text.length ? text.data : "", text.length, seed, 0);
            qn_decoder_free(d);
        }
    }
    json_decref(fused);
    json_decref(json);
    qn_buf_free(&text);
    return 0;
}
