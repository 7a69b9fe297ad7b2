/* Writing into a picture, in capitals of 5 by 7 pixels: for labels of what is drawn. Any thread. */
#ifndef QN_MEDIA_TEXT5X7_H
#define QN_MEDIA_TEXT5X7_H

#include "media/picture.h"

enum { QN_TEXT_ADVANCE = 6, QN_TEXT_HEIGHT = 7 };

/* Black, from (x, y) as its upper left corner on; what lies outside of the picture is left out. Small letters
 * become capitals, characters that are not known a question mark. */
void qn_text_draw(qn_picture *image, int64_t x, int64_t y, const char *text);
int64_t qn_text_width(const char *text);

#endif
