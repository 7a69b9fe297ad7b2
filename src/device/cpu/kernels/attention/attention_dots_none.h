/* For sets that multiply no pairs of 16-bit numbers: attention computes in f32 whatever the pages hold. */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_NONE_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_NONE_H

static attend_form dots_form(qn_dtype dtype)
{
    return FORM_F32;
}

static void dots_begin(attend_state *s)
{
}

static void dots_end(const attend_state *s)
{
}

static void dots_pack_queries(attend_state *s, const attend_tile *t, const float *const *q, float factor)
{
}

static void dots_score(attend_state *s, const attend_tile *t, int64_t p, tile_ahead next)
{
}

static void dots_open_values(attend_state *s, const attend_tile *t)
{
}

static void dots_weigh(attend_state *s, const attend_tile *t, int64_t p, int64_t n_pages, tile_ahead next)
{
}

static void dots_close_values(attend_state *s, const attend_tile *t)
{
}

#endif
