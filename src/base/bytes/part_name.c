#include "base/bytes/part_name.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NUMBER = 1, OF = 6, COUNT = 10, ENDING = 15, TAIL = sizeof "-00001-of-00003.gguf" - 1 };

int qn_part_name_read(const char *path, qn_part_name *out)
{
    static const char digits[] = "0123456789";
    const size_t n = strlen(path);
    if (n <= TAIL) return 0;
    const char *tail = path + n - TAIL;
    if (tail[-1] == '/' || *tail != '-') return 0;
    if (strspn(tail + NUMBER, digits) != 5 || memcmp(tail + OF, "-of-", 4) != 0 ||
        strspn(tail + COUNT, digits) != 5 || strcasecmp(tail + ENDING, ".gguf") != 0)
        return 0;
    const long number = strtol(tail + NUMBER, NULL, 10), of = strtol(tail + COUNT, NULL, 10);
    if (number < 1 || of < number) return 0;
    *out = (qn_part_name){n - TAIL, number - 1, of};
    return 1;
}

int qn_part_name_is_same(const char *a, const char *b)
{
    qn_part_name x, y;
    if (!qn_part_name_read(a, &x) || !qn_part_name_read(b, &y) || x.n_prefix != y.n_prefix) return 0;
    return memcmp(a, b, x.n_prefix) == 0 && strcmp(a + x.n_prefix + OF, b + y.n_prefix + OF) == 0;
}

void qn_part_name_put(qn_buf *b, const char *path, const qn_part_name *name, int64_t i)
{
    qn_buf_append(b, path, name->n_prefix);
    qn_buf_printf(b, "-%05lld%s", (long long)i + 1, path + name->n_prefix + OF);
}
