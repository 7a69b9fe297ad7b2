/* WebP in a build without libwebp. */
#include "media/decoders.h"

qn_status qn_webp_decode(qn_decoding *d)
{
    (void)d;
    return qn_fail(QN_E_UNSUPPORTED, "this build of quern reads no WebP: it was made without libwebp");
}
