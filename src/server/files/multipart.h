/* A body of the type multipart/form-data, read strictly and piece by piece: parts come out as they arrive.
 *
 * What two programs might read differently is refused: text before the first boundary or behind the last, headers that
 * are malformed or given twice, encodings of a part. Invariant: what is held is bounded by QN_MULTIPART_HEAD_MAX, however
 * long a part is. No sockets, no files. One thread at a time; nothing is allocated. */
#ifndef QN_SERVER_FILES_MULTIPART_H
#define QN_SERVER_FILES_MULTIPART_H

#include <stddef.h>

enum {
    QN_MULTIPART_BOUNDARY_MAX = 70, /* RFC 2046 */
    QN_MULTIPART_HEAD_MAX = 2048,   /* the headers of one part */
    QN_MULTIPART_NAME_MAX = 256,
    QN_MULTIPART_PARTS_MAX = 32
};

/* What a part says of itself. Strings end with a NUL and are valid until the next part begins. */
typedef struct {
    char name[QN_MULTIPART_NAME_MAX];
    char file_name[QN_MULTIPART_NAME_MAX];
    int has_file_name;
} qn_multipart_part;

/* They return 0, or anything else to end the reading. */
typedef struct {
    int (*begin)(void *user, const qn_multipart_part *part);
    int (*data)(void *user, const char *bytes, size_t n); /* n > 0 */
    int (*end)(void *user);
} qn_multipart_reader;

typedef struct {
    const qn_multipart_reader *reader;
    void *user;
    char mark[QN_MULTIPART_BOUNDARY_MAX + 5]; /* CR LF "--" and the boundary */
    size_t mark_bytes, n_matched;             /* of the mark, at the end of what came */
    enum {
        QN_MULTIPART_MARK,
        QN_MULTIPART_BEHIND,
        QN_MULTIPART_HEAD,
        QN_MULTIPART_DATA,
        QN_MULTIPART_END
    } state;
    char head[QN_MULTIPART_HEAD_MAX + 1];
    size_t n_head;
    char behind[2]; /* what follows a boundary */
    size_t n_behind;
    qn_multipart_part part;
    int n_parts;
    const char *why; /* one sentence about a failure; NULL: none, or the reader ended it. Static storage */
} qn_multipart;

/* content_type is that of the request, or NULL. Returns 0, or -1: it is not multipart/form-data with a boundary; `why`. */
int qn_multipart_start(qn_multipart *m, const char *content_type, const qn_multipart_reader *reader,
                       void *user);
/* Returns 0; -1: the body is malformed (`why`); or what a function of the reader returned. No more may be fed then. */
int qn_multipart_feed(qn_multipart *m, const char *bytes, size_t n);
/* 1: the body is whole. */
int qn_multipart_is_whole(const qn_multipart *m);

#endif
