/* A tokenizer of a stranger. A tokenizer.json: the input up to the first 0xff byte (which no UTF-8 has), then
 * a text that it must encode and decode. Or a GGUF file, whose last bytes are the text. Whatever loads must
 * give ids of its own vocabulary, and a stream equal to the whole. What is refused says which file it is. */
#include <stdint.h>
#include <string.h>

#include <quern/log.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void check_stream(const qn_tokenizer *t, const int32_t *ids, size_t n_ids, unsigned flags)
{
    qn_buf whole = {0}, joined = {0};
    qn_token_stream *s = NULL;
    qn_status status = QN_OK;
    if (qn_tokenizer_decode(t, ids, n_ids, flags, &whole) == QN_OK &&
        qn_token_stream_new(t, flags, &s) == QN_OK) {
        for (size_t i = 0; i < n_ids; i++) check(qn_token_stream_push(s, ids[i], &joined) == QN_OK);
        check(qn_token_stream_finish(s, &joined) == QN_OK);
        check(joined.length == whole.length &&
              (!whole.length || memcmp(joined.data, whole.data, whole.length) == 0));
        check((flags & QN_DECODE_RAW) || !whole.length ||
              qn_utf8_valid_prefix(whole.data, whole.length) == whole.length);
    }
    for (size_t i = 0; i < n_ids && i < 8 && status == QN_OK; i++) {
        qn_buf piece = {0};
        status = qn_tokenizer_piece(t, ids[i], &piece);
        qn_buf_free(&piece);
    }
    qn_token_stream_free(s);
    qn_buf_free(&whole);
    qn_buf_free(&joined);
}

static void use(const qn_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    qn_text_segment parts[] = {{text, n / 2, 1}, {text + n / 2, n - n / 2, 0}};
    qn_status status = qn_tokenizer_encode_segments(t, parts, 2, QN_ENCODE_BOS, &ids, &n_ids);
    if (status != QN_OK) {
        check(strstr(qn_last_error(), "fuzz.") != NULL);
        return;
    }
    for (size_t i = 0; i < n_ids; i++) check(ids[i] >= 0 && (size_t)ids[i] < qn_tokenizer_vocab_size(t));
    check_stream(t, ids, n_ids, 0);
    check_stream(t, ids, n_ids, QN_DECODE_SKIP_SPECIAL | QN_DECODE_RAW);
    qn_free(ids);
}

static void use_pair(const qn_tokenizer *t, const char *text, size_t n)
{
    qn_text_segment a = {text, n / 3, 1}, b = {text + n / 3, n - n / 3, 0};
    qn_token_pair pair;
    size_t n_max = n % 7 * 3;
    if (qn_tokenizer_encode_pair(t, &a, &b, QN_ENCODE_BOS, n_max, &pair) != QN_OK) return;
    check(!n_max || pair.n <= n_max);
    for (size_t i = 0; i < pair.n; i++)
        check(pair.ids[i] >= 0 && (size_t)pair.ids[i] < qn_tokenizer_vocab_size(t) && pair.types[i] >= 0);
    qn_token_pair_free(&pair);
}

static void use_gguf(const uint8_t *data, size_t size)
{
    enum { TEXT = 48 };
    size_t n = size < TEXT ? size : TEXT;
    qn_gguf *g = NULL;
    qn_tokenizer *t = NULL;
    if (qn_gguf_open_bytes("fuzz.gguf", data, size, &g) != QN_OK) return;
    if (qn_tokenizer_from_gguf(g, NULL, &t) == QN_OK)
        use(t, (const char *)data + size - n, n);
    else
        check(strstr(qn_last_error(), "fuzz.") != NULL);
    qn_tokenizer_free(t);
    qn_gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_log_set_level(QN_LOG_ERROR); /* what is odd about a vocabulary is worth a line to users alone */
    if (size > 4 && memcmp(data, "GGUF", 4) == 0) {
        use_gguf(data, size);
        return 0;
    }
    const uint8_t *end = size ? memchr(data, 0xff, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    size_t n_text = end ? size - n - 1 : 0;
    qn_tokenizer *t = NULL;
    if (n_text > 4096) n_text = 4096;
    if (qn_tokenizer_from_json("fuzz.json", (const char *)data, n, &t) != QN_OK) {
        check(strstr(qn_last_error(), "fuzz.") != NULL);
        return 0;
    }
    use(t, end ? (const char *)end + 1 : "", n_text);
    use_pair(t, end ? (const char *)end + 1 : "", n_text);
    qn_tokenizer_free(t);
    return 0;
}
