#include "model/forward/blocks/blocks.h"

qn_array *qn_block_rope_table(qn_scope *s, int n, const qn_rope_section *sections, float factor)
{
    qn_array *parts[2 * QN_ROPE_SECTIONS_MAX];
    for (int i = 0; i < n; i++) {
        const qn_rope_section *own = &sections[i];
        qn_array *table = qn_rope_table(s, own->positions, own->frequencies, factor);
        parts[i] = qn_slice_last(s, table, 0, own->n_pairs);
        parts[n + i] = qn_slice_last(s, table, own->n_pairs, own->n_pairs);
    }
    return qn_concat(s, 2 * n, parts);
}
