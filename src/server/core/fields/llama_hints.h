/* Rows of fields that llama.cpp's programs send to OpenAI's API and to their own alike, and that change no text here. */
#ifndef QN_SERVER_CORE_FIELDS_LLAMA_HINTS_H
#define QN_SERVER_CORE_FIELDS_LLAMA_HINTS_H

#include "server/core/fields/request_fields.h"

#define QN_LLAMA_HINT(name, routes, note)                          \
    {                                                              \
        name, routes, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, note \
    }
#define QN_LLAMA_GUESSES "has no effect: --speculate and --draft-model of the server decide what is guessed"
#define QN_LLAMA_HINTS(routes)                                                                           \
    QN_LLAMA_HINT("n_cache_reuse", routes, "has no effect: all requests share one cache"),               \
        QN_LLAMA_HINT("n_keep", routes, "has no effect: prompts are never cut"),                         \
        QN_LLAMA_HINT("n_indent", routes, "has no effect: use stop"),                                    \
        QN_LLAMA_HINT("t_max_prompt_ms", routes, "has no effect"),                                       \
        QN_LLAMA_HINT("t_max_predict_ms", routes, "has no effect: limit the number of tokens"),          \
        QN_LLAMA_HINT("backend_sampling", routes, "has no effect: the server chooses where it samples"), \
        QN_LLAMA_HINT("verbose", routes, "has no effect: POST /apply-template tells the prompt"),        \
        QN_LLAMA_HINT("adaptive_decay", routes, "has no effect: there is no adaptive sampler"),          \
        QN_LLAMA_HINT("speculative.n_max", routes, QN_LLAMA_GUESSES),                                    \
        QN_LLAMA_HINT("speculative.n_min", routes, QN_LLAMA_GUESSES),                                    \
        QN_LLAMA_HINT("speculative.p_min", routes, QN_LLAMA_GUESSES),                                    \
        QN_LLAMA_HINT("speculative.type", routes, QN_LLAMA_GUESSES),                                     \
        QN_LLAMA_HINT("speculative.ngram_size_n", routes, QN_LLAMA_GUESSES),                             \
        QN_LLAMA_HINT("speculative.ngram_size_m", routes, QN_LLAMA_GUESSES),                             \
        QN_LLAMA_HINT("speculative.ngram_min_hits", routes, QN_LLAMA_GUESSES),                           \
    {                                                                                                    \
        "adaptive_target", routes, QN_FIELD_OWN, 0, 0, 0, qn_field_read_adaptive_target, NULL, NULL      \
    }

#endif
