/* The wire format of protocol buffers: fields of a message, one after the other. Any thread. */
#ifndef QN_TEXT_TOKENIZER_FILES_PROTOBUF_H
#define QN_TEXT_TOKENIZER_FILES_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

enum { QN_PROTO_NUMBER = 0, QN_PROTO_FIXED64 = 1, QN_PROTO_BYTES = 2, QN_PROTO_FIXED32 = 5 };

/* A message that is being read. */
typedef struct {
    const uint8_t *at, *end;
} qn_proto;

typedef struct {
    uint32_t field;
    int wire;         /* one of those above */
    uint64_t number;  /* NUMBER; FIXED32 and FIXED64: the bits */
    const char *data; /* BYTES: [n], borrowed */
    size_t n;
} qn_proto_field;

/* 1: *f is the next field. 0: the message ended. -1: it is broken, or has a group (no longer in use). */
int qn_proto_next(qn_proto *p, qn_proto_field *f);
float qn_proto_float(const qn_proto_field *f);

#endif
