/* COPY: a view of any type and any strides made contiguous. Elements that lie side by side go in units of up to
 * 16 bytes; a transposed view goes through tiles in shared memory, so that both sides are read and written
 * along their rows. */
#include "device/cuda/elements/places.cuh"
#include "device/cuda/elements/wide.cuh"

enum { BLOCK = 256, UNIT_MAX = 16, TILE = 32 };

typedef struct alignas(16) {
    uint64_t part[2];
} unit16;

/* ---- rows ---------------------------------------------------------------------------------------------- */

template <class T> static __global__ void copy_units(T *out, const T *in, qn_places<1> p)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < p.total) out[i] = in[qn_place_in(p, 0, qn_indices_of(p, i))];
}

/* Joins pairs of neighbours while that is possible; returns the bytes of what is then an element. */
static int widen(qn_places<1> *p, const void *in, const void *out, int bytes)
{
    while (bytes < UNIT_MAX && p->stride[0][0] == 1 && (uintptr_t)out % (uintptr_t)(2 * bytes) == 0 &&
           qn_places_in_groups(*p, 0, in, 2, bytes)) {
        p->total /= 2;
        p->dim[0] /= 2;
        for (int d = 1; d < p->n; d++) p->stride[0][d] /= 2;
        bytes *= 2;
    }
    return bytes;
}

template <class T>
static qn_status launch_units(qn_cuda_context *c, const qn_cuda_step *s, const qn_places<1> &p)
{
    return qn_cuda_begin(c, copy_units<T>, qn_blocks(p.total, BLOCK), BLOCK, 0, s->out.data, s->in[0].data,
                         p);
}

/* ---- transposed views ---------------------------------------------------------------------------------- */

/* The output's innermost dimension is `across`; along another one the input is contiguous. A block copies a tile
 * of these two; the other dimensions say which. */
typedef struct {
    int64_t n_across, n_along, across_tiles, along_tiles;
    int64_t across_stride, along_stride; /* across in the input, along in the output */
    int n_others;
    int64_t dim[QN_MAX_DIMS], from[QN_MAX_DIMS], to[QN_MAX_DIMS]; /* strides in the input, in the output */
} tiling;

template <class T> static __global__ void copy_tiles(T *out, const T *in, tiling t)
{
    __shared__ T tile[TILE * (TILE + 1)];
    int64_t rest = blockIdx.x;
    const int64_t first = rest % t.across_tiles * TILE;
    rest /= t.across_tiles;
    const int64_t second = rest % t.along_tiles * TILE;
    rest /= t.along_tiles;
    for (int d = 0; d < t.n_others; d++) {
        in += rest % t.dim[d] * t.from[d];
        out += rest % t.dim[d] * t.to[d];
        rest /= t.dim[d];
    }
    const int column = threadIdx.x % TILE, row = threadIdx.x / TILE;
    for (int r = row; r < TILE; r += BLOCK / TILE)
        if (first + r < t.n_across && second + column < t.n_along)
            tile[r * (TILE + 1) + column] = in[(first + r) * t.across_stride + second + column];
    __syncthreads();
    for (int r = row; r < TILE; r += BLOCK / TILE)
        if (first + column < t.n_across && second + r < t.n_along)
            out[(second + r) * t.along_stride + first + column] = tile[column * (TILE + 1) + r];
}

/* 1: tiles are worth it. */
static int plan_tiles(const qn_places<1> &p, tiling *t)
{
    enum { LEAST = 8 };
    const int64_t *stride = p.stride[0];
    int along = 0;
    for (int d = 1; d < p.n && !along; d++)
        if (stride[d] == 1 && p.dim[d] >= LEAST) along = d;
    if (!along || p.dim[0] < LEAST || stride[0] == 0 || stride[0] == 1) return 0;
    *t = {p.dim[0], p.dim[along], qn_blocks(p.dim[0], TILE), qn_blocks(p.dim[along], TILE), stride[0]};
    int64_t to = 1;
    for (int d = 0; d < p.n; to *= p.dim[d++]) {
        if (d == along) t->along_stride = to;
        if (!d || d == along) continue;
        t->dim[t->n_others] = p.dim[d];
        t->from[t->n_others] = stride[d];
        t->to[t->n_others++] = to;
    }
    return 1;
}

template <class T>
static qn_status launch_tiles(qn_cuda_context *c, const qn_cuda_step *s, const qn_places<1> &p,
                              const tiling &t)
{
    const int64_t others = p.total / (t.n_across * t.n_along);
    return qn_cuda_begin(c, copy_tiles<T>, t.across_tiles * t.along_tiles * others, BLOCK, 0, s->out.data,
                         s->in[0].data, t);
}

static qn_status launch(qn_cuda_context *c, const qn_cuda_step *s)
{
    qn_places<1> p = qn_places_of<1>(s, 1);
    tiling t;
    if (!p.total) return QN_OK;
    const int bytes = qn_plain_bytes(s->out.dtype);
    if (plan_tiles(p, &t)) switch (bytes) {
        case 1:
            return launch_tiles<uint8_t>(c, s, p, t);
        case 2:
            return launch_tiles<uint16_t>(c, s, p, t);
        case 4:
            return launch_tiles<uint32_t>(c, s, p, t);
        default:
            return launch_tiles<uint64_t>(c, s, p, t);
        }
    switch (widen(&p, s->in[0].data, s->out.data, bytes)) {
    case 1:
        return launch_units<uint8_t>(c, s, p);
    case 2:
        return launch_units<uint16_t>(c, s, p);
    case 4:
        return launch_units<uint32_t>(c, s, p);
    case 8:
        return launch_units<uint64_t>(c, s, p);
    default:
        return launch_units<unit16>(c, s, p);
    }
}

extern const qn_cuda_prim qn_cuda_prim_COPY;
const qn_cuda_prim qn_cuda_prim_COPY = {launch, NULL};
