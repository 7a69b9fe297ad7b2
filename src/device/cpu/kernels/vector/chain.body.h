/* A run of element-wise operations each of which takes what the one before gave: the value stays in
 * registers, eight vectors (four of AVX2's pairs) at a time, so that one turn of the loop is as many loads
 * and stores as the run has inputs and outputs. Every element goes through the functions of vector.body.h:
 * the bits are those of the operations one by one. */
#ifndef QN_DEVICE_CPU_KERNELS_VECTOR_CHAIN_BODY_H
#define QN_DEVICE_CPU_KERNELS_VECTOR_CHAIN_BODY_H

/* x is t in all vectors of a block: loops over it are unrolled whole, or it would live in memory. */
#define EACH_OF_BLOCK _Pragma("GCC unroll 8") for (int j = 0; j < V_CHAIN; j++)

static inline void link_block(vf t[V_CHAIN], const qn_ew_link *l, int64_t at)
{
    vf o[V_CHAIN];
    const float *from = l->other + (l->step ? at : 0);
    if (!l->other) {
        EACH_OF_BLOCK o[j] = t[j];
    } else if (l->step) {
        EACH_OF_BLOCK o[j] = v_load(from + 16 * j);
    } else {
        const vf x = v_set1(*from);
        EACH_OF_BLOCK o[j] = x;
    }
    switch (l->op) {
#define LINK(name)                                      \
    case QN_EW_##name:                                  \
        if (l->swapped)                                 \
            EACH_OF_BLOCK t[j] = op_##name(o[j], t[j]); \
        else                                            \
            EACH_OF_BLOCK t[j] = op_##name(t[j], o[j]); \
        break;
        QN_EW_LINK_LIST(LINK)
#undef LINK
    default:
        break;
    }
}

/* The first m lanes. */
static inline vf link_one(vf t, const qn_ew_link *l, int64_t at, int m)
{
    vf o = !l->other ? t : l->step ? get(l->other + at, m) : v_set1(*l->other);
    switch (l->op) {
#define LINK(name)     \
    case QN_EW_##name: \
        return l->swapped ? op_##name(o, t) : op_##name(t, o);
        QN_EW_LINK_LIST(LINK)
#undef LINK
    default:
        return t;
    }
}

static void ew_chain(float *out, const float *a, int64_t a_step, const qn_ew_link *links, int n_links,
                     int64_t n, int streams)
{
    int64_t i = 0;
    for (; i + 16 * V_CHAIN <= n; i += 16 * V_CHAIN) {
        vf t[V_CHAIN];
        if (a_step) {
            EACH_OF_BLOCK t[j] = v_load(a + i + 16 * j);
        } else {
            const vf x = v_set1(*a);
            EACH_OF_BLOCK t[j] = x;
        }
        for (int k = 0; k < n_links; k++) link_block(t, &links[k], i);
        if (streams) {
            EACH_OF_BLOCK v_stream(out + i + 16 * j, t[j]);
        } else {
            EACH_OF_BLOCK v_store(out + i + 16 * j, t[j]);
        }
    }
    for (; i < n; i += 16) {
        const int m = tail(n, i);
        vf t = a_step ? get(a + i, m) : v_set1(*a);
        for (int k = 0; k < n_links; k++) t = link_one(t, &links[k], i, m);
        put(out + i, t, m);
    }
    if (streams > 1) v_stream_end();
}

#undef EACH_OF_BLOCK

#endif
