/* For sets that multiply no pairs of 16-bit numbers: attention computes in f32 whatever the pages hold. */
#ifndef QN_KERNELS_ATTENTION_DOTS_NONE_H
#define QN_KERNELS_ATTENTION_DOTS_NONE_H

static attend_form dots_form(qn_dtype dtype)
{
    return FORM_F32;
}

static void dots_pack_query(attend_state *s, int64_t i, const float *q, float factor)
{
}

static void dots_open_group(attend_state *s, int64_t group, int64_t begin, int64_t end)
{
}

static void dots_score(attend_state *s, const attend_tile *t)
{
}

static void dots_weigh(attend_state *s, const attend_tile *t, const char *next)
{
}

#endif
