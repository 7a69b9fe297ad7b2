/* A tokenizer.json of a stranger: the input up to the first 0xff byte (which no UTF-8 has), then a text that
 * it must encode and decode. Whatever loads must give ids of its own vocabulary, and a stream equal to the
 * whole. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void use(const qn_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    qn_buf whole = {0}, joined = {0};
    qn_token_stream *s = NULL;
    qn_text_segment halves[] = {{text, n / 2, 1}, {text + n / 2, n - n / 2, 0}};
    if (qn_tokenizer_encode_segments(t, halves, 2, QN_ENCODE_BOS, &ids, &n_ids) != QN_OK) return;
    for (size_t i = 0; i < n_ids; i++) check(ids[i] >= 0 && (size_t)ids[i] < qn_tokenizer_vocab_size(t));
    if (qn_tokenizer_decode(t, ids, n_ids, 0, &whole) == QN_OK && qn_token_stream_new(t, 0, &s) == QN_OK) {
        for (size_t i = 0; i < n_ids; i++) check(qn_token_stream_push(s, ids[i], &joined) == QN_OK);
        check(qn_token_stream_finish(s, &joined) == QN_OK);
        check(joined.length == whole.length &&
              (!whole.length || memcmp(joined.data, whole.data, whole.length) == 0));
        check(!whole.length || qn_utf8_valid_prefix(whole.data, whole.length) == whole.length);
    }
    qn_token_stream_free(s);
    qn_buf_free(&whole);
    qn_buf_free(&joined);
    qn_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0xff, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    size_t n_text = end ? size - n - 1 : 0;
    qn_tokenizer *t = NULL;
    if (n_text > 4096) n_text = 4096;
    if (qn_tokenizer_from_json("fuzz.json", (const char *)data, n, &t) != QN_OK) return 0;
    use(t, end ? (const char *)end + 1 : "", n_text);
    qn_tokenizer_free(t);
    return 0;
}
