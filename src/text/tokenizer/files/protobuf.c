#include "text/tokenizer/files/protobuf.h"

#include <string.h>

static int read_varint(qn_proto *p, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70 && p->at < p->end; shift += 7) {
        uint8_t byte = *p->at++;
        if (shift < 64) value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return 1;
        }
    }
    return 0;
}

static int read_fixed(qn_proto *p, size_t n, uint64_t *out)
{
    if ((size_t)(p->end - p->at) < n) return 0;
    *out = 0;
    for (size_t i = 0; i < n; i++) *out |= (uint64_t)p->at[i] << (8 * i);
    p->at += n;
    return 1;
}

int qn_proto_next(qn_proto *p, qn_proto_field *f)
{
    uint64_t tag, n;
    if (p->at == p->end) return 0;
    if (!read_varint(p, &tag) || tag >> 3 == 0 || tag >> 32) return -1;
    *f = (qn_proto_field){.field = (uint32_t)(tag >> 3), .wire = (int)(tag & 7)};
    switch (f->wire) {
    case QN_PROTO_NUMBER:
        return read_varint(p, &f->number) ? 1 : -1;
    case QN_PROTO_FIXED64:
        return read_fixed(p, 8, &f->number) ? 1 : -1;
    case QN_PROTO_FIXED32:
        return read_fixed(p, 4, &f->number) ? 1 : -1;
    case QN_PROTO_BYTES:
        if (!read_varint(p, &n) || n > (uint64_t)(p->end - p->at)) return -1;
        f->data = (const char *)p->at;
        f->n = (size_t)n;
        p->at += n;
        return 1;
    default:
        return -1;
    }
}

float qn_proto_float(const qn_proto_field *f)
{
    uint32_t bits = (uint32_t)f->number;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
