/* Attention over pages. Rows are written where their pages lie in the pool. A sequence whose pages lie behind each
 * other there is read as a view of the pool, without a copy; others are gathered, row by row. What follows from
 * the block tables is worked out once a run, for all layers of a state. */
#include <algorithm>
#include <limits>

#include "device/mlx/attention.hpp"
#include "prim/blocks.h"

namespace qn
{

static mx::ShapeElem dim(int64_t n)
{
    return static_cast<mx::ShapeElem>(n);
}

/* Where the rows of all sequences lie in pages. */
struct tables {
    std::vector<int32_t> row_begin, positions, blocks;
    int64_t width, page_tokens; /* of a row of the table */

    const int32_t *table(int64_t sequence) const
    {
        return blocks.data() + sequence * width;
    }
    /* Positions before the first page of a table. */
    int64_t before(int64_t sequence) const
    {
        return qn_blocks_before(table(sequence)[0]) * page_tokens;
    }
    bool has_mark(int64_t sequence, int32_t mark) const
    {
        return table(sequence)[0] & mark;
    }
    /* Of a row, counted from the first page of its table. */
    int64_t position(int64_t sequence, int64_t row) const
    {
        return positions[row] - before(sequence);
    }
};

/* Sequences that are computed together. */
struct piece {
    batch b;
    sight see;
    int64_t before;                 /* positions of the first sequence before the keys that are at hand */
    int64_t first;                  /* of one that lies in order: its first row in the pool, else -1 */
    std::optional<mx::array> index; /* of others: rows of the pool [n, n_keys] */
};

/* What layers have in common that read keys alike. heads 0: those of an index, whose keys are read one by one. */
struct kind_of_layer {
    int64_t window = 0, chunk = 0, heads = 0;
    bool whole = false, chooses = false;

