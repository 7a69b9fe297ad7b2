/* What `show` has from `inspect`: files, sizes and types of weights, without tensors and metadata. Main thread. */
#ifndef QN_CLI_COMMANDS_INSPECT_SUMMARY_H
#define QN_CLI_COMMANDS_INSPECT_SUMMARY_H

#include "base/status.h"

/* Prints it to standard output. */
qn_status qn_inspect_summary(const char *path);

#endif
