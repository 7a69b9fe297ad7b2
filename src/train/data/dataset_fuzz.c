/* Lines of data sets against fixed tokenizers and templates. The first byte chooses model, mask and length,
 * the rest is the line. Known truths: a sequence has a target at its end and none at its begin, its ids are
 * in the vocabulary, a second reading gives the same, and what is refused is refused as a bad line. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "train/data/dataset_line.h"

enum { N_CHATS = 3 };

static qn_chat_text *chats[N_CHATS];

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

/* Writes earlier turns without their reasoning and ends turns only before the next. */
static const char rewriting[] =
    "{% for m in messages %}{% if not loop.first %}<|eot_id|>{% endif %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|eot_id|><|assistant|><think>{% endif %}";

static void open_chats(void)
{
    static const char *const paths[N_CHATS] = {"tests/golden/models/llama", "tests/golden/models/qwen3",
                                               "tests/golden/models/llama"};
    for (int i = 0; i < N_CHATS; i++) {
        qn_source *source = NULL;
        const qn_chat_text_options options = {.chat_template = i == 2 ? rewriting : NULL};
        check(qn_source_open(paths[i], &(qn_source_options){.text_only = 1}, &source) == QN_OK);
        check(qn_chat_text_open(source, &options, &chats[i]) == QN_OK);
        qn_source_close(source);
    }
}

static void check_sequence(const qn_line_options *o, const qn_train_sequence *s)
{
    const int64_t vocabulary = (int64_t)qn_tokenizer_vocab_size(qn_chat_text_tokenizer(o->text));
    int64_t n_counted = 0;
    check(s->n >= 2 && s->n <= o->max_length && s->n <= s->n_whole);
    check(!s->counts[0] && s->counts[s->n - 1]);
    for (int64_t i = 0; i < s->n; i++) {
        check(s->ids[i] >= 0 && s->ids[i] < vocabulary && s->counts[i] <= 1);
        n_counted += s->counts[i];
    }
    check(n_counted == s->n_counted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!chats[0]) open_chats();
    if (!size) return 0;
    const uint8_t choice = data[0];
    const char *line = (const char *)data + 1;
    const qn_chat_text *text = chats[choice % N_CHATS];
    const qn_line_options o = {.text = text,
                               .mask = (qn_mask)(choice / N_CHATS % 3),
                               .max_length = choice & 0x80 ? 16 : 4096,
                               .vocab_size = (int64_t)qn_tokenizer_vocab_size(qn_chat_text_tokenizer(text)),
                               .now = "2026-03-14T15:09:26"};
    qn_train_sequence s = {0}, again = {0};
    qn_buf keys = {0};
    qn_status status = qn_train_sequence_read(&o, line, size - 1, &s, &keys);
    check(status == QN_OK || (qn_line_is_bad(status) && !s.ids && *qn_last_error()));
    check(qn_train_sequence_read(&o, line, size - 1, &again, NULL) == status);
    if (status == QN_OK) {
        check_sequence(&o, &s);
        check(again.n == s.n && memcmp(again.ids, s.ids, (size_t)s.n * sizeof *s.ids) == 0 &&
              memcmp(again.counts, s.counts, (size_t)s.n) == 0);
    }
    qn_train_sequence_free(&s);
    qn_train_sequence_free(&again);
    qn_buf_free(&keys);
    return 0;
}