    bool operator==(const kind_of_layer &o) const
    {
        return window == o.window && chunk == o.chunk && heads == o.heads && whole == o.whole &&
               chooses == o.chooses;
    }
};

/* Of one run of a program and one kind of layer. */
struct plan_of_run {
    uint64_t run = 0;
    kind_of_layer kind;
    tables at;
    std::vector<int32_t> written;         /* rows of the pool, of the run's rows */
    bool is_in_order = false;             /* these rise by one */
    std::optional<mx::array> write_index; /* the same as an array */
    std::vector<piece> pieces;
};

/* ---- where rows lie ----------------------------------------------------------------------------------- */

/* The pages that rows of a sequence see: [first, end) of its table. */
struct reach_of_rows {
    int64_t position, end, first_page, end_page;
};

static reach_of_rows reach_of(const plan_of_run &p, int64_t sequence)
{
    const tables &at = p.at;
    const int64_t row = at.row_begin[sequence], n = at.row_begin[sequence + 1] - row,
                  position = at.position(sequence, row), end = position + n;
    const int64_t first =
        p.kind.window ? std::max<int64_t>(0, position - p.kind.window + 1) / at.page_tokens : 0;
    return {position, end, first, (end + at.page_tokens - 1) / at.page_tokens};
}

/* Places for the pages that rows are written into, those of a sequence behind each other where that is free. */
static void reach_pages(const call &c, plan_of_run &p)
{
    qn_mlx_state &s = *c.step.state;
    const tables &at = p.at;
    for (size_t i = 0; i + 1 < at.row_begin.size(); i++) {
        const int32_t *table = at.table(static_cast<int64_t>(i)) + 1;
        const int64_t begin = at.row_begin[i], end = at.row_begin[i + 1];
        if (begin == end) continue;
        const int64_t first = at.position(static_cast<int64_t>(i), begin);
        std::vector<int32_t> pages;
        if (first >= at.page_tokens)
            pages.push_back(table[first / at.page_tokens - 1]); /* they lie behind it */
        const bool has_before = !pages.empty();
        const int64_t n_held = has_before + (first % at.page_tokens != 0);
        for (int64_t r = begin; r < end; r++) {
            const int64_t page = at.position(static_cast<int64_t>(i), r) / at.page_tokens;
            if (r == begin || pages.back() != table[page]) pages.push_back(table[page]);
        }
        reach_behind(s, pages, n_held, has_before, c.step.budget_bytes);
    }
}

static void find_written(const call &c, plan_of_run &p)
{
    const qn_mlx_state &s = *c.step.state;
    const tables &at = p.at;
    for (size_t i = 0; i + 1 < at.row_begin.size(); i++)
        for (int64_t r = at.row_begin[i]; r < at.row_begin[i + 1]; r++) {
            const int64_t position = at.position(static_cast<int64_t>(i), r);
            const int32_t page = at.table(static_cast<int64_t>(i))[1 + position / at.page_tokens];
            p.written.push_back(static_cast<int32_t>(places_of_units(s, {page})[0] * at.page_tokens +
                                                     position % at.page_tokens));
        }
    p.is_in_order = true;
    for (size_t i = 1; i < p.written.size(); i++)
        p.is_in_order = p.is_in_order && p.written[i] == p.written[i - 1] + 1;
}

/* The keys of several sequences are as many as a multiple of this. MLX's CUDA back end makes a plan of attention for each number
 * of keys, which takes milliseconds. */
constexpr int64_t KEYS_STEP = 64;

/* Several sequences together, where that pads none to much more than it has. */
static bool fits_together(const plan_of_run &p, const batch &b)
{
    if (p.kind.chooses) return false;
    int64_t most = 0, sum = 0;
    for (int64_t i = 0; i < b.n; i++) {
        const reach_of_rows r = reach_of(p, b.sequence + i);
        most = std::max(most, r.end_page - r.first_page);
        sum += r.end_page - r.first_page;
    }
    return b.n * most <= 2 * sum && b.n * b.n_rows * p.kind.heads * most * p.at.page_tokens <= SCORES_MAX;
}

/* One sequence as a view, if its pages lie behind each other. */
static int64_t first_in_order(const call &c, const plan_of_run &p, const batch &b, const reach_of_rows &r)
{
    if (b.n != 1 || r.end_page == r.first_page) return -1;
    const int32_t *table = p.at.table(b.sequence) + 1;
    const std::vector<int32_t> places =
        places_of_units(*c.step.state, {table + r.first_page, table + r.end_page});
    for (size_t i = 1; i < places.size(); i++)
        if (places[i] != places[0] + static_cast<int32_t>(i)) return -1;
    return places[0] * p.at.page_tokens;
}

/* Rows of the pool that a batch sees. Those behind the end of a sequence, which no row sees, are its last one
 * again: what lies there may be anything, NaN too. */
static mx::array index_of(const call &c, const plan_of_run &p, const batch &b,
                          const std::vector<reach_of_rows> &all, int64_t n_keys)
{
    std::vector<int32_t> index;
    index.reserve(static_cast<size_t>(b.n * n_keys));
    for (int64_t i = 0; i < b.n; i++) {
        const int32_t *table = p.at.table(b.sequence + i) + 1;
        const int64_t pt = p.at.page_tokens;
        const std::vector<int32_t> places =
            places_of_units(*c.step.state, {table + all[i].first_page, table + all[i].end_page});
        for (int64_t k = 0; k < n_keys; k++) {
            const int64_t t = std::min(all[i].first_page * pt + k, all[i].end - 1);
            index.push_back(static_cast<int32_t>(places[t / pt - all[i].first_page] * pt + t % pt));
        }
    }
    return numbers(index, {dim(b.n), dim(n_keys)});
}

/* What marks of block tables add. Only pictures whose tokens see those behind them have marked tables. */
static void see_marks(const plan_of_run &p, const batch &b, sight &see)
{
    bool is_marked = false;
    for (int64_t i = 0; i < b.n; i++) is_marked |= p.at.has_mark(b.sequence + i, QN_BLOCKS_WHOLE);
    if (!is_marked) return;
    for (int64_t i = 0; i < b.n; i++) {
        const bool is_whole = p.at.has_mark(b.sequence + i, QN_BLOCKS_WHOLE),
                   is_back = is_whole && p.at.has_mark(b.sequence + i, QN_BLOCKS_BACK);
        see.past.push_back(is_whole ? see.end[i] : 0);
        see.back.push_back(is_back ? see.position[i] : std::numeric_limits<int32_t>::max());
    }
}

static piece piece_of(const call &c, const plan_of_run &p, const batch &b)
{
    std::vector<reach_of_rows> all;
    int64_t n_keys = 0;
    sight see{{}, {}, {}, b.n_rows, 0, p.kind.window, p.kind.chunk, p.kind.whole, {}, {}};
    for (int64_t i = 0; i < b.n; i++) {
        all.push_back(reach_of(p, b.sequence + i));
        const int64_t before = all[i].first_page * p.at.page_tokens;
        n_keys = std::max(n_keys, all[i].end - before);
        see.position.push_back(static_cast<int32_t>(all[i].position - before));
        see.end.push_back(static_cast<int32_t>(all[i].end - before));
        const int64_t not_here = p.at.before(b.sequence + i) + before;
        see.chunk_at.push_back(static_cast<int32_t>(p.kind.chunk ? not_here % p.kind.chunk : 0));
    }
    if (b.n > 1) n_keys = (n_keys + KEYS_STEP - 1) / KEYS_STEP * KEYS_STEP; /* they have a mask */
    see.n_keys = n_keys;
    see_marks(p, b, see);
    const int64_t before = p.at.before(b.sequence) + all[0].first_page * p.at.page_tokens;
    piece found{b, see, before, first_in_order(c, p, b, all[0]), std::nullopt};
    if (found.first < 0) found.index = index_of(c, p, b, all, n_keys);
    return found;
}

/* positions: the input that has them; row_begin and blocks come behind it. */
static plan_of_run &planned(const call &c, const kind_of_layer &kind, int positions)
{
    qn_mlx_state &s = *c.step.state;
    if (!s.planned) s.planned = std::make_shared<std::vector<plan_of_run>>();
    auto &all = *static_cast<std::vector<plan_of_run> *>(s.planned.get());
    if (!all.empty() && all[0].run != c.step.run) all.clear();
    for (plan_of_run &p : all)
        if (p.kind == kind) return p;
    plan_of_run p{c.step.run, kind, {}, {}, false, std::nullopt, {}};
    const std::vector<int32_t> row_begin = c.ints(positions + 1), blocks = c.ints(positions + 2);
    const int64_t n = static_cast<int64_t>(row_begin.size()) - 1;
    p.at = {row_begin, c.ints(positions), blocks, n > 0 ? static_cast<int64_t>(blocks.size()) / n : 0,
            s.page_tokens};
    if (all.empty()) reach_pages(c, p); /* other kinds of layers have the same pages */
    find_written(c, p);
    const auto together = [&](const batch &b) { return fits_together(p, b); };
    for (const batch &b : kind.heads ? batches_of(p.at.row_begin, together) : std::vector<batch>())
        p.pieces.push_back(piece_of(c, p, b));
    all.push_back(std::move(p));
    return all.back();
}

/* ---- writing and reading ------------------------------------------------------------------------------ */

/* x [rows, heads, d] into a layer's keys or values. */
static void put_rows(const qn_mlx_state &s, plan_of_run &p, mx::array &into, const mx::array &x)
{
    const mx::ShapeElem n = dim(static_cast<int64_t>(p.written.size()));
    if (n == 0) return;
    if (!p.is_in_order && !p.write_index) p.write_index = numbers(p.written, {n});
    const mx::array rows = mx::astype(range_of(x, 0, 0, n), s.dtype);
    mx::Shape begin(3, 0), end = into.shape();
    begin[0] = p.written[0];
    end[0] = begin[0] + n;
    mx::array next = p.is_in_order ? mx::slice_update(into, rows, std::move(begin), std::move(end))
                                   : mx::scatter(into, {*p.write_index}, mx::expand_dims(rows, 1), {0});
    into = std::move(next);
}

static void write_rows(const call &c, plan_of_run &p)
{
    qn_mlx_state &s = *c.step.state;
    const size_t layer = static_cast<size_t>(c.p().attend.layer);
    put_rows(s, p, s.keys[layer], c.in(1));
    if (s.v_dim) put_rows(s, p, s.values[layer], c.in(2));
}

/* Keys or values of a batch: [n, heads, n_keys, d] of that type. */
static mx::array rows_of_pool(const call &c, const mx::array &pool, const piece &p, mx::Dtype type)
{
    if (p.first >= 0) {
        const mx::array seen = range_of(pool, 0, p.first, p.first + p.see.n_keys);
        return mx::astype(heads_first(mx::expand_dims(seen, 0)), type);
    }
    c.room(p.b.n * p.see.n_keys * pool.shape(1) * pool.shape(2), mx::size_of(type));
    return mx::astype(heads_first(mx::take(pool, *p.index, 0)), type);
}

/* Scores with a cap are computed in f32; else queries take the type of the pages where both have 16 bits. */
static mx::Dtype type_of(const call &c)
{
    const mx::Dtype kept = c.step.state->dtype;
    return c.is_narrow(0) && kept != mx::float32 && !(c.p().attend.softcap > 0) ? kept : mx::float32;
}

static mx::array attend_piece_of(const call &c, piece &p)
{
    const qn_mlx_state &s = *c.step.state;
    const size_t layer = static_cast<size_t>(c.p().attend.layer);
    const mx::Dtype type = type_of(c);
    std::optional<mx::array> sinks = sinks_of(c);
    if (sinks) sinks = mx::astype(*sinks, type);
    operands o{mx::astype(heads_first(rows_of_batch(c.in(0), p.b)), type),
               rows_of_pool(c, s.keys[layer], p, type), mx::array(0.0f), sinks};
    o.v = s.v_dim ? rows_of_pool(c, s.values[layer], p, type) : range_of(o.k, 3, 0, c.shape[2]);
    p.see.chosen = choice_of(c, p.b, p.before);
    const mx::array y = attend_batch(c, o, p.see);
    return c.is_narrow(0) ? mx::astype(y, *c.narrow) : y;
}

mx::array attend_pages(const call &c)
{
    const qn_params_attend &a = c.p().attend;
    plan_of_run &p = planned(c, {a.window, a.chunk, c.in(0).shape(1), a.whole != 0, a.block > 0}, 3);
    if (!c.p().attend.is_written) write_rows(c, p);
    std::vector<mx::array> parts;
    for (piece &one : p.pieces) parts.push_back(attend_piece_of(c, one));
    return joined(c, std::move(parts));
}

/* ---- keys of an index --------------------------------------------------------------------------------- */

static plan_of_run &planned_index(const call &c)
{
    return planned(c, {}, 2);
}

std::vector<indexed> index_pages(const call &c)
{
    qn_mlx_state &s = *c.step.state;
    plan_of_run &p = planned_index(c);
    const tables &at = p.at;
    std::vector<indexed> all;
    put_rows(s, p, s.keys[static_cast<size_t>(c.p().index.layer)], mx::expand_dims(c.in(1), 1));
    for (size_t i = 0; i + 1 < at.row_begin.size(); i++) {
        const int64_t row = at.row_begin[i], n = at.row_begin[i + 1] - row,
                      sequence = static_cast<int64_t>(i);
        if (n > 0) all.push_back({sequence, row, n, at.positions[row], at.before(sequence)});
    }
    return all;
}

mx::array keys_in_pages(const call &c, const indexed &x, int64_t begin, int64_t end)
{
    const qn_mlx_state &s = *c.step.state;
    const tables &at = planned_index(c).at;
    const int32_t *table = at.table(x.sequence) + 1;
    const int64_t block = c.p().index.block;
    const mx::array &pool = s.keys[static_cast<size_t>(c.p().index.layer)];
    std::vector<int32_t> rows;
    for (int64_t i = begin; i < end; i++) {
        const int64_t t = (i + 1) * block - 1 - x.before;
        const int32_t place = places_of_units(s, {table[t / at.page_tokens]})[0];
        rows.push_back(static_cast<int32_t>(place * at.page_tokens + t % at.page_tokens));
    }
    return mx::reshape(mx::take(pool, numbers(rows, {dim(end - begin)}), 0), {dim(end - begin), -1});
}

} // namespace qn
