/* POST /completions: OpenAI's API without its "/v1", and llama.cpp's own. A field that only the latter has tells. */
#include "server/core/completion.h"
#include "server/llama/llama.h"
#include "server/openai/openai.h"
#include "server/routes.h"

static const qn_dialect *choose(const char *text, size_t n)
{
    return qn_llama_is_own(text, n) ? &qn_llama_completion : &qn_openai_completions;
}

static const qn_dialect either = {.choose = choose};

void qn_route_completions_either(qn_exchange *ex)
{
    qn_completion_begin(ex, &either);
}
