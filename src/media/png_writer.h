/* RGB becomes the bytes of a PNG file. Any thread. */
#ifndef QN_MEDIA_PNG_WRITER_H
#define QN_MEDIA_PNG_WRITER_H

#include "base/buf.h"
#include "media/picture.h"

/* Appends the file to out: 8 bits a channel, compressed. QN_E_ARG: no size, or a side beyond 65,535;
 * QN_E_NOMEM. */
qn_status qn_png_encode(const qn_picture *image, qn_buf *out);

#endif
