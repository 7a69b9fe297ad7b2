/* Older code points in the place of those that PCRE2 or utf8proc may not know yet. Any thread. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_STAND_IN_H
#define QN_TEXT_TOKENIZER_SPLIT_STAND_IN_H

#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

/* Makes a text that the expressions of tokenizer files cut at the same bytes as (*text)[0..n), in the Unicode of the
 * library those files are written for. Where it differs, *text becomes the new text, which copy owns; else *text
 * stays and copy is not touched. The text is valid UTF-8. */
qn_status qn_replace_young(const char **text, size_t n, qn_buf *copy);

#endif
