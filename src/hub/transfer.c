#include "hub/transfer.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/mem.h"
#include "hub/net/way.h"
#include "hub/store/partial.h"

enum { POLL_MS = 100, REFUSAL_BYTES = 1024, PROGRESS_BYTES = 64 << 10 };
/* Between two looks at the network: some 10 ms of hashing. */
#define HASH_BUDGET ((int64_t)4 << 20)

typedef struct {
    const qn_hub_item *item;
    qn_partial *partial;  /* NULL before its turn, and when it is over */
    unsigned char *taken; /* [n_pieces]: a slot has the piece */
    int64_t i_next;       /* no piece before is free */
    int n_slots;          /* that have a piece of it */
    int want_whole;       /* the server gave no range: begin again as one piece */
    int is_over, was_again;
    qn_buf elsewhere; /* where a redirect led; the next pieces ask there at once */
} one_file;

/* A connection, and the piece that it fetches. */
typedef struct {
    struct transfer *t;
    one_file *file; /* NULL: free */
    int64_t piece;
    qn_way way;
    qn_net_call *call;
    int64_t asked_from; /* the first byte asked for */
    int64_t n_came;     /* by this call */
    int is_checked;     /* the answer's headers were looked at */
    const char *wrong;  /* what is wrong with the answer: the piece is asked for again */
    char refusal[REFUSAL_BYTES];
    size_t n_refusal;
} slot;

typedef struct transfer {
    const qn_hub_session *s;
    one_file *files;
    size_t n_files, i_open; /* files before i_open have had their turn */
    slot slots[QN_HUB_CONNECTIONS];
    int64_t total, here, over; /* bytes: of all; not fetched; of files that are over */
} transfer;

static void free_slot(slot *l)
{
    if (l->file) {
        l->file->taken[l->piece] = 0;
        if (l->piece < l->file->i_next) l->file->i_next = l->piece;
        l->file->n_slots--;
    }
    qn_net_end(l->t->s->net, l->call);
    l->call = NULL;
    l->file = NULL;
}

/* What does the first byte of an answer say? "" : it is good; NULL: stop, with the message. */
static const char *check_answer(slot *l, const qn_net_reply *r)
{
    const qn_hub_item *item = l->file->item;
    const qn_partial *p = l->file->partial;
    if (item->etag && r->etag[0] && strcmp(r->etag, item->etag) != 0) {
        qn_fail(QN_E_FORMAT, "%s: the file changed on the server while it was fetched; pull again",
                item->what);
        return NULL;
    }
    if (r->status == 206)
        return r->range_begin != l->asked_from ? "another range came than was asked for"
               : r->range_total >= 0 && r->range_total != item->size
                   ? "the file has another size than was said"
                   : "";
    if (r->length >= 0 && r->length != item->size && qn_partial_pieces(p) == 1)
        return "the file has another size than was said";
    if (qn_partial_pieces(p) > 1) {
        l->file->want_whole = 1;
        return "no range came";
    }
    if (qn_partial_done(p, 0) && qn_partial_drop_piece(l->file->partial, 0) != QN_OK) return NULL;
    return "";
}

static qn_status take(void *user, const qn_net_reply *r, const void *bytes, size_t n)
{
    slot *l = user;
    if (r->status != 200 && r->status != 206) {
        const size_t room = sizeof l->refusal - l->n_refusal, part = n < room ? n : room;
        memcpy(l->refusal + l->n_refusal, bytes, part);
        l->n_refusal += part;
        return QN_OK;
    }
    if (!l->is_checked) {
        const char *wrong = check_answer(l, r);
        if (!wrong) return QN_E_FORMAT;
        l->is_checked = 1;
        l->wrong = *wrong ? wrong : NULL;
    }
    if (l->wrong) return QN_E_CANCELLED; /* the piece's own: the transfer goes on */
    qn_partial *p = l->file->partial;
    const int64_t left =
        qn_partial_end(p, l->piece) - qn_partial_begin(p, l->piece) - qn_partial_done(p, l->piece);
    if ((int64_t)n > left) {
        l->wrong = "more came than was asked for";
        return QN_E_CANCELLED;
    }
    l->n_came += (int64_t)n;
    /* Without ranges every try begins at the first byte: that is no progress. */
    if (l->n_came >= PROGRESS_BYTES && r->status == 206) l->way.n_failures = 0;
    return qn_partial_write(p, l->piece, bytes, n);
}

static qn_status start_call(slot *l)
{
    const one_file *f = l->file;
    const qn_partial *p = f->partial;
    l->asked_from = qn_partial_begin(p, l->piece) + qn_partial_done(p, l->piece);
    l->n_came = 0;
    l->is_checked = 0;
    l->wrong = NULL;
    l->n_refusal = 0;
    return qn_net_start(l->t->s->net,
                        &(qn_net_request){.url = l->way.now.data,
                                          .token = qn_way_token(&l->way),
                                          .begin = l->asked_from,
                                          .end = qn_partial_end(p, l->piece),
                                          .take = take,
                                          .user = l},
                        &l->call);
}

