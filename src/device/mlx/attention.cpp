/* Attention, over pages and over rows themselves, and its gradients. Sequences with as many rows are computed
 * together, many rows in pieces of rows, so that scores stay below a size; MLX's own attention takes all but
 * soft caps. */
#include <algorithm>

#include "device/mlx/attention.hpp"

namespace qn
{

static mx::ShapeElem dim(int64_t n)
{
    return static_cast<mx::ShapeElem>(n);
}

mx::array range_of(const mx::array &x, int axis, int64_t begin, int64_t end)
{
    mx::Shape from(x.ndim(), 0), to = x.shape();
    if (begin == 0 && end == to[axis]) return x;
    from[axis] = dim(begin);
    to[axis] = dim(end);
    return mx::slice(x, std::move(from), std::move(to));
}

/* ---- what rows see ------------------------------------------------------------------------------------ */

/* Of one sequence. A table of a row's blocks, with a last one for what it did not choose, is looked up for each key. */
static view view_of_chosen(const sight &s, int64_t row, int64_t n)
{
    const choice &of = *s.chosen;
    const int64_t first = s.position[0] + row, last = first + n - 1;
    view v{row, n, s.window ? std::max<int64_t>(0, first - s.window + 1) : 0, last + 1, false, {}, {}};
    const auto number = [](int64_t x) { return mx::array(static_cast<int>(x)); };
    const auto range = [](int64_t from, int64_t to) {
        return mx::arange(static_cast<int>(from), static_cast<int>(to));
    };
    const mx::array key = mx::reshape(range(v.low, v.high), {1, -1}),
                    at = mx::reshape(range(first, last + 1), {-1, 1}),
                    block = mx::floor_divide(mx::add(key, number(of.first)), number(of.block)),
                    whole = mx::floor_divide(mx::add(at, number(of.first + 1)), number(of.block));
    const int64_t low = (v.low + of.first) / of.block, n_blocks = (last + of.first) / of.block - low + 1;
    mx::array ids = mx::subtract(range_of(of.numbers, 0, row, row + n), number(low));
    const mx::array is_outside =
        mx::logical_or(mx::less(ids, number(0)), mx::greater_equal(ids, number(n_blocks)));
    ids = mx::where(is_outside, number(n_blocks), ids);
    const mx::array table =
        mx::put_along_axis(mx::zeros({dim(n), dim(n_blocks + 1)}, mx::int32), ids, mx::ones_like(ids), 1);
    mx::array in_chosen = mx::take(table, mx::reshape(mx::subtract(block, number(low)), {-1}), 1);
    mx::array seen =
        mx::where(mx::less(block, whole), mx::not_equal(in_chosen, number(0)), mx::array(!of.no_tail));
    seen = mx::logical_and(seen, mx::less_equal(key, at));
    if (s.window) seen = mx::logical_and(seen, mx::greater(key, mx::subtract(at, number(s.window))));
    v.mask = mx::reshape(seen, {1, 1, dim(n), dim(v.high - v.low)});
    v.sees = mx::any(*v.mask, 3, true);
    return v;
}

/* The first key that a row of one sequence sees. Rows behind it see no earlier one. */
static int64_t low_of(const sight &s, int64_t at)
{
    int64_t low = 0;
    if (s.window) {
        low = std::max<int64_t>(0, at - s.window + 1);
        if (!s.back.empty()) low = std::min<int64_t>(low, s.back[0]);
    }
    return s.chunk ? std::max<int64_t>(low, at - (at + s.chunk_at[0]) % s.chunk) : low;
}

static view view_of(const sight &s, int64_t row, int64_t n)
{
    if (s.chosen) return view_of_chosen(s, row, n);
    view v{row, n, 0, s.n_keys, false, {}, {}};
    if (s.position.size() == 1) { /* keys that none of the rows sees are left out */
        const int64_t first = s.position[0] + row, last = first + n - 1;
        v.low = low_of(s, first);
        v.high = last + 1;
        if (!s.past.empty()) {
            v.high = s.past[0];
            if (low_of(s, last) == v.low) return v;
        } else if (s.whole) {
            v.high = s.window ? std::min<int64_t>(s.end[0], last + s.window) : s.end[0];
            if (!s.window || (last - v.low < s.window && v.high - first <= s.window)) return v;
        } else if (n == 1) {
            return v;
        } else if ((!s.window || last < s.window) && (!s.chunk || last + s.chunk_at[0] < s.chunk)) {
            v.is_causal = true;
            return v;
        }
    }
    const mx::ShapeElem n_sequences = dim(static_cast<int64_t>(s.position.size()));
    const mx::array key =
        mx::reshape(mx::arange(static_cast<int>(v.low), static_cast<int>(v.high)), {1, 1, 1, -1});
    const mx::array begin = numbers(s.position, {n_sequences, 1, 1, 1});
    const mx::array rows =
        mx::reshape(mx::arange(static_cast<int>(row), static_cast<int>(row + n)), {1, 1, -1, 1});
    const mx::array at = mx::add(begin, rows);
    mx::array seen =
        s.whole ? mx::less(key, numbers(s.end, {n_sequences, 1, 1, 1})) : mx::less_equal(key, at);
    if (s.window && s.whole)
        seen = mx::logical_and(seen, mx::less(key, mx::add(at, mx::array(static_cast<int>(s.window)))));
    if (!s.past.empty()) seen = mx::logical_or(seen, mx::less(key, numbers(s.past, {n_sequences, 1, 1, 1})));
    if (s.window) {
        mx::array in_window = mx::greater(key, mx::subtract(at, mx::array(static_cast<int>(s.window))));
        if (!s.back.empty())
            in_window =
                mx::logical_or(in_window, mx::greater_equal(key, numbers(s.back, {n_sequences, 1, 1, 1})));
        seen = mx::logical_and(seen, in_window);
    }
    if (s.chunk) {
        const mx::array in_chunk = mx::remainder(mx::add(at, numbers(s.chunk_at, {n_sequences, 1, 1, 1})),
                                                 mx::array(static_cast<int>(s.chunk)));
        seen = mx::logical_and(seen, mx::greater_equal(key, mx::subtract(at, in_chunk)));
    }
    v.mask = mx::broadcast_to(seen, {n_sequences, 1, dim(n), dim(v.high - v.low)});
    return v;
}

/* Rows that are computed at once, of n_rows with so many keys for each of `heads` heads. */
static int64_t rows_of_piece(const call &c, int64_t heads, int64_t n_keys, int64_t n_rows)
{
    const int64_t most =
        std::min<int64_t>(SCORES_MAX, static_cast<int64_t>(c.step.budget_bytes / 16 / sizeof(float)));
    const int64_t n = std::clamp<int64_t>(most / std::max<int64_t>(1, heads * n_keys), 1, n_rows);
    c.room(n * heads * n_keys);
    return n;
}

/* ---- rows against keys -------------------------------------------------------------------------------- */

mx::array heads_first(const mx::array &x)
{
    return mx::transpose(x, {0, 2, 1, 3});
}

/* x [n, kv_heads * shared, m, ..] as [n, kv_heads, shared * m, ..]: heads that share keys are rows. */
static mx::array heads_as_rows(const mx::array &x, int64_t kv_heads)
{
    return mx::reshape(x, {x.shape(0), dim(kv_heads), -1, x.shape(3)});
}

/* scores [n, heads, m, keys] of a piece, hidden ones -inf; tangents: tanh of the cap, where it is wanted. */
static mx::array scores_of(const qn_params_attend &p, const view &v, const mx::array &q, const mx::array &k,
                           mx::array *tangents)
{
    const mx::array rows = heads_as_rows(q, k.shape(1));
    mx::array s = mx::reshape(mx::matmul(rows, mx::swapaxes(k, 2, 3)),
                              {q.shape(0), q.shape(1), q.shape(2), k.shape(2)});
    s = mx::multiply(s, mx::array(p.scale));
    if (p.softcap > 0) {
        const mx::array t = mx::tanh(mx::divide(s, mx::array(p.softcap)));
        if (tangents) *tangents = t;
        s = mx::multiply(t, mx::array(p.softcap));
    }
    const mx::array hidden(-std::numeric_limits<float>::infinity());
    if (v.mask) return mx::where(*v.mask, s, hidden);
    if (!v.is_causal) return s;
    const int keys = k.shape(2), m = q.shape(2);
    const mx::array last = mx::reshape(mx::arange(keys - m, keys), {-1, 1});
    return mx::where(mx::less_equal(mx::arange(keys), last), s, hidden);
}

/* A sink is one more logit that takes its share and reads no value. */
static mx::array softmax_of(const mx::array &s, const std::optional<mx::array> &sinks)
{
    if (!sinks) return mx::softmax(s, -1, true);
    const mx::array more =
        mx::broadcast_to(mx::reshape(*sinks, {1, -1, 1, 1}), {s.shape(0), s.shape(1), s.shape(2), 1});
    return range_of(mx::softmax(mx::concatenate({s, more}, 3), -1, true), 3, 0, s.shape(3));
}

/* p [n, heads, m, keys] v [n, kv_heads, keys, dv]: [n, heads, m, dv] */
static mx::array gathered(const mx::array &p, const mx::array &v)
{
    return mx::reshape(mx::matmul(heads_as_rows(p, v.shape(1)), v),
                       {p.shape(0), p.shape(1), p.shape(2), v.shape(3)});
}

/* x [n, heads, m, ..], 0 where a row sees nothing. */
static mx::array seen_of(const view &v, const mx::array &x)
{
    return v.sees ? mx::where(*v.sees, x, mx::zeros_like(x)) : x;
}

static mx::array attend_piece(const qn_params_attend &p, const operands &o, const view &v)
{
    const mx::array q = range_of(o.q, 2, v.row, v.row + v.n), k = range_of(o.k, 2, v.low, v.high),
                    values = range_of(o.v, 2, v.low, v.high);
    if (p.softcap > 0)
        return seen_of(v, gathered(softmax_of(scores_of(p, v, q, k, nullptr), o.sinks), values));
    return seen_of(v, mx::fast::scaled_dot_product_attention(q, k, values, p.scale,
                                                             v.is_causal ? "causal" : "", v.mask, o.sinks));
}

mx::array attend_batch(const call &c, const operands &o, sight &s)
{
    const int64_t piece = rows_of_piece(c, int64_t{o.q.shape(0)} * o.q.shape(1), s.n_keys, s.n_rows);
    if (s.views.empty() || s.chosen || s.views[0].n != std::min(piece, s.n_rows)) {
        s.views.clear();
        for (int64_t row = 0; row < s.n_rows; row += piece)
            s.views.push_back(view_of(s, row, std::min(piece, s.n_rows - row)));
    }
    std::vector<mx::array> parts;
    for (const view &v : s.views) parts.push_back(attend_piece(c.p().attend, o, v));
    return heads_first(parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 2));
}

