/* A text in the user's own editor. */
#ifndef QN_CLI_TERM_EDITOR_H
#define QN_CLI_TERM_EDITOR_H

#include "base/buf.h"
#include "base/status.h"

/* Opens text[0..n) in $VISUAL, else $EDITOR, by way of a file that only its owner can read and that is gone
 * afterwards; waits, and puts what was written there into out (replaced), less one line end. The terminal is
 * the editor's meanwhile, Ctrl-C too. QN_E_NOT_FOUND: neither is set. QN_E_IO: it could not be started or
 * ended with a failure. */
qn_status qn_editor_run(const char *text, size_t n, qn_buf *out);

#endif