static int is_piece_whole(const qn_partial *p, int64_t i)
{
    return qn_partial_done(p, i) == qn_partial_end(p, i) - qn_partial_begin(p, i);
}

/* A piece of the file that nobody fetches, or -1. */
static int64_t next_piece(one_file *f)
{
    const int64_t n = qn_partial_pieces(f->partial);
    for (; f->i_next < n; f->i_next++)
        if (!f->taken[f->i_next] && !is_piece_whole(f->partial, f->i_next)) return f->i_next;
    return -1;
}

static qn_status open_file(one_file *f)
{
    QN_TRY(qn_partial_open(f->item->place, f->item->size, f->item->sum, &f->partial));
    f->taken = qn_calloc((size_t)qn_partial_pieces(f->partial), 1);
    return f->taken ? QN_OK : QN_E_NOMEM;
}

static qn_status give_piece(slot *l, one_file *f, int64_t piece)
{
    QN_TRY(qn_way_begin(&l->way, f->item->what, f->item->url, f->item->token));
    if (f->elsewhere.length) {
        qn_buf_reset(&l->way.now);
        qn_buf_puts(&l->way.now, f->elsewhere.data);
        QN_TRY(l->way.now.status);
    }
    l->file = f;
    l->piece = piece;
    f->taken[piece] = 1;
    f->n_slots++;
    return start_call(l);
}

/* Gives a free slot the next piece of the first file that has one; files are opened when their turn comes. */
static qn_status fill(transfer *t, slot *l)
{
    for (size_t i = 0; i < t->n_files; i++) {
        one_file *f = &t->files[i];
        if (f->is_over || f->want_whole) continue;
        if (i == t->i_open) {
            QN_TRY(open_file(f));
            t->i_open++;
        }
        const int64_t piece = next_piece(f);
        if (piece >= 0) return give_piece(l, f, piece);
    }
    return QN_OK;
}

static qn_status call_again(slot *l, qn_way_step step, qn_status status)
{
    qn_net_end(l->t->s->net, l->call);
    l->call = NULL;
    if (step == QN_WAY_STOP) return status;
    if (l->file->want_whole) {
        free_slot(l);
        return QN_OK;
    }
    return l->way.not_before_ns > qn_clock_ns() ? QN_OK : start_call(l);
}

static qn_status end_call(slot *l, qn_status kept)
{
    const qn_net_reply *r = qn_net_get_reply(l->call);
    qn_status status = QN_OK;
    qn_way_step step;
    if (kept != QN_OK && !l->wrong) return kept; /* the disk, or the file is another one now */
    if (l->wrong) {
        qn_buf_reset(&l->file->elsewhere);
        step =
            l->file->want_whole ? QN_WAY_AGAIN : qn_way_fail(&l->way, l->wrong, -1, qn_clock_ns(), &status);
        return call_again(l, step, status);
    }
    step = qn_way_judge(&l->way, r, l->refusal, l->n_refusal, qn_clock_ns(), &status);
    if (step == QN_WAY_GO && !is_piece_whole(l->file->partial, l->piece))
        step = qn_way_fail(&l->way, "the answer was cut short", -1, qn_clock_ns(), &status);
    if (step == QN_WAY_GO) {
        one_file *f = l->file;
        if (strcmp(l->way.now.data, l->way.home.data) != 0 && !f->elsewhere.length) {
            qn_buf_puts(&f->elsewhere, l->way.now.data);
            status = f->elsewhere.status;
        }
        free_slot(l);
        return status;
    }
    if (l->way.n_failures) qn_buf_reset(&l->file->elsewhere);
    return call_again(l, step, status);
}

static void close_file(one_file *f)
{
    qn_partial_close(f->partial);
    f->partial = NULL;
    qn_free(f->taken);
    f->taken = NULL;
}

/* The sum of a whole file is not what it should be. */
static qn_status refuse_sum(transfer *t, one_file *f, const char *hex)
{
    if (qn_partial_was_resumed(f->partial) && !f->was_again) {
        f->was_again = 1;
        f->i_next = 0;
        qn_hub_note(t->s, "%s: the part that was there is damaged; fetching the file again", f->item->what);
        QN_TRY(qn_partial_restart(f->partial, 0));
        unsigned char *taken = qn_calloc((size_t)qn_partial_pieces(f->partial), 1);
        if (!taken) return QN_E_NOMEM;
        qn_free(f->taken);
        f->taken = taken;
        return QN_OK;
    }
    qn_partial_remove(f->partial);
    if (f->item->must_be_gguf)
        return qn_fail(QN_E_FORMAT, "%s: what came is not a GGUF file; it was thrown away", f->item->what);
    return qn_fail(QN_E_FORMAT, "%s: what came has the sum %s, expected %s; it was thrown away. Pull again",
                   f->item->what, hex, f->item->hex);
}

