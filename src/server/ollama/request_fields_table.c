/* Every field that clients of Ollama's API send, and what becomes of it. null means "not given" everywhere. */
#include <stddef.h>

#include "server/ollama/request.h"

#define AT(field) offsetof(qn_api_request, field)
#define CHAT QN_OLLAMA_CHAT
#define TEXT QN_OLLAMA_GENERATE
#define BOTH (CHAT | TEXT)
#define EMBED QN_OLLAMA_EMBED
#define OLD QN_OLLAMA_EMBEDDINGS
#define SHOW QN_OLLAMA_SHOW
#define ALL (BOTH | EMBED | OLD | SHOW)

static const char no_template[] = "only the model's own template is used";
static const char fixed_at_start[] = "has no effect: options of quern serve set it when the model is loaded";

const qn_field qn_ollama_fields[] = {
    /* what is asked */
    {"model", ALL, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_model, NULL, NULL},
    {"name", SHOW, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_model, NULL, NULL},
    {"messages", CHAT, QN_FIELD_JSON, AT(messages), 0, 0, NULL, NULL, NULL},
    {"tools", CHAT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_tools, NULL, NULL},
    {"prompt", TEXT, QN_FIELD_JSON, AT(content), 0, 0, NULL, NULL, NULL},
    {"suffix", TEXT, QN_FIELD_JSON, AT(suffix), 0, 0, NULL, NULL, NULL},
    {"system", TEXT, QN_FIELD_JSON, AT(system), 0, 0, NULL, NULL, NULL},
    {"raw", TEXT, QN_FIELD_BOOL, AT(raw), 0, 0, NULL, NULL, NULL},
    {"images", TEXT, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_images, NULL, NULL},
    {"think", BOTH, QN_FIELD_JSON, AT(think), 0, 0, NULL, NULL, NULL},
    {"input", EMBED, QN_FIELD_JSON, AT(input), 0, 0, NULL, NULL, NULL},
    {"prompt", OLD, QN_FIELD_JSON, AT(input), 0, 0, NULL, NULL, NULL},
    /* how it is answered */
    {"stream", BOTH, QN_FIELD_BOOL, AT(stream), 0, 0, NULL, NULL, NULL},
    {"format", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_format, NULL, NULL},
    {"options", BOTH | EMBED | OLD, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_options, NULL, NULL},
    {"logprobs", BOTH, QN_FIELD_BOOL, AT(logprobs), 0, 0, NULL, NULL, NULL},
    {"top_logprobs", BOTH, QN_FIELD_INT, AT(top_logprobs), 0, QN_REQUEST_TOP_LOGPROBS_MAX, NULL, NULL, NULL},
    {"shift", BOTH, QN_FIELD_BOOL, AT(o.rotate), 0, 0, NULL, NULL, NULL},
    {"truncate", EMBED, QN_FIELD_BOOL, AT(truncates), 0, 0, NULL, NULL, NULL},
    {"dimensions", EMBED, QN_FIELD_INT, AT(dimensions), 1, INT32_MAX, NULL, NULL, NULL},

    /* taken and reported */
    {"keep_alive", BOTH | EMBED | OLD, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_keep_alive, NULL, NULL},
    {"verbose", SHOW, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: the answer is always whole"},

    /* refused, but for values that ask for nothing */
    {"template", BOTH | SHOW, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"\"]", no_template},
    {"system", SHOW, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[\"\"]", no_template},
    {"options", SHOW, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[{}]", "they belong to requests"},
    {"context", TEXT, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[[]]", "send the conversation to /api/chat"},
    {"truncate", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "prompts are never truncated"},
    {0},
};

/* Of "options". */
const qn_field qn_ollama_options[] = {
    {"num_predict", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_num_predict, NULL, NULL},
    {"num_ctx", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_num_ctx, NULL, NULL},
    {"stop", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_field_read_stop, NULL, NULL},
    {"seed", BOTH, QN_FIELD_OWN, 0, 0, 0, qn_ollama_read_seed, NULL, NULL},
    {"temperature", BOTH, QN_FIELD_REAL, AT(temperature), 0, 100, NULL, NULL, NULL},
    {"top_p", BOTH, QN_FIELD_REAL, AT(top_p), 0, 1, NULL, NULL, NULL},
    {"min_p", BOTH, QN_FIELD_REAL, AT(min_p), 0, 1, NULL, NULL, NULL},
    {"top_k", BOTH, QN_FIELD_INT, AT(top_k), -1, INT32_MAX, NULL, NULL, NULL},
    {"typical_p", BOTH, QN_FIELD_REAL, AT(typical_p), 0, 1, NULL, NULL, NULL},
    {"repeat_penalty", BOTH, QN_FIELD_REAL, AT(repeat_penalty), 0.01, 100, NULL, NULL, NULL},
    {"repeat_last_n", BOTH, QN_FIELD_INT, AT(repeat_last_n), -1, INT32_MAX, NULL, NULL, NULL},
    {"presence_penalty", BOTH, QN_FIELD_REAL, AT(presence_penalty), -2, 2, NULL, NULL, NULL},
    {"frequency_penalty", BOTH, QN_FIELD_REAL, AT(frequency_penalty), -2, 2, NULL, NULL, NULL},
    {"mirostat", BOTH, QN_FIELD_INT, AT(mirostat), 0, 2, NULL, NULL, NULL},
    {"mirostat_tau", BOTH, QN_FIELD_REAL, AT(mirostat_tau), 0, 100, NULL, NULL, NULL},
    {"mirostat_eta", BOTH, QN_FIELD_REAL, AT(mirostat_eta), 0, 1, NULL, NULL, NULL},

    {"num_keep", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "has no effect: see shift"},
    {"num_batch", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"num_gpu", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"main_gpu", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"num_thread", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"numa", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"low_vram", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"f16_kv", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"use_mmap", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},
    {"use_mlock", BOTH, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, fixed_at_start},

    {"tfs_z", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[1, 1.0]", "there is no such sampler"},
    {"penalize_newline", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[true]", "line ends are tokens like others"},
    {"logits_all", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "use logprobs"},
    {"vocab_only", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "the model is loaded as a whole"},
    {"embedding_only", BOTH, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]", "use /api/embed"},
    {0},
};