std::optional<mx::array> sinks_of(const call &c)
{
    if (!c.p().attend.has_sinks) return std::nullopt;
    return c.in(c.n() - 1 - (c.p().attend.block > 0));
}

std::optional<choice> choice_of(const call &c, const batch &b, int64_t first)
{
    const qn_params_attend &p = c.p().attend;
    if (!p.block) return std::nullopt;
    return choice{range_of(c.in(c.n() - 1), 0, b.row, b.row + b.n_rows), p.block, first, p.no_tail != 0};
}

/* ---- over rows themselves ----------------------------------------------------------------------------- */

/* All are of one length: each row sees what it sees in a sequence alone, but that chunks begin where positions say. */
static sight sight_of_rows(const call &c, const batch &b)
{
    const qn_params_attend &p = c.p().attend;
    sight s{{0},      {static_cast<int32_t>(b.n_rows)},
            {0},      b.n_rows,
            b.n_rows, p.window,
            p.chunk,  p.whole != 0,
            {},       choice_of(c, b, 0)};
    if (!p.chunk) return s;
    const std::vector<int32_t> positions = c.ints(3), row_begin = c.ints(4);
    s.position.assign(static_cast<size_t>(b.n), 0);
    s.end.assign(static_cast<size_t>(b.n), static_cast<int32_t>(b.n_rows));
    s.chunk_at.clear();
    for (int64_t i = 0; i < b.n; i++)
        s.chunk_at.push_back(positions[row_begin[b.sequence + i]] % static_cast<int32_t>(p.chunk));
    return s;
}

