/* Memory of hash tables, zeroed. Large ones are maps, which get huge pages where the system has them: a table that is
 * read all over misses few of those. */
#ifndef QN_TEXT_TOKENIZER_TABLE_H
#define QN_TEXT_TOKENIZER_TABLE_H

#include "base/mem.h"

enum { QN_TABLE_MAPPED_FROM = 4 << 20 };

/* count is not 0; count * size_bytes does not overflow. NULL: out of memory. */
static inline void *qn_table_new(size_t count, size_t size_bytes)
{
    return count * size_bytes >= QN_TABLE_MAPPED_FROM ? qn_alloc_mapped(count * size_bytes)
                                                      : qn_calloc(count, size_bytes);
}

/* As it was made. table may be NULL. */
static inline void qn_table_free(void *table, size_t count, size_t size_bytes)
{
    if (count * size_bytes >= QN_TABLE_MAPPED_FROM)
        qn_free_mapped(table, count * size_bytes);
    else
        qn_free(table);
}

#endif
