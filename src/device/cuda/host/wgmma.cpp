/* Products of warpgroups on the host (wgmma.cuh). They are made when a thread waits for them, so that a kernel which
 * changes an operand too early, or looks at a sum before it waits, gets other bits. */
#include "device/cuda/product/wgmma.cuh"

enum { MAX_THREADS = 1024, MAX_BEGUN = 64, K = 16 };

namespace
{
struct product {
    float *acc;
    const uint32_t *a;
    const char *b;
    int adds;
    unsigned group;
};

/* Begun and not made yet, oldest first. */
struct begun {
    product list[MAX_BEGUN];
    unsigned n, group;
};
} // namespace

static begun of_thread[MAX_THREADS];

/* Called when a block begins. */
void qn_emulated_forget_products(unsigned n_threads)
{
    for (unsigned i = 0; i < n_threads; i++) of_thread[i].n = of_thread[i].group = 0;
}

void qn_emulated_wgmma(float *acc, const uint32_t a[4], const void *b, int adds)
{
    begun *t = &of_thread[threadIdx.x];
    if (t->n == MAX_BEGUN) qn_emulated_give_up("too many products of a warpgroup are begun");
    t->list[t->n++] = product{acc, a, (const char *)b, adds, t->group};
}

void qn_emulated_wgmma_commit(void)
{
    of_thread[threadIdx.x].group++;
}

/* Columns k and k + 1 of row `column` of a tile whose step begins at b. */
static uint32_t pair_of(const char *b, int column, int k)
{
    const char *tile = (const char *)((uintptr_t)b & ~(uintptr_t)1023);
    const int at = (int)(b - tile) + 2 * k, piece = at / 16 ^ column % 8;
    uint32_t pair;
    memcpy(&pair, tile + column * 128 + piece * 16 + at % 16, sizeof pair);
    return pair;
}

static void make(void *const *args, int n_lanes)
{
    const product *first = (const product *)args[0];
    for (int lane = 0; lane < n_lanes; lane++) {
        const product *p = (const product *)args[lane];
        if (p->b != first->b || p->adds != first->adds || p->group != first->group)
            qn_emulated_give_up("lanes of a warp begin different products");
        if (!p->adds) memset(p->acc, 0, QN_WGMMA_SUMS * sizeof *p->acc);
    }
    for (int column = 0; column < 2 * QN_WGMMA_SUMS; column += 8) {
        uint32_t b[32][2];
        qn_emulated_fragments f[32];
        void *lanes[32];
        for (int lane = 0; lane < n_lanes; lane++) {
            const product *p = (const product *)args[lane];
            for (int i = 0; i < 2; i++) b[lane][i] = pair_of(p->b, column + lane / 4, lane % 4 * 2 + 8 * i);
            f[lane] = qn_emulated_fragments{p->acc + column / 2, p->a, b[lane]};
            lanes[lane] = &f[lane];
        }
        qn_emulated_multiply(lanes, n_lanes);
    }
}

void qn_emulated_wgmma_wait(int n)
{
    begun *t = &of_thread[threadIdx.x];
    unsigned n_made = 0;
    while (n_made < t->n && t->list[n_made].group + (unsigned)n < t->group) {
        product mine = t->list[n_made++];
        qn_emulated_warp("wgmma", &mine, make);
    }
    t->n -= n_made;
    memmove(t->list, t->list + n_made, t->n * sizeof *t->list);
}
