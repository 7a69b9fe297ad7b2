#include <string.h>

#include "base/bytes/digest.h"
#include "server/archive/archive.h"

void qn_archive_name_owner(const char *key, char owner[QN_ARCHIVE_OWNER_MAX])
{
    qn_digest d;
    owner[0] = 0;
    if (!key) return;
    qn_digest_begin(&d, QN_SUM_SHA256, (int64_t)strlen(key));
    qn_digest_put(&d, key, strlen(key));
    qn_digest_end(&d, owner);
}
