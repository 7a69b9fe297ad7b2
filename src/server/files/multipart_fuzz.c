/* Any bytes as a body of parts: the first line is the content type. It does not matter in which pieces the bytes
 * arrive, parts begin and end in turn, and a body that is refused says why. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "server/files/multipart.h"

enum { PIECE_MAX = 9 };

/* All that the reader was told. */
typedef struct {
    qn_buf text;
    int is_inside;
} told;

static int begin(void *user, const qn_multipart_part *part)
{
    told *t = user;
    if (t->is_inside++ || strlen(part->name) >= sizeof part->name) abort();
    qn_buf_printf(&t->text, "[%s|%s|%d]", part->name, part->file_name, part->has_file_name);
    return 0;
}

static int data(void *user, const char *bytes, size_t n)
{
    told *t = user;
    if (!t->is_inside || !n) abort();
    qn_buf_append(&t->text, bytes, n);
    return 0;
}

static int end(void *user)
{
    told *t = user;
    if (t->is_inside-- != 1) abort();
    qn_buf_puts(&t->text, "[end]");
    return 0;
}

static const qn_multipart_reader reader = {begin, data, end};

/* seed 0: all at once. Returns whether the body is whole, 2 if it was refused. */
static int read_all(const char *type, const char *bytes, size_t n, uint64_t seed, told *t)
{
    qn_multipart *m = qn_alloc(sizeof *m);
    int result = 2;
    if (!m) abort();
    if (qn_multipart_start(m, type, &reader, t) == 0) {
        size_t used = 0;
        int refused = 0;
        for (uint64_t i = 0; used < n && !refused; i++) {
            size_t piece = seed ? 1 + qn_random_bits(seed, i) % PIECE_MAX : n;
            if (piece > n - used) piece = n - used;
            /* A block as long as the piece: a checker sees what is read behind it. */
            char *copy = qn_alloc(piece);
            if (!copy) abort();
            memcpy(copy, bytes + used, piece);
            refused = qn_multipart_feed(m, copy, piece);
            qn_free(copy);
            used += piece;
        }
        result = refused ? 2 : qn_multipart_is_whole(m);
    }
    if ((result == 2) != (m->why != NULL)) abort();
    if (result == 1 && t->is_inside) abort();
    qn_free(m);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const char *text = (const char *)bytes, *line = n ? memchr(bytes, '\n', n) : NULL;
    told whole = {0}, pieces = {0};
    if (!line) return 0;
    char *type = qn_strndup(text, (size_t)(line - text));
    if (!type) return 0;
    const size_t left = n - (size_t)(line + 1 - text);
    const int a = read_all(type, line + 1, left, 0, &whole), b = read_all(type, line + 1, left, n, &pieces);
    if (a != b || whole.text.length != pieces.text.length ||
        (whole.text.length && memcmp(whole.text.data, pieces.text.data, whole.text.length) != 0))
        abort();
    qn_buf_free(&whole.text);
    qn_buf_free(&pieces.text);
    qn_free(type);
    return 0;
}
