#include "text/tokenizer/split/stand_in.h"

#include <stdint.h>

#include "base/utf8.h"
#include "text/tokenizer/split/reference.h"

/* The code point to match instead of the one at text[at]; 0: none. Most bytes are told by the table of pages alone. */
static uint32_t stand_in(const char *text, size_t n, size_t at)
{
    uint32_t cp, lead = (uint8_t)text[at];
    if (lead < 0xe0 || n - at < 3) return 0;
    uint32_t page = (lead & 15) << 6 | ((uint8_t)text[at + 1] & 63);
    if (lead < 0xf0 && !(qn_stand_in_pages[page >> 5] >> (page & 31) & 1)) return 0;
    if (!qn_utf8_decode(text + at, n - at, &cp)) return 0;
    int low = 0, high = qn_stand_in_count;
    while (low < high) { /* the first row that does not end before cp */
        int middle = low + (high - low) / 2;
        if (qn_stand_ins[middle].last < cp)
            low = middle + 1;
        else
            high = middle;
    }
    return low < qn_stand_in_count && qn_stand_ins[low].first <= cp ? qn_stand_ins[low].stand_in : 0;
}

qn_status qn_replace_young(const char **text, size_t n, qn_buf *copy)
{
    size_t at = 0;
    while (at < n && !stand_in(*text, n, at)) at++;
    if (at == n) return QN_OK;
    qn_buf_append(copy, *text, n);
    if (copy->status != QN_OK) return copy->status;
    for (; at < n; at++) {
        uint32_t cp = stand_in(*text, n, at);
        if (cp) qn_utf8_encode(cp, copy->data + at);
    }
    *text = copy->data;
    return QN_OK;
}
