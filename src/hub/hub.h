/* Models by name: what the commands call. A name is looked up among the models that are here, or fetched: listed,
 * chosen, checked and put into the store. Nothing is fetched but by qn_hub_pull, and only what its name says.
 *
 * Calls go down: hub -> pull's sources (hf, ollama, url) -> transfer, ask -> way -> net; store, choose and listing
 * know no network. One thread per session. */
#ifndef QN_HUB_HUB_H
#define QN_HUB_HUB_H

#include "hub/names/choose.h"
#include "hub/names/name.h"
#include "hub/net/session.h"
#include "hub/store/store.h"

typedef struct {
    int64_t memory_bytes; /* choose as for a machine with so much; 0: this one's */
    int dry_run;          /* look and choose only */
    int no_mmproj;        /* fetch no vision tower */
} qn_hub_pull_options;

typedef struct {
    qn_buf path;        /* of the model: a GGUF file or a folder; where it would be, after a dry run */
    qn_hub_files files; /* that were chosen */
    char commit[QN_SUM_HEX_MAX];
    char why[512];       /* the choice in one sentence; "" where there was none */
    int64_t total_bytes; /* of the files */
    int64_t here_bytes;  /* of those that were here */
    int64_t came_bytes;  /* fetched now */
} qn_hub_pulled;

/* Opens the network and fetches. session->net is set by this call and closed again. QN_E_NOT_FOUND offline or where
 * there is no such model; QN_E_UNSUPPORTED without libcurl; QN_E_CANCELLED; and those of the disk and of what
 * servers say. out is zeroed by the caller and freed by qn_hub_pulled_free, whatever came. */
qn_status qn_hub_pull(qn_hub_session *session, const qn_hub_name *name, const qn_hub_pull_options *options,
                      qn_hub_pulled *out);
void qn_hub_pulled_free(qn_hub_pulled *p);

#endif
