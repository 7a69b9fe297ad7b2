/* Copies into shared memory that a kernel waits for. They are made as late as a card may make them: when a thread
 * waits. Until then their place holds 0xff, so that a kernel which reads too early, or which begins a copy into what
 * others still read, gets NaN. */
#include "device/cuda/product/mma.cuh"

enum { PIECE = 16, MAX_THREADS = 1024 };

namespace
{
struct copy {
    void *to;
    const void *from;
    unsigned bytes, n_zeros; /* zeros follow */
    unsigned group;          /* of the thread; a bulk copy: not used */
    qn_mbarrier *barrier;    /* of a bulk copy */
};

/* Begun and not made yet, oldest first. */
struct copies {
    copy *list;
    unsigned n, n_max, group;
};
} // namespace

static copies of_thread[MAX_THREADS], bulk;

/* Called when a block begins. */
void qn_emulated_forget_copies(unsigned n_threads)
{
    for (unsigned i = 0; i < n_threads; i++) of_thread[i].n = of_thread[i].group = 0;
    bulk.n = 0;
}

static void add(copies *c, copy one)
{
    if (c->n == c->n_max) {
        const unsigned n_max = c->n_max ? 2 * c->n_max : 16;
        copy *list = (copy *)realloc(c->list, n_max * sizeof *list);
        if (!list) qn_emulated_give_up("no memory for a copy");
        c->list = list;
        c->n_max = n_max;
    }
    memset(one.to, 0xff, one.bytes + one.n_zeros);
    c->list[c->n++] = one;
}

static void make(const copy *one)
{
    memcpy(one->to, one->from, one->bytes);
    memset((char *)one->to + one->bytes, 0, one->n_zeros);
}

static void check_place(const void *to, const void *from, unsigned bytes)
{
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16)
        qn_emulated_give_up("a copy into shared memory is not aligned to 16");
}

void qn_emulated_copy(void *to, const void *from, int bytes_valid)
{
    const unsigned n = (unsigned)min(max(bytes_valid, 0), (int)PIECE);
    copies *c = &of_thread[threadIdx.x];
    check_place(to, n ? from : NULL, PIECE);
    add(c, copy{to, from, n, PIECE - n, c->group, NULL});
}

void qn_emulated_copy_commit(void)
{
    of_thread[threadIdx.x].group++;
}

void qn_emulated_copy_wait(int n)
{
    copies *c = &of_thread[threadIdx.x];
    unsigned n_made = 0;
    while (n_made < c->n && c->list[n_made].group + (unsigned)n < c->group) make(&c->list[n_made++]);
    if (!n_made) return;
    c->n -= n_made;
    memmove(c->list, c->list + n_made, c->n * sizeof *c->list);
}

/* ---- barriers that count bytes ------------------------------------------------------------------------- */

static void end_phase(qn_mbarrier *m)
{
    if (m->n_pending || m->bytes_pending) return;
    m->n_pending = m->n_expected;
    m->phase ^= 1;
    qn_emulated_wake();
}

void qn_emulated_mbarrier_init(qn_mbarrier *m, int n_arrivals)
{
    m->n_expected = m->n_pending = (unsigned)n_arrivals & 0x7fff;
    m->phase = 0;
    m->bytes_pending = 0;
}

void qn_emulated_mbarrier_arrive(qn_mbarrier *m, unsigned bytes)
{
    if (!m->n_pending) qn_emulated_give_up("an mbarrier has more arrivals than it expects");
    m->bytes_pending += (int)bytes;
    m->n_pending--;
    end_phase(m);
}

void qn_emulated_bulk(void *to, const void *from, unsigned bytes, qn_mbarrier *m)
{
    check_place(to, from, bytes);
    add(&bulk, copy{to, from, bytes, 0, 0, m});
    qn_emulated_wake();
}

/* Makes the copies that m counts. */
static void make_bulk(qn_mbarrier *m)
{
    unsigned n_left = 0;
    for (unsigned i = 0; i < bulk.n; i++) {
        const copy one = bulk.list[i];
        if (one.barrier != m) {
            bulk.list[n_left++] = one;
            continue;
        }
        make(&one);
        m->bytes_pending -= (int)one.bytes;
    }
    if (n_left == bulk.n) return;
    bulk.n = n_left;
    end_phase(m);
}

static int is_over(const void *arg, unsigned parity)
{
    qn_mbarrier *m = (qn_mbarrier *)arg;
    if (m->phase == (parity & 1)) make_bulk(m);
    return m->phase != (parity & 1);
}

void qn_emulated_mbarrier_wait(qn_mbarrier *m, unsigned parity)
{
    qn_emulated_until("an mbarrier", is_over, m, parity);
}
