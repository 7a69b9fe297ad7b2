/* Sources of constraints as strangers write them. The first byte picks the kind, or from 0xe0 on a format of calls;
 * the second seeds a walk; the rest is the source. Each token that the walk takes is one that the mask allows, drawn at random; the mask is never
 * empty, and tokens outside of it are refused. What a JSON schema lets end must be valid by the validator. */
#include "constrain/constraint.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/validate/validate.h"
#include "format/gguf/gguf.h"
#include "seed/seed.h"

enum { TOKENS_MAX = 60, SOURCE_MAX = 4096, FORMATS_FROM = 0xe0 };

static qn_vocabulary *vocabulary;
static qn_tokenizer *tokenizer;
static uint32_t *mask;
static int32_t end_id;

static void open_vocabulary(void)
{
    size_t n;
    const void *bytes = qn_seed_bytes(&n);
    qn_gguf *g = NULL;
    if (qn_gguf_open_bytes("seed", bytes, n, &g) != QN_OK) abort();
    if (qn_tokenizer_from_gguf(g, NULL, &tokenizer) != QN_OK) abort();
    qn_gguf_close(g);
    end_id = qn_tokenizer_eos_id(tokenizer);
    if (qn_vocabulary_new(tokenizer, &end_id, end_id >= 0, &vocabulary) != QN_OK) abort();
    mask = qn_calloc(qn_vocabulary_mask_words(vocabulary) + 1, sizeof *mask);
    if (!mask) abort();
}

static int allowed(int32_t id)
{
    return mask[id >> 5] >> (id & 31) & 1;
}

/* An allowed token, from a random place on; -1: there is none. */
static int32_t draw(uint32_t *random)
{
    int32_t n = (int32_t)qn_tokenizer_vocab_size(tokenizer);
    *random = *random * 1664525u + 1013904223u;
    int32_t from = (int32_t)((*random >> 8) % (uint32_t)n);
    for (int32_t i = 0; i < n; i++)
        if (allowed((from + i) % n)) return (from + i) % n;
    return -1;
}

static void check_end(const qn_constraint_source *s, const qn_buf *text)
{
    if (s->kind != QN_CONSTRAIN_JSON_SCHEMA) return;
    qn_schema *schema;
    qn_schema_limits limits = {.steps_max = 200000, .pattern_steps_max = 1000000};
    if (qn_schema_open(s->text, s->n, &limits, &schema) != QN_OK) return;
    qn_schema_report report = {0};
    if (qn_schema_validate_text(schema, text->data, text->length, &report) == QN_OK && !report.is_valid)
        abort();
    qn_schema_report_clear(&report);
    qn_schema_close(schema);
}

static void walk(const qn_constraint_source *s, qn_constraint *c, uint32_t random)
{
    qn_matcher *m;
    qn_buf text = {0};
    if (qn_matcher_new(c, &m) != QN_OK) abort();
    for (int i = 0; i < TOKENS_MAX; i++) {
        qn_status status = qn_matcher_mask(m, mask);
        if (status == QN_E_UNSUPPORTED || status == QN_E_FULL) break;
        if (status != QN_OK) abort();
        int may_end = qn_matcher_may_end(m);
        if (may_end) {
            check_end(s, &text);
            if (qn_matcher_is_done(m)) break;
        }
        int32_t id = draw(&random);
        if (id < 0 && !may_end) abort();
        if (id < 0 || id == end_id) break;
        int32_t other = (int32_t)(random % qn_tokenizer_vocab_size(tokenizer));
        if (qn_matcher_allows(m, other) != allowed(other)) abort();
        if (qn_matcher_accept(m, id) != QN_OK) abort();
        if (qn_tokenizer_piece(tokenizer, id, &text) != QN_OK) abort();
    }
    qn_buf_free(&text);
    qn_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const qn_constraint_kind kinds[] = {
        QN_CONSTRAIN_JSON_SCHEMA, QN_CONSTRAIN_JSON_SCHEMA, QN_CONSTRAIN_JSON_SCHEMA, QN_CONSTRAIN_REGEX,
        QN_CONSTRAIN_CHOICES,     QN_CONSTRAIN_GBNF,        QN_CONSTRAIN_LARK};
    static const char *const formats[] = {"harmony",    "functionary", "atem",  "gemma",
                                          "qwen_coder", "glm",         "hermes"};
    if (size < 2 || size > SOURCE_MAX) return 0;
    if (!vocabulary) open_vocabulary();
    qn_constraint_source s = {.kind = kinds[data[0] % (sizeof kinds / sizeof kinds[0])],
                              .text = (const char *)data + 2,
                              .n = size - 2};
    if (data[0] >= FORMATS_FROM) {
        s.kind = QN_CONSTRAIN_TOOLS;
        s.tools.format = qn_answer_format_find(formats[data[0] % (sizeof formats / sizeof formats[0])], "");
        s.tools.mode = data[1] & 1 ? QN_TOOL_CALLS_REQUIRED : QN_TOOL_CALLS_AUTO;
        s.tools.is_one_call = data[1] >> 1 & 1;
    }
    qn_constraint_limits l = {.states_max = 5000, .steps_max = 2000000, .memory_max = 16 << 20};
    qn_constraint *c = NULL;
    qn_status status = qn_constraint_new(vocabulary, &s, &l, &c);
    if (status != QN_OK) {
        if (c || !*qn_last_error()) abort();
        return 0;
    }
    walk(&s, c, data[1]);
    qn_constraint_release(c);
    return 0;
}
