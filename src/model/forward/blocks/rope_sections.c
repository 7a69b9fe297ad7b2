/* Cosines and sines by which rows are rotated. */
#include "array/build.h"
#include "base/mem.h"
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

/* 1 for cosine and sine of the pairs that turn by position k, where sections take turns; else 0. */
static qn_array *turns_of(qn_scope *s, const qn_rope_config *r, int k)
{
    const int64_t half = r->rotary_dim / 2, both = 2 * half;
    float *mask = qn_alloc_array((size_t)both, sizeof *mask);
    if (!mask) return qn_scope_fail(s, QN_E_NOMEM);
    for (int64_t i = 0; i < half; i++) {
        int own = (int)(i % QN_ROPE_SECTIONS);
        if (i >= QN_ROPE_SECTIONS * r->mrope_section[own]) own = 0;
        mask[i] = mask[half + i] = own == k ? 1.0f : 0.0f;
    }
    qn_array *a = qn_from_data(s, QN_DTYPE_F32, 1, &both, mask);
    qn_free(mask);
    return a;
}

/* All pairs by each position, and each pair's own: times 1 and plus 0 is exact. */
static qn_array *turned_table(qn_scope *s, const qn_forward *f, const qn_rope_config *r,
                              qn_array *frequencies)
{
    qn_array *sum = NULL;
    for (int k = 0; k < QN_ROPE_SECTIONS; k++) {
        qn_array *table = qn_rope_table(s, f->rope_positions[k], frequencies, r->attention_factor);
        table = qn_mul(s, table, turns_of(s, r, k));
        sum = sum ? qn_add(s, sum, table) : table;
    }
    return sum;
}

/* The table of a set whose pairs may turn by three positions. */
static qn_array *table_of(qn_scope *s, const qn_forward *f, const qn_rope_config *r, qn_array *frequencies)
{
    qn_rope_section sections[QN_ROPE_SECTIONS];
    if (!r->mrope_section[0]) return qn_rope_table(s, f->positions, frequencies, r->attention_factor);
    if (r->mrope_interleaved) return turned_table(s, f, r, frequencies);
    int64_t first = 0;
    for (int k = 0; k < QN_ROPE_SECTIONS; k++) {
        sections[k] =
            (qn_rope_section){f->rope_positions[k], qn_slice_last(s, frequencies, first, r->mrope_section[k]),
                              r->mrope_section[k]};
        first += r->mrope_section[k];
    }
    return qn_block_rope_table(s, QN_ROPE_SECTIONS, sections, r->attention_factor);
}

/* Where sequences have one of two sets of frequencies by their length both are computed, and each row takes its own:
 * times 1 and plus 0 is exact. */
qn_array *qn_block_rope(qn_scope *s, const qn_forward *f, int i)
{
    const qn_rope_config *r = &f->config->rope[i];
    qn_array *longer = qn_parameters_rope(f->parameters, i, 1);
    qn_array *table = table_of(s, f, r, qn_parameters_rope(f->parameters, i, 0));
    if (!longer || !f->is_long) return table;
    longer = table_of(s, f, r, longer);
    qn_array *is_short = qn_sub(s, qn_scalar(s, 1), f->is_long);
    return qn_add(s, qn_mul(s, table, is_short), qn_mul(s, longer, f->is_long));
}
