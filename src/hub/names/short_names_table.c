/* The short names, one row each; docs/models.md shows the same rows, and tests/hub checks that. The first row of
 * a family is what its name without a size means. A name means one file, so that its size is known before; hf:REPOSITORY lets the memory choose.
 * Sizes are those that the repositories state. All are open to everybody: no token and no form to fill in. */
#include "hub/names/name.h"

const qn_hub_short qn_hub_shorts[] = {
    {"qwen3:4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2500},
    {"qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF", "Q8_0", 640},
    {"qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF", "Q8_0", 1830},
    {"qwen3:8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M", 5030},
    {"qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M", 18560},
    {"llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2020},
    {"llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M", 810},
    {"gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2490},
    {"gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M", 810},
    {"smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M", 1060},
    {"smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "bf16", 270},
    {"smollm3:3b", "ggml-org/SmolLM3-3B-GGUF", "Q4_K_M", 1920},
    {"phi4-mini:3.8b", "bartowski/microsoft_Phi-4-mini-instruct-GGUF", "Q4_K_M", 2490},
    {"mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Q4_K_M", 4370},
    {"deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", "Q4_K_M", 4680},
    {"deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", "Q4_K_M", 1120},
    {"qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", "Q4_K_M", 4680},
    {"qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "Q4_K_M", 1120},
    {"gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "mxfp4", 12110},
    {0},
};
