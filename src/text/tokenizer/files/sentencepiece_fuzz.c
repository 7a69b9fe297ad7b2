/* A tokenizer.model of a stranger: the input but for its last bytes, which are a text that the tokenizer must encode
 * and decode. Whatever loads gives ids of its own vocabulary; what is refused says which file it is. */
#include <stdint.h>
#include <string.h>

#include <quern/log.h>

#include "base/mem.h"
#include "text/tokenizer/files/sentencepiece.h"

enum { TEXT = 32 };

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void use(const qn_tokenizer *t, const char *text, size_t n)
{
    const size_t half = n / 2;
    qn_text_segment parts[] = {{text, half, 1}, {text + half, n - half, 0}};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    qn_buf decoded = {0};
    if (qn_tokenizer_encode_segments(t, parts, 2, QN_ENCODE_BOS, &ids, &n_ids) != QN_OK) {
        check(strstr(qn_last_error(), "fuzz.") != NULL);
        return;
    }
    for (size_t i = 0; i < n_ids; i++) check(ids[i] >= 0 && (size_t)ids[i] < qn_tokenizer_vocab_size(t));
    check(qn_tokenizer_decode(t, ids, n_ids, 0, &decoded) == QN_OK);
    qn_buf_free(&decoded);
    qn_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_log_set_level(QN_LOG_ERROR);
    const size_t n_text = size < TEXT ? size : TEXT;
    qn_tokenizer *t = NULL;
    if (qn_sentencepiece_open("fuzz.model", data, size - n_text, NULL, NULL, &t) != QN_OK) {
        check(strstr(qn_last_error(), "fuzz.") != NULL);
        return 0;
    }
    use(t, (const char *)data + size - n_text, n_text);
    qn_tokenizer_free(t);
    return 0;
}
