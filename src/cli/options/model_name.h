/* A model by name, wherever MODEL stands: an existing path wins; hf:, ollama: and URLs are names; short names (qwen3)
 * come last, and what is none of these stays the path that it may be meant as. Main thread. */
#ifndef QN_CLI_OPTIONS_MODEL_NAME_H
#define QN_CLI_OPTIONS_MODEL_NAME_H

#include "base/buf.h"
#include "hub/hub.h"

typedef struct {
    int may_fetch; /* a model that is not here is fetched, with a line and progress; else its name is refused */
    int offline;   /* --offline: it is not, whatever may_fetch says */
} qn_model_name_options;

/* Puts into *path, and keeps in kept (zeroed or used before), the path that text means. options NULL: no fetching.
 * QN_E_NOT_FOUND: a name of a model that is not here. */
qn_status qn_model_name_find(const char *text, const qn_model_name_options *options, qn_buf *kept,
                             const char **path);
/* The same where *path is both. */
qn_status qn_model_name_take(const char **path, qn_buf *kept);

/* After a failure to open text: says how a model of the Hub is called, where text has the form ORG/NAME and names no
 * file. Returns status. */
qn_status qn_model_name_hint(const char *text, qn_status status);

/* Fetches with progress on standard error and Ctrl-C as an end that can be gone on from. For qn_cmd_pull too. */
qn_status qn_model_name_pull(const qn_hub_settings *settings, const qn_hub_name *name,
                             const qn_hub_pull_options *options, qn_hub_pulled *out);

#endif
