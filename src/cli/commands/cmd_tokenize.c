/* quern tokenize: text to ids, and ids to text. */
#include <quern/quern.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/options/options.h"
#include "cli/term/input.h"
#include "cli/term/out.h"
#include "text/tokenizer/tokenizer_source.h"

typedef struct {
    const char *file, *pre, *prompt;
    int json, special, bos, decode, skip_special;
} tokenize_options;

#define AT(field) offsetof(tokenize_options, field)
static const qn_arg tokenize_args[] = {
    {"--prompt", 'p', QN_ARG_TEXT, AT(prompt), 0, 0, "TEXT", "text to convert (default: standard input)"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print {\"ids\":[...]} or {\"text\":\"...\"}"},
    {"--special", 0, QN_ARG_FLAG, AT(special), 0, 0, NULL, "recognise special tokens in the text"},
    {"--bos", 0, QN_ARG_FLAG, AT(bos), 0, 0, NULL, "add the tokens that the tokenizer puts around a text"},
    {"--decode", 0, QN_ARG_FLAG, AT(decode), 0, 0, NULL, "read {\"ids\":[...]} and print its text"},
    {"--skip-special", 0, QN_ARG_FLAG, AT(skip_special), 0, 0, NULL,
     "with --decode: leave special tokens out"},
    {"--file", 0, QN_ARG_TEXT, AT(file), 0, 0, "NAME",
     "which weights file to use, if the directory has several"},
    {"--pre", 0, QN_ARG_TEXT, AT(pre), 0, 0, "REGEX",
     "regular expression that replaces the pre-tokenizer of a GGUF file"},
    {0},
};

static qn_status encode(const qn_tokenizer *t, const tokenize_options *o)
{
    qn_buf text = {0}, out = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    unsigned flags = (o->special ? QN_ENCODE_SPECIAL : 0) | (o->bos ? QN_ENCODE_BOS : 0);
    qn_status status = QN_OK;
    if (o->prompt)
        qn_buf_puts(&text, o->prompt);
    else
        status = qn_input_read_exactly(NULL, &text);
    if (status == QN_OK) status = text.status;
    if (status == QN_OK) {
        size_t valid = qn_utf8_valid_prefix(text.data, text.length);
        if (valid != text.length)
            status = qn_fail(QN_E_FORMAT, "%s: not valid UTF-8 at byte %zu",
                             o->prompt ? "--prompt" : "standard input", valid);
    }
    if (status == QN_OK) status = qn_tokenizer_encode(t, text.data, text.length, flags, &ids, &n);
    qn_buf_free(&text);
    if (status != QN_OK) return status;
    if (o->json) {
        qn_json_open(&out, '{');
        qn_json_key(&out, "ids");
        qn_json_ids(&out, ids, (int64_t)n);
        qn_json_close(&out, '}');
    } else {
        for (size_t i = 0; i < n; i++) qn_buf_printf(&out, i ? " %d" : "%d", (int)ids[i]);
    }
    qn_free(ids);
    return qn_out_line(&out);
}

/* Ids without a token have no text, as in the reference; said once, since it is mostly the wrong model. */
static void note_unknown(const qn_tokenizer *t, const int32_t *ids, int64_t n)
{
    size_t size = qn_tokenizer_vocab_size(t);
    for (int64_t i = 0; i < n; i++) {
        if ((size_t)ids[i] < size) continue;
        qn_out_note("token id %d at position %lld has no text: the vocabulary has %zu tokens", (int)ids[i],
                    (long long)i, size);
        return;
    }
}

static qn_status decode(const qn_tokenizer *t, const tokenize_options *o)
{
    qn_id_rows ids = {0};
    qn_buf text = {0}, out = {0};
    QN_TRY(qn_input_ids(NULL, &ids));
    qn_status status = QN_OK;
    if (ids.n_rows != 1)
        status = qn_fail(QN_E_FORMAT, "standard input: \"ids\" is not one list of token ids");
    if (status == QN_OK) note_unknown(t, ids.ids, ids.rows[0].n_ids);
    if (status == QN_OK)
        status = qn_tokenizer_decode(t, ids.ids, (size_t)ids.rows[0].n_ids,
                                     o->skip_special ? QN_DECODE_SKIP_SPECIAL : 0, &text);
    if (status == QN_OK && o->json) {
        qn_json_open(&out, '{');
        qn_json_key(&out, "text");
        qn_json_text(&out, text.data, text.length);
        qn_json_close(&out, '}');
        status = qn_out_line(&out);
    } else if (status == QN_OK) {
        status = qn_out_write(text.data, text.length);
    }
    qn_buf_free(&text);
    qn_id_rows_free(&ids);
    return status;
}

static const qn_arg_rule tokenize_rules[] = {{"--decode", .excludes = "--prompt", .why = "it reads ids"},
                                             {0}};
static const qn_arg_group tokenize_groups[] = {{NULL, tokenize_args, 0, tokenize_rules}, {0}};
const qn_arg_spec qn_tokenize_spec = {
    "quern tokenize MODEL [--decode] [options] < INPUT",
    "Converts text on standard input to token ids, or token ids to text. MODEL may be a directory with "
    "only a tokenizer.",
    tokenize_groups,
    1,
    1,
    NULL};

int qn_cmd_tokenize(int argc, char **argv)
{
    tokenize_options o = {0};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_tokenize_spec, &o, argc, argv, &path, &n, &code)) return code;
    qn_source *source = NULL;
    qn_tokenizer *tokenizer = NULL;
    qn_buf found = {0};
    qn_status status = qn_model_name_take(&path, &found);
    if (status == QN_OK)
        status = qn_source_open(path, &(qn_source_options){.file = o.file, .text_only = 1}, &source);
    if (status == QN_OK) status = qn_tokenizer_open(source, o.pre, &tokenizer);
    qn_source_close(source);
    qn_buf_free(&found);
    if (status == QN_OK) status = o.decode ? decode(tokenizer, &o) : encode(tokenizer, &o);
    qn_tokenizer_free(tokenizer);
    return status == QN_OK ? QN_EXIT_OK : qn_out_fail();
}
