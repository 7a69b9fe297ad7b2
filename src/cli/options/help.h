/* The help of a command, from its tables: as wide as the terminal (80 columns where that is not known), no word
 * broken. Commands with many options show the common ones first; `--help all` shows all of them. */
#ifndef QN_CLI_OPTIONS_HELP_H
#define QN_CLI_OPTIONS_HELP_H

#include "cli/options/args.h"

/* all: every option, of whatever group. */
void qn_help_print(const qn_arg_spec *spec, int all);
/* A paragraph of help that begins at column `indent`, as its further lines do. */
void qn_help_text(const char *text, int indent);
/* Names of options with spaces between: those that help shows first; NULL: it shows all. command: "run". */
const char *qn_help_common(const char *command);

#endif
