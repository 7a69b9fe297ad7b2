#include "base/cache_folder.h"

#include <stdlib.h>

qn_status qn_cache_folder(qn_buf *out)
{
    const char *own = getenv("QUERN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own)
        qn_buf_puts(out, own);
    else if (xdg && *xdg)
        qn_buf_printf(out, "%s/quern", xdg);
    else if (home && *home)
        qn_buf_printf(out, "%s/.cache/quern", home);
    else
        return qn_fail(QN_E_NOT_FOUND, "there is no cache folder: neither QUERN_CACHE nor HOME is set");
    return out->status;
}
