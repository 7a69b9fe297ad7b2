/* The files in which a command keeps what a model computed (`run --prompt-cache`, /save and /load of a chat).
 * They are a convenience: what goes wrong with them is noted on standard error, and the command goes on. */
#ifndef QN_CLI_OPTIONS_PROMPT_CACHE_H
#define QN_CLI_OPTIONS_PROMPT_CACHE_H

#include <quern/quern.h>

#include "base/buf.h"

/* Loads the file, if there is one. Returns 1 when it may be written afterwards: it is not there, empty, was
 * loaded, or holds saved state that does not fit; 0: it is something else. */
int qn_prompt_cache_load(qn_model *model, const char *path);
void qn_prompt_cache_save(qn_model *model, const char *path);
/* The name of the file beside a saved conversation. */
qn_status qn_prompt_cache_beside(const char *path, qn_buf *out);

#endif
