/* Recurrent layers: short convolutions and the gated delta rule, over the rows of each sequence, with state
 * carried in slots. Sequences with as many rows are computed together. */
#include <algorithm>

#include "device/mlx/state.hpp"

namespace qn
{

static mx::ShapeElem dim(int64_t n)
{
    return static_cast<mx::ShapeElem>(n);
}

/* Rows [begin, end) of the batch's second axis. */
static mx::array rows_between(const mx::array &x, int64_t begin, int64_t end)
{
    mx::Shape from(x.ndim(), 0), to = x.shape();
    from[1] = dim(begin);
    to[1] = dim(end);
    return mx::slice(x, std::move(from), std::move(to));
}

/* Row r of every sequence: [n, ..]. */
static mx::array row_at(const mx::array &x, int64_t r)
{
    return mx::squeeze(rows_between(x, r, r + 1), 1);
}

static bool any(const batch &)
{
    return true;
}

/* ---- slots -------------------------------------------------------------------------------------------- */

/* Where in the pool the state of each sequence is, and whether it starts from zero. */
struct places {
    std::vector<int32_t> row_begin, slots, reset;
};

/* slots: which input they are, where there is a state; reset comes behind them. */
static places places_of(const call &c, int slots)
{
    if (!c.step.state) return {c.ints(slots - 1), {}, {}};
    places at{c.ints(slots - 1), c.ints(slots), c.ints(slots + 1)};
    reach(*c.step.state, at.slots, c.step.budget_bytes);
    at.slots = places_of_units(*c.step.state, at.slots);
    return at;
}

static mx::array &slots_of(const call &c)
{
    return c.step.state->slots[static_cast<size_t>(c.p().recurrent.layer)];
}

template <typename T> static std::vector<int32_t> of_batch(const T &x, const batch &b)
{
    return {x.begin() + b.sequence, x.begin() + b.sequence + b.n};
}

/* What a batch begins with: f32 of that shape, whose first dimension are sequences. */
static mx::array begin_state(const call &c, const places &at, const batch &b, const mx::Shape &shape)
{
    if (!c.step.state) return mx::zeros(shape, mx::float32);
    int64_t n = 1;
    for (size_t i = 1; i < shape.size(); i++) n *= shape[i];
    const mx::ShapeElem offset = dim(c.p().recurrent.offset);
    const mx::array &all = slots_of(c);
    const mx::array part = mx::slice(all, {0, offset}, {all.shape(0), offset + dim(n)});
    const mx::array found = mx::take(part, numbers(of_batch(at.slots, b), {dim(b.n)}), 0);
    const mx::array reset = mx::not_equal(numbers(of_batch(at.reset, b), {dim(b.n), 1}), mx::array(0));
    return mx::reshape(mx::where(reset, mx::array(0.0f), found), shape);
}

static void keep_state(const call &c, const places &at, const batch &b, const mx::array &state)
{
    if (!c.step.state) return;
    const mx::array offsets = mx::full({dim(b.n)}, static_cast<int>(c.p().recurrent.offset), mx::int32);
    mx::array next = mx::scatter(slots_of(c), {numbers(of_batch(at.slots, b), {dim(b.n)}), offsets},
                                 mx::reshape(state, {dim(b.n), 1, -1}), {0, 1});
    slots_of(c) = std::move(next);
}

/* ---- the short convolution ---------------------------------------------------------------------------- */

/* The rows before a batch's, and the batch's own: [n, kernel - 1 + n_rows, channels]. */
static mx::array with_history(const call &c, const places &at, const batch &b, int64_t kept)
{
    const mx::array x = rows_of_batch(c.in(0), b);
    if (kept == 0) return x;
    return mx::concatenate({begin_state(c, at, b, {dim(b.n), dim(kept), x.shape(2)}), x}, 1);
}

/* out[r] = sum over t of w[t] x[r + t - kept], in rising t. */
mx::array prim_SHORT_CONV(const call &c)
{
    const mx::array &w = c.in(1);
    const int64_t kernel = w.shape(0), kept = kernel - 1;
    const places at = places_of(c, 3);
    std::vector<mx::array> parts;
    for (const batch &b : batches_of(at.row_begin, any)) {
        const mx::array x = with_history(c, at, b, kept);
        mx::array sum = mx::zeros({dim(b.n), dim(b.n_rows), x.shape(2)}, mx::float32);
        for (int64_t t = 0; t < kernel; t++)
            sum = mx::add(
                sum, mx::multiply(mx::take(w, static_cast<int>(t), 0), rows_between(x, t, t + b.n_rows)));
        parts.push_back(sum);
        if (kept) keep_state(c, at, b, rows_between(x, b.n_rows, b.n_rows + kept));
    }
    return joined(c, std::move(parts));
}

/* dx[r] = sum over t of w[t] d_out[r - t + kept], and dw[t] = sum over r of d_out[r] x[r + t - kept], of rows
 * of the same sequence. */
mx::array prim_SHORT_CONV_GRAD(const call &c)
{
    const mx::array &w = c.in(1);
    const int kernel = w.shape(0), kept = kernel - 1;
    std::vector<mx::array> parts, sums;
    for (const batch &b : batches_of(c.ints(2), any)) {
        const mx::array g = rows_of_batch(c.in(3), b);
        const bool of_w = c.p().recurrent.which != 0;
        const mx::array other = of_w ? mx::pad(rows_of_batch(c.in(0), b), {{0, 0}, {kept, 0}, {0, 0}})
                                     : mx::pad(g, {{0, 0}, {0, kept}, {0, 0}});
        std::vector<mx::array> taps;
        mx::array sum = mx::zeros(g.shape(), mx::float32);
        for (int t = 0; t < kernel; t++) {
            if (of_w) {
                taps.push_back(
                    mx::sum(mx::multiply(g, rows_between(other, t, t + b.n_rows)), std::vector<int>{0, 1}));
                continue;
            }
            sum = mx::add(
                sum, mx::multiply(mx::take(w, t, 0), rows_between(other, kept - t, kept - t + b.n_rows)));
        }
        if (of_w)
            sums.push_back(mx::stack(taps, 0));
        else
            parts.push_back(sum);
    }
    if (c.p().recurrent.which == 0) return joined(c, std::move(parts));
    mx::array all = mx::zeros(c.shape, mx::float32);
    for (const mx::array &s : sums) all = mx::add(all, s);
    return all;
}

/* ---- the gated delta rule ----------------------------------------------------------------------------- */

/* One batch: q, k [n, rows, heads, dk], each key head as often as it is shared, v [n, rows, heads, dv],
 * decay [n, rows, heads] or of each row of the state [n, rows, heads, dk], beta [n, rows, heads]. */
struct delta {
    mx::array q, k, v, decay, beta;
    bool additive; /* nothing of what the state holds is taken off */
};

static mx::array shared_heads(const mx::array &x, int heads)
{
    return x.shape(2) == heads ? x : mx::repeat(x, heads / x.shape(2), 2);
}

static delta delta_of(const call &c, const batch &b)
{
    const int heads = c.in(2).shape(1);
    const mx::array g = rows_of_batch(c.in(3), b);
    return {shared_heads(rows_of_batch(c.in(0), b), heads),
            shared_heads(rows_of_batch(c.in(1), b), heads),
            rows_of_batch(c.in(2), b),
            g.ndim() == 4 ? g : mx::exp(g),
            rows_of_batch(c.in(4), b),
            c.p().recurrent.additive != 0};
}

/* [n, heads], or [n, heads, dk], against [n, heads, dk, dv]. */
static mx::array as_factor(const mx::array &x)
{
    return x.ndim() == 3 ? mx::expand_dims(x, 3) : mx::expand_dims(x, std::vector<int>{2, 3});
}

/* One row: S = decay S; d = beta (v - k S); S = S + k d^T. The state after it; d [n, heads, 1, dv]. */
static mx::array advanced(const delta &x, int64_t r, const mx::array &state, mx::array *d)
{
    const mx::array faded = mx::multiply(state, as_factor(row_at(x.decay, r))), k = row_at(x.k, r);
    mx::array error = mx::expand_dims(row_at(x.v, r), 2);
    if (!x.additive) error = mx::subtract(error, mx::matmul(mx::expand_dims(k, 2), faded));
    *d = mx::multiply(error, as_factor(row_at(x.beta, r)));
    return mx::add(faded, mx::multiply(mx::expand_dims(k, 3), *d));
}

/* Row by row: [n, rows, heads, dv], and the state behind. */
static mx::array by_rows(const delta &x, mx::array &state)
{
    std::vector<mx::array> out;
    mx::array d(0.0f);
    for (int64_t r = 0; r < x.v.shape(1); r++) {
        state = advanced(x, r, state, &d);
        out.push_back(mx::squeeze(mx::matmul(mx::expand_dims(row_at(x.q, r), 2), state), 2));
    }
    return mx::stack(out, 1);
}

mx::array prim_GATED_DELTA(const call &c)
{
    const int dk = c.in(0).shape(2), heads = c.in(2).shape(1), dv = c.in(2).shape(2);
    const places at = places_of(c, 6);
    std::vector<mx::array> parts;
    for (const batch &b : batches_of(at.row_begin, any)) {
        mx::array state = begin_state(c, at, b, {dim(b.n), heads, dk, dv});
#if MLX_VERSION_NUMERIC >= 32004 /* which keeps its state the other way round */
        if (b.n_rows > 1 && c.in(3).ndim() == 2 && !c.p().recurrent.additive) {
            const auto both = mx::fast::gated_delta_update(
                rows_of_batch(c.in(0), b), rows_of_batch(c.in(1), b), rows_of_batch(c.in(2), b),
                mx::exp(rows_of_batch(c.in(3), b)), rows_of_batch(c.in(4), b), mx::swapaxes(state, 2, 3));
            parts.push_back(both[0]);
            keep_state(c, at, b, mx::swapaxes(both[1], 2, 3));
            continue;
        }
#endif
        parts.push_back(by_rows(delta_of(c, b), state));
        keep_state(c, at, b, state);
    }
    return joined(c, std::move(parts));
}

/* ---- its gradients ------------------------------------------------------------------------------------ */

/* States are kept for so many rows, and at the beginning of each such piece; the rest is computed again. */
constexpr int64_t CHUNK = 32;

static delta chunk_of(const delta &x, int64_t begin, int64_t end)
{
    return {rows_between(x.q, begin, end),    rows_between(x.k, begin, end),
            rows_between(x.v, begin, end),    rows_between(x.decay, begin, end),
            rows_between(x.beta, begin, end), x.additive};
}

/* Gradients of the rows of a chunk, each with heads [n, rows, heads, ..]. */
struct delta_gradients {
    mx::array q, k, v, g, beta;
};

/* state: before the chunk. d_state: the gradient of the state behind it, and becomes that of the one before.
 * Row by row goes only what a state owes to its neighbour; the rest is computed of all rows at once. */
static delta_gradients chunk_back(const delta &x, const mx::array &d_out, mx::array state, mx::array &d_state)
{
    const int64_t n_rows = x.v.shape(1);
    std::vector<mx::array> before, after, deltas, slopes, errors;
    mx::array d(0.0f);
    for (int64_t r = 0; r < n_rows; r++) {
        before.push_back(state);
        state = advanced(x, r, state, &d);
        after.push_back(state);
        deltas.push_back(d);
    }
    for (int64_t r = n_rows - 1; r >= 0; r--) {
        const mx::array k = row_at(x.k, r), beta = as_factor(row_at(x.beta, r));
        d_state = mx::add(
            d_state, mx::multiply(mx::expand_dims(row_at(x.q, r), 3), mx::expand_dims(row_at(d_out, r), 2)));
        slopes.push_back(d_state);
        const mx::array error = mx::matmul(mx::expand_dims(k, 2), d_state); /* [n, heads, 1, dv] */
        errors.push_back(error);
        const mx::array owed = mx::multiply(mx::expand_dims(k, 3), mx::multiply(error, beta));
        const mx::array rest = x.additive ? d_state : mx::subtract(d_state, owed);
        d_state = mx::multiply(rest, as_factor(row_at(x.decay, r)));
    }
    std::reverse(slopes.begin(), slopes.end());
    std::reverse(errors.begin(), errors.end());
    const mx::array s = mx::stack(before, 1), next = mx::stack(after, 1), delta = mx::stack(deltas, 1),
                    slope = mx::stack(slopes, 1), error = mx::stack(errors, 1);
    const bool by_channel = x.decay.ndim() == 4;
    const mx::array decay = by_channel ? mx::expand_dims(x.decay, 4)
                                       : mx::expand_dims(x.decay, std::vector<int>{3, 4}),
                    beta = mx::expand_dims(x.beta, std::vector<int>{3, 4}),
                    d_row = mx::expand_dims(d_out, 3); /* [n, rows, heads, 1, dv] */
    const auto rows_of = [](const mx::array &y) { return mx::squeeze(y, 3); };
    /* x [.., 1, dv] times the transpose of states: [.., 1, dk] */
    const auto back = [](const mx::array &y, const mx::array &states) {
        return mx::matmul(y, mx::swapaxes(states, 3, 4));
    };
    const std::vector<int> last = {3, 4};
    const mx::array faded = mx::multiply(decay, s), dv = mx::multiply(beta, error);
    mx::array dk = back(delta, slope), held = mx::expand_dims(x.v, 3), rest = slope;
    if (!x.additive) {
        dk = mx::subtract(dk, back(dv, faded));
        held = mx::subtract(held, mx::matmul(mx::expand_dims(x.k, 3), faded));
        rest = mx::subtract(slope, mx::multiply(mx::expand_dims(x.k, 4), dv));
    }
    const mx::array d_beta = mx::sum(mx::multiply(error, held), last);
    const mx::array d_g = by_channel ? mx::reshape(mx::sum(mx::multiply(rest, s), std::vector<int>{4}),
                                                   {x.v.shape(0), dim(n_rows), -1})
                                     : mx::sum(mx::multiply(rest, faded), last);
    return {rows_of(back(d_row, next)), rows_of(dk), rows_of(dv), d_g, d_beta};
}

/* Heads that share a key head add up: [n, rows, key_heads * dk]. */
static mx::array key_heads_of(const mx::array &x, int key_heads)
{
    const mx::array all = mx::reshape(x, {x.shape(0), x.shape(1), key_heads, -1, x.shape(3)});
    return mx::reshape(mx::sum(all, 3), {x.shape(0), x.shape(1), -1});
}

/* Of one batch [n, n_rows, ..]: dq, dk, dv, dg, dbeta of a row one behind the other. Each chunk is computed
 * before the next is looked at, so that the states of one are held at a time. */
static mx::array delta_grad(const call &c, const batch &b)
{
    const int key_heads = c.in(0).shape(1), dk = c.in(0).shape(2), heads = c.in(2).shape(1),
              dv = c.in(2).shape(2);
    const int64_t n_chunks = (b.n_rows + CHUNK - 1) / CHUNK;
    c.room((n_chunks + 8 * CHUNK) * b.n * heads * dk * dv);
    const delta x = delta_of(c, b);
    const mx::array d_out = rows_of_batch(c.in(6), b);
    std::vector<mx::array> begins{mx::zeros({dim(b.n), heads, dk, dv}, mx::float32)}, parts;
    mx::array ignored(0.0f);
    for (int64_t i = 0; i + 1 < n_chunks; i++) {
        mx::array state = begins.back();
        for (int64_t r = i * CHUNK; r < (i + 1) * CHUNK; r++) state = advanced(x, r, state, &ignored);
        state.eval();
        begins.push_back(state);
    }
    mx::array d_state = mx::zeros({dim(b.n), heads, dk, dv}, mx::float32);
    for (int64_t i = n_chunks - 1; i >= 0; i--) {
        const int64_t from = i * CHUNK, to = std::min(b.n_rows, from + CHUNK);
        const delta_gradients g = chunk_back(chunk_of(x, from, to), rows_between(d_out, from, to),
                                             begins[static_cast<size_t>(i)], d_state);
        const mx::array rows =
            mx::concatenate({key_heads_of(g.q, key_heads), key_heads_of(g.k, key_heads),
                             mx::reshape(g.v, {dim(b.n), dim(to - from), -1}), g.g, g.beta},
                            2);
        mx::eval(rows, d_state);
        parts.push_back(rows);
        begins.pop_back();
    }
    std::reverse(parts.begin(), parts.end());
    return mx::concatenate(std::move(parts), 1);
}

mx::array prim_GATED_DELTA_GRAD(const call &c)
{
    std::vector<mx::array> parts;
    for (const batch &b : batches_of(c.ints(5), any)) parts.push_back(delta_grad(c, b));
    return joined(c, std::move(parts));
}

} // namespace qn