static operands operands_of_rows(const call &c, const batch &b)
{
    const auto rows = [&](int i) { return mx::astype(heads_first(rows_of_batch(c.in(i), b)), mx::float32); };
    return {rows(0), rows(1), rows(2), sinks_of(c)};
}

/* Where rows choose, sequences are alone. */
static std::vector<batch> batches_of_rows(const call &c)
{
    const int64_t heads = c.in(0).shape(1), block = c.p().attend.block;
    return batches_of(
        c.ints(4), [&](const batch &b) { return !block && b.n * b.n_rows * b.n_rows * heads <= SCORES_MAX; });
}

mx::array prim_ATTEND(const call &c)
{
    if (c.step.state) return attend_pages(c);
    std::vector<mx::array> parts;
    for (const batch &b : batches_of_rows(c)) {
        sight s = sight_of_rows(c, b);
        parts.push_back(attend_batch(c, operands_of_rows(c, b), s));
    }
    return joined(c, std::move(parts));
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

/* Of one batch: dq [n, heads, n_rows, d], dk and dv [n, kv_heads, n_rows, ..]. */
struct gradients {
    std::vector<mx::array> dq; /* pieces of rows */
    std::optional<mx::array> dk, dv;
};

/* Adds x, of keys [low, high) of n, to sum. */
static void add_keys(std::optional<mx::array> &sum, const mx::array &x, int64_t low, int64_t high, int64_t n)
{
    const mx::array all =
        low == 0 && high == n
            ? x
            : mx::pad(x, {{0, 0}, {0, 0}, {static_cast<int>(low), static_cast<int>(n - high)}, {0, 0}});
    sum = sum ? mx::add(*sum, all) : all;
}

/* The slopes by q . k are p (dp - d_out . out) times what the cap and the scale make of it, dp = d_out . v.
 */
static void add_piece(gradients &g, const qn_params_attend &p, const operands &o, const mx::array &out,
                      const mx::array &d_out, const view &v)
{
    const int64_t n_keys = o.k.shape(2), kv_heads = o.k.shape(1);
    const auto rows = [&](const mx::array &x) { return range_of(x, 2, v.row, v.row + v.n); };
    const mx::array q = rows(o.q), d = rows(d_out), k = range_of(o.k, 2, v.low, v.high),
                    values = range_of(o.v, 2, v.low, v.high);
    mx::array tangents(0.0f);
    const mx::array prob = seen_of(v, softmax_of(scores_of(p, v, q, k, &tangents), o.sinks));
    const mx::array dp =
        mx::reshape(mx::matmul(heads_as_rows(d, kv_heads), mx::swapaxes(values, 2, 3)), prob.shape());
    const mx::array mean = mx::sum(mx::multiply(d, rows(out)), 3, true);
    mx::array slope = mx::multiply(prob, mx::subtract(dp, mean));
    if (p.softcap > 0) slope = mx::multiply(slope, mx::subtract(mx::array(1.0f), mx::square(tangents)));
    slope = mx::multiply(slope, mx::array(p.scale));
    g.dq.push_back(gathered(slope, k));
    const auto to_keys = [&](const mx::array &weights, const mx::array &x) {
        return mx::matmul(mx::swapaxes(heads_as_rows(weights, kv_heads), 2, 3), heads_as_rows(x, kv_heads));
    };
    add_keys(g.dk, to_keys(slope, q), v.low, v.high, n_keys);
    add_keys(g.dv, to_keys(prob, d), v.low, v.high, n_keys);
}

/* [n, n_rows, heads * d + kv_heads * (d + dv)] */
static mx::array grad_batch(const call &c, const batch &b)
{
    const operands o = operands_of_rows(c, b);
    const sight s = sight_of_rows(c, b);
    const mx::array out = heads_first(rows_of_batch(c.in(5), b)),
                    d_out = heads_first(rows_of_batch(c.in(6), b));
    const int64_t piece = rows_of_piece(c, b.n * o.q.shape(1), s.n_keys, s.n_rows);
    gradients g;
    for (int64_t row = 0; row < s.n_rows; row += piece)
        add_piece(g, c.p().attend, o, out, d_out, view_of(s, row, std::min(piece, s.n_rows - row)));
    const auto flat = [&](const mx::array &x) {
        return mx::reshape(heads_first(x), {dim(b.n), dim(b.n_rows), -1});
    };
    return mx::concatenate({flat(mx::concatenate(g.dq, 2)), flat(*g.dk), flat(*g.dv)}, 2);
}

mx::array prim_ATTEND_GRAD(const call &c)
{
    std::vector<mx::array> parts;
    for (const batch &b : batches_of_rows(c)) parts.push_back(grad_batch(c, b));
    return joined(c, std::move(parts));
}

} // namespace qn
