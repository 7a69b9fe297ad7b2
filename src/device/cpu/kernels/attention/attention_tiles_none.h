/* For sets without tiles: attention_dots_<set>.h has loops for all pages. */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_TILES_NONE_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_TILES_NONE_H

static int by_tiles(const attend_state *s)
{
    return 0;
}

static void tiles_take(attend_state *s)
{
}

static void tiles_give_back(void)
{
}

static void tiles_pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor)
{
}

static void tiles_score(attend_state *s, const attend_tile *t, int64_t p)
{
}

static void tiles_weigh(attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages)
{
}

#endif
