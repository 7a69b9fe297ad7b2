/* Where files are kept that can be made again. Any thread that does not change the environment. */
#ifndef QN_BASE_CACHE_FOLDER_H
#define QN_BASE_CACHE_FOLDER_H

#include "base/buf.h"

/* Appends $QUERN_CACHE, else $XDG_CACHE_HOME/quern, else ~/.cache/quern, made or not. QN_E_NOT_FOUND: none
 * of them is set. */
qn_status qn_cache_folder(qn_buf *out);

#endif
