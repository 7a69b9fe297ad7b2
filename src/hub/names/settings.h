/* What the environment says about fetching: where models are kept, which servers are asked, the token, and
 * whether the network may be used at all. Names and defaults are those of Python's huggingface_hub, so that both
 * find the same files. The token is never printed. Owned by one thread. */
#ifndef QN_HUB_NAMES_SETTINGS_H
#define QN_HUB_NAMES_SETTINGS_H

#include "base/buf.h"

typedef struct {
    qn_buf cache;           /* HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub */
    qn_buf own;             /* "hub" in quern's cache folder: models of Ollama and of URLs */
    qn_buf endpoint;        /* HF_ENDPOINT; no '/' at its end */
    qn_buf ollama;          /* QUERN_OLLAMA_ENDPOINT; likewise */
    qn_buf token;           /* HF_TOKEN, else the file HF_TOKEN_PATH or HF_HOME/token; empty: none */
    const char *offline_by; /* the variable or option that forbids the network; NULL: none does */
    int timeout_s; /* HF_HUB_DOWNLOAD_TIMEOUT: without a byte for so long, a transfer is begun again */
} qn_hub_settings;

/* out is zeroed by the caller. QN_E_ARG: a variable is unusable; the sentence names it. */
qn_status qn_hub_settings_read(qn_hub_settings *out);
void qn_hub_settings_free(qn_hub_settings *s);
/* QN_OK where the network may be used; else one sentence that names what and why. */
qn_status qn_hub_settings_check_online(const qn_hub_settings *s, const char *what);

#endif