static qn_status finish_file(transfer *t, one_file *f)
{
    char hex[QN_SUM_HEX_MAX];
    int is_good = 1;
    qn_partial_sum(f->partial, hex);
    if (f->item->sum != QN_SUM_NONE) is_good = strcmp(hex, f->item->hex) == 0;
    if (f->item->must_be_gguf) is_good = is_good && qn_partial_has_magic(f->partial, "GGUF");
    if (!is_good) return refuse_sum(t, f, hex);
    QN_TRY(qn_partial_finish(f->partial));
    close_file(f);
    t->over += f->item->size;
    f->is_over = 1;
    return QN_OK;
}

/* The server gives no ranges: everything of the file from the beginning, once no slot has a piece of it. */
static qn_status make_whole(one_file *f)
{
    if (f->n_slots) return QN_OK;
    QN_TRY(qn_partial_restart(f->partial, 1));
    f->want_whole = 0;
    f->i_next = 0;
    return QN_OK;
}

/* Hashes what came; files that are whole and have their sum take their place. *is_busy: there was much to hash. */
static qn_status look_after_files(transfer *t, int *is_busy)
{
    for (size_t i = 0; i < t->i_open; i++) {
        one_file *f = &t->files[i];
        int at_end = 0;
        if (f->is_over) continue;
        if (f->want_whole) {
            QN_TRY(make_whole(f));
            continue;
        }
        if (f->item->must_be_gguf && qn_partial_pieces(f->partial) && qn_partial_done(f->partial, 0) >= 4 &&
            !qn_partial_has_magic(f->partial, "GGUF"))
            return refuse_sum(t, f, "");
        const int64_t before = qn_partial_hashed(f->partial);
        QN_TRY(qn_partial_hash(f->partial, HASH_BUDGET, &at_end));
        *is_busy |= qn_partial_hashed(f->partial) - before >= HASH_BUDGET;
        if (at_end && !f->n_slots) QN_TRY(finish_file(t, f));
    }
    return QN_OK;
}

static void show(const transfer *t)
{
    qn_hub_progress p = {.total_bytes = t->total, .here_bytes = t->here, .done_bytes = t->here + t->over};
    int n_open = 0, n_waiting = 0;
    int64_t wait_ns = 0;
    const int64_t now_ns = qn_clock_ns();
    for (size_t i = 0; i < t->i_open; i++) {
        if (t->files[i].is_over) continue;
        p.done_bytes += qn_partial_total(t->files[i].partial);
    }
    for (int i = 0; i < QN_HUB_CONNECTIONS; i++) {
        const slot *l = &t->slots[i];
        n_open += l->call != NULL;
        if (l->file && !l->call) {
            n_waiting++;
            if (l->way.not_before_ns - now_ns > wait_ns) wait_ns = l->way.not_before_ns - now_ns;
        }
    }
    p.is_checking = !n_open && !n_waiting;
    if (!n_open && n_waiting) p.wait_s = (int)((wait_ns + 999999999) / 1000000000);
    if (t->s->progress) t->s->progress(t->s->user, &p);
}

static qn_status drive(transfer *t)
{
    for (;;) {
        int is_busy = 0, n_over = 0;
        qn_net_call *done;
        qn_status kept;
        QN_TRY(qn_hub_check_cancel(t->s));
        for (int i = 0; i < QN_HUB_CONNECTIONS; i++) {
            slot *l = &t->slots[i];
            if (!l->file)
                QN_TRY(fill(t, l));
            else if (!l->call && l->way.not_before_ns <= qn_clock_ns())
                QN_TRY(start_call(l));
        }
        QN_TRY(look_after_files(t, &is_busy));
        for (size_t i = 0; i < t->n_files; i++) n_over += t->files[i].is_over;
        show(t);
        if (n_over == (int)t->n_files) return QN_OK;
        QN_TRY(qn_net_wait(t->s->net, is_busy ? 0 : POLL_MS, &done, &kept));
        while (done) {
            QN_TRY(end_call(qn_net_get_user(done), kept));
            QN_TRY(qn_net_wait(t->s->net, 0, &done, &kept));
        }
    }
}

qn_status qn_hub_transfer(const qn_hub_session *s, const qn_hub_item *items, size_t n, int64_t here_bytes)
{
    transfer t = {.s = s, .n_files = n, .here = here_bytes, .total = here_bytes};
    if (!n) return QN_OK;
    t.files = qn_calloc(n, sizeof *t.files);
    if (!t.files) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        t.files[i].item = &items[i];
        t.total += items[i].size;
    }
    for (int i = 0; i < QN_HUB_CONNECTIONS; i++) t.slots[i].t = &t;
    qn_status status = drive(&t);
    for (int i = 0; i < QN_HUB_CONNECTIONS; i++) {
        if (t.slots[i].file) free_slot(&t.slots[i]);
        qn_way_end(&t.slots[i].way);
    }
    for (size_t i = 0; i < n; i++) {
        close_file(&t.files[i]);
        qn_buf_free(&t.files[i].elsewhere);
    }
    qn_free(t.files);
    return status;
}
