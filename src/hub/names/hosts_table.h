/* The hosts that names without a URL lead to. `make lint` refuses them anywhere else in src, so this page says
 * whom quern may call. Each can be replaced by a variable of the environment. Constant data. */
#ifndef QN_HUB_NAMES_HOSTS_TABLE_H
#define QN_HUB_NAMES_HOSTS_TABLE_H

#define QN_HUB_HF_HOST "https://huggingface.co"         /* HF_ENDPOINT */
#define QN_HUB_OLLAMA_HOST "https://registry.ollama.ai" /* QUERN_OLLAMA_ENDPOINT */

#endif
