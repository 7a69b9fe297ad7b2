/* A tiktoken file of a stranger: the first byte picks the configuration, the last bytes are a text. What tokens stand
 * for the 256 bytes is there already, so that an input may say what else there is. */
#include <jansson.h>
#include <stdint.h>
#include <string.h>

#include <quern/log.h>

#include "base/bytes/base64.h"
#include "base/mem.h"
#include "text/tokenizer/files/tiktoken.h"

enum { TEXT = 32 };

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void use(const qn_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    qn_buf decoded = {0};
    if (qn_tokenizer_encode(t, text, n, QN_ENCODE_BOS, &ids, &n_ids) != QN_OK) {
        check(strstr(qn_last_error(), "fuzz.") != NULL);
        return;
    }
    for (size_t i = 0; i < n_ids; i++) check(ids[i] >= 0 && (size_t)ids[i] < qn_tokenizer_vocab_size(t));
    check(qn_tokenizer_decode(t, ids, n_ids, 0, &decoded) == QN_OK);
    qn_buf_free(&decoded);
    qn_free(ids);
}

static json_t *config_of(uint8_t choice)
{
    switch (choice % 4) {
    case 1:
        return json_pack("{s:s}", "tokenizer_class", "QWenTokenizer");
    case 2:
        return json_pack("{s:s,s:{s:s}}", "pattern", "\\w+|\\W", "added_tokens_decoder", "259", "<x>");
    case 3:
        return json_pack("{s:s}", "tokenizer_class", "TikTokenTokenizer");
    default:
        return NULL;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_log_set_level(QN_LOG_ERROR);
    qn_buf file = {0};
    qn_tokenizer *t = NULL;
    if (!size) return 0;
    json_t *config = config_of(data[0]);
    for (int byte = 0; byte < 256 && !(data[0] & 0x80); byte++) {
        char c = (char)byte;
        qn_base64_encode(&c, 1, &file);
        qn_buf_printf(&file, " %d\n", byte);
    }
    const size_t n_text = size - 1 < TEXT ? size - 1 : TEXT;
    qn_buf_append(&file, data + 1, size - 1 - n_text);
    if (file.status == QN_OK) {
        if (qn_tiktoken_open("fuzz.tiktoken", file.data, file.length, config, NULL, &t) == QN_OK)
            use(t, (const char *)data + size - n_text, n_text);
        else
            check(strstr(qn_last_error(), "fuzz.") != NULL);
    }
    qn_tokenizer_free(t);
    qn_buf_free(&file);
    json_decref(config);
    return 0;
}
