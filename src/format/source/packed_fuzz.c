/* Any bytes: refused, or every tensor is given only inside them, aligned and of its size. */
#include "format/source/packed.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void check(const uint8_t *bytes, size_t n, const void *data, size_t size_bytes, size_t align)
{
    const uint8_t *p = data;
    if (p < bytes || p > bytes + n || size_bytes > (size_t)(bytes + n - p) || (uintptr_t)p % align) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t sizes[] = {0, 1, 64, 100, 128, 4096, SIZE_MAX / 2, SIZE_MAX};
    static const char *const names[] = {"a", "b", "norm", "__metadata__", ""};
    qn_packed *p = NULL;
    uint8_t *bytes = qn_alloc(size); /* aligned, as a mapping is */
    if (!bytes) return 0;
    if (size) memcpy(bytes, data, size);
    if (qn_packed_open_bytes("fuzz.qpack", bytes, size, &p) == QN_OK) {
        if (!qn_packed_get_key(p)->device || !qn_packed_source(p) || qn_packed_bytes(p) > size) abort();
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
                const void *matrix;
                const float *vector;
                if (qn_packed_matrix(p, names[i], sizes[j], &matrix) == QN_OK)
                    check(bytes, size, matrix, sizes[j], QN_PACKED_ALIGN);
                if (qn_packed_vector(p, names[i], (int64_t)(sizes[j] / 8), &vector) == QN_OK)
                    check(bytes, size, vector, sizes[j] / 8 * sizeof *vector, sizeof *vector);
            }
        qn_packed_key other = {"cpu", 1, 7};
        if (qn_packed_check(p, qn_packed_get_key(p)) != QN_OK) abort();
        if (qn_packed_check(p, &other) == QN_OK && qn_packed_get_key(p)->fingerprint != 7) abort();
        qn_packed_close(p);
    }
    qn_free(bytes);
    return 0;
}
