/* State as arrays of MLX. An update takes the array that was and gives the one that will be; MLX writes into
 * the same memory when nobody else holds the old one, so the state is its only holder here, and what is read
 * of it is gathered (a copy), never a view. */
#include "device/mlx/state.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>

#include "device/mlx/shim_parts.hpp"

namespace qn
{

/* Room for so many units is made at least: a page is small. */
constexpr int64_t FIRST_UNITS = 8;

static size_t unit_bytes(const qn_mlx_state &s)
{
    const int64_t token = s.kv_heads * (s.head_dim + s.v_dim) * static_cast<int64_t>(mx::size_of(s.dtype));
    return static_cast<size_t>(s.n_layers * (s.is_pages ? s.page_tokens * token : s.slot_floats * 4));
}

static std::vector<std::vector<mx::array> *> parts_of(qn_mlx_state &s)
{
    if (!s.is_pages) return {&s.slots};
    if (s.v_dim == 0) return {&s.keys};
    return {&s.keys, &s.values};
}

/* So many units of a part: zeros without memory of their own. */
static mx::array empty_units(const qn_mlx_state &s, bool values, int64_t n)
{
    const int64_t pages[] = {n * s.page_tokens, s.kv_heads, values ? s.v_dim : s.head_dim};
    const int64_t slots[] = {n, s.slot_floats};
    return mx::broadcast_to(mx::array(0, s.dtype), s.is_pages ? shape_of(3, pages) : shape_of(2, slots));
}

static void check_unit(const qn_mlx_state &s, int64_t unit)
{
    if (unit < 0 || unit >= s.n_units)
        throw failure(QN_E_INTERNAL, "a state of " + std::to_string(s.n_units) + " units has none at " +
                                         std::to_string(unit));
}

static int64_t n_used(const qn_mlx_state &s)
{
    return s.capacity - std::count(s.unit_at.begin(), s.unit_at.end(), -1);
}

/* Twice as many, of which those that nobody has take a quarter of what is left at most: the rest is for units
 * that are handed out meanwhile. */
static void grow(qn_mlx_state &s, int64_t n_needed, size_t budget_bytes)
{
    const int64_t left = static_cast<int64_t>(budget_bytes / unit_bytes(s)),
                  spare = std::min(left / 4, s.n_units),
                  wish = std::min(
                      {s.n_units, n_needed + spare, std::max({n_needed, 2 * s.capacity, FIRST_UNITS})});
    for (auto *part : parts_of(s)) {
        const mx::array more = empty_units(s, part == &s.values, wish - s.capacity);
        for (mx::array &a : *part) a = mx::concatenate({a, more}, 0);
    }
    s.capacity = wish;
    s.unit_at.resize(static_cast<size_t>(wish), -1);
}

/* The longest range of free places: where it begins, and its length. */
static std::pair<int64_t, int64_t> longest_range(const qn_mlx_state &s)
{
    int64_t best = 0, length = 0;
    for (int64_t i = 0; i < s.capacity;) {
        int64_t end = i;
        while (end < s.capacity && s.unit_at[end] < 0) end++;
        if (end - i > length) {
            best = i;
            length = end - i;
        }
        i = end + 1;
    }
    return {best, length};
}

/* Where n units may begin: the longest range; in its middle if what ends before it may grow. If all ranges are too
 * short, and that costs little, the pool grows. */
static int32_t new_place(qn_mlx_state &s, int64_t n, size_t budget_bytes)
{
    auto [best, length] = longest_range(s);
    if (length < n && s.capacity + n <= s.n_units &&
        static_cast<int64_t>(budget_bytes / unit_bytes(s)) > 8 * (s.capacity + n)) {
        grow(s, s.capacity + n, budget_bytes);
        std::tie(best, length) = longest_range(s);
    }
    return static_cast<int32_t>(best > 0 && length > 2 * n ? best + (length - n) / 2 : best);
}

static void leave_place(qn_mlx_state &s, int32_t unit)
{
    if (s.place[unit] >= 0) s.unit_at[s.place[unit]] = -1;
    s.place[unit] = -1;
}

void reach_behind(qn_mlx_state &s, const std::vector<int32_t> &units, int64_t n_held, bool has_before,
                  size_t budget_bytes)
{
    std::vector<int32_t> wanted;
    for (size_t i = static_cast<size_t>(n_held); i < units.size(); i++) {
        check_unit(s, units[i]);
        leave_place(s, units[i]);
    }
    int64_t before = -1;
    for (size_t i = 0; i < units.size(); i++) {
        const int32_t u = units[i];
        const bool is_before = i == 0 && has_before;
        if (is_before && (u < 0 || u >= s.n_units || s.place[u] < 0)) continue;
        check_unit(s, u);
        if (s.place[u] < 0)
            wanted.push_back(u);
        else if (wanted.empty())
            before = s.place[u];
    }
    const int64_t n_needed = n_used(s) + static_cast<int64_t>(wanted.size());
    if (n_needed > s.capacity) grow(s, n_needed, budget_bytes);
    int64_t left = static_cast<int64_t>(wanted.size());
    for (const int32_t u : wanted) {
        if (s.place[u] >= 0) continue; /* it was named twice */
        if (before + 1 == s.capacity && s.capacity < s.n_units && budget_bytes / unit_bytes(s) > 2)
            grow(s, s.capacity + 1, budget_bytes);
        const bool is_free = before >= 0 && before + 1 < s.capacity && s.unit_at[before + 1] < 0;
        before = is_free ? before + 1 : new_place(s, left, budget_bytes);
        s.place[u] = static_cast<int32_t>(before);
        s.unit_at[before] = u;
        left--;
    }
}

void reach(qn_mlx_state &s, const std::vector<int32_t> &units, size_t budget_bytes)
{
    for (const int32_t u : units) reach_behind(s, {u}, 1, false, budget_bytes);
}

std::vector<int32_t> places_of_units(const qn_mlx_state &s, const std::vector<int32_t> &units)
{
    std::vector<int32_t> places;
    places.reserve(units.size());
    for (const int32_t u : units) {
        check_unit(s, u);
        if (s.place[u] < 0) throw failure(QN_E_INTERNAL, "a unit of the state that was never written");
        places.push_back(s.place[u]);
    }
    return places;
}

/* ---- the table's functions ---------------------------------------------------------------------------- */

qn_status state_new(int is_pages, int64_t n_layers, int64_t n_units, int64_t page_tokens, int64_t kv_heads,
                    int64_t head_dim, int64_t v_dim, qn_dtype dtype, int64_t slot_floats, qn_mlx_state **out)
{
    return guarded([&] {
        auto s = std::make_unique<qn_mlx_state>(
            qn_mlx_state{is_pages != 0,
                         n_layers,
                         n_units,
                         page_tokens,
                         kv_heads,
                         head_dim,
                         v_dim,
                         slot_floats,
                         is_pages ? dtype_of(dtype) : mx::float32,
                         0,
                         std::vector<int32_t>(static_cast<size_t>(n_units), -1),
                         {},
                         {},
                         {},
                         {},
                         nullptr});
        for (auto *part : parts_of(*s))
            part->assign(static_cast<size_t>(n_layers), empty_units(*s, part == &s->values, 0));
        *out = s.release();
    });
}

void state_free(qn_mlx_state *s)
{
    delete s;
}

size_t state_bytes(const qn_mlx_state *s)
{
    return static_cast<size_t>(s->capacity) * unit_bytes(*s);
}

size_t state_spare(const qn_mlx_state *s)
{
    return static_cast<size_t>(s->capacity - n_used(*s)) * unit_bytes(*s);
}

/* What lies at places of one layer, a copy: [n, ..] of all that a unit has there. */
static mx::array units_of(const qn_mlx_state &s, const mx::array &a, const std::vector<int32_t> &places)
{
    const mx::array units = mx::reshape(a, {static_cast<mx::ShapeElem>(s.capacity), -1});
    return mx::take(units, numbers(places, {static_cast<mx::ShapeElem>(places.size())}), 0);
}

static mx::Shape shape_of_units(const qn_mlx_state &s, const mx::array &a, int64_t n)
{
    mx::Shape shape = a.shape();
    shape[0] = static_cast<mx::ShapeElem>(n * s.rows_per_unit());
    return shape;
}

static void put_unit(const qn_mlx_state &s, mx::array &a, int32_t place, const mx::array &x)
{
    mx::Shape begin(a.ndim(), 0), end = a.shape();
    const mx::ShapeElem rows = static_cast<mx::ShapeElem>(s.rows_per_unit());
    begin[0] = place * rows;
    end[0] = (place + 1) * rows;
    mx::array next =
        mx::slice_update(a, mx::reshape(x, shape_of_units(s, a, 1)), std::move(begin), std::move(end));
    a = std::move(next);
}

/* Evaluated one layer after the other: what comes in is a copy then, and nothing of it waits. */
static void set_unit(qn_mlx_state &s, int32_t unit,
                     const std::function<mx::array(const mx::array &of_layer)> &value)
{
    for (auto *part : parts_of(s))
        for (mx::array &a : *part) {
            mx::array x = value(a);
            x.eval();
            put_unit(s, a, s.place[unit], x);
            a.eval();
        }
}

qn_status state_drop(qn_mlx_state *s, int32_t unit, int poison)
{
    return guarded([&] {
        check_unit(*s, unit);
        if (s->place[unit] < 0) return;
        if (poison)
            set_unit(*s, unit, [&](const mx::array &a) {
                return mx::full(shape_of_units(*s, a, 1), std::numeric_limits<float>::quiet_NaN(), a.dtype());
            });
        leave_place(*s, unit);
    });
}

/* A layer at a time, so that there is one more of them at most. */
qn_status state_shrink(qn_mlx_state *s)
{
    return guarded([&] {
        std::vector<int32_t> kept, unit_at;
        for (int32_t p = 0; p < s->capacity; p++)
            if (s->unit_at[p] >= 0) {
                kept.push_back(p);
                unit_at.push_back(s->unit_at[p]);
            }
        const int64_t n = static_cast<int64_t>(kept.size());
        for (auto *part : parts_of(*s))
            for (mx::array &a : *part) {
                mx::array fewer = n ? mx::reshape(units_of(*s, a, kept), shape_of_units(*s, a, n))
                                    : empty_units(*s, part == &s->values, 0);
                fewer.eval();
                a = std::move(fewer);
            }
        for (int32_t p = 0; p < n; p++) s->place[unit_at[p]] = p;
        s->unit_at = std::move(unit_at);
        s->capacity = n;
    });
}

qn_status state_copy(qn_mlx_state *s, int32_t from, int32_t to, size_t budget_bytes)
{
    return guarded([&] {
        reach(*s, {from, to}, budget_bytes);
        set_unit(*s, to, [&](const mx::array &a) { return units_of(*s, a, {s->place[from]}); });
    });
}

qn_status state_read(const qn_mlx_state *base, int32_t unit, void *bytes, size_t size_bytes)
{
    return guarded([&] {
        qn_mlx_state &s = *const_cast<qn_mlx_state *>(base); /* evaluation changes no number */
        if (size_bytes != unit_bytes(s)) throw failure(QN_E_INTERNAL, "a unit has another size");
        check_unit(s, unit);
        char *at = static_cast<char *>(bytes);
        if (s.place[unit] < 0) {
            std::memset(at, 0, size_bytes);
            return;
        }
        for (auto *part : parts_of(s))
            for (const mx::array &a : *part) {
                mx::array x = units_of(s, a, {s.place[unit]});
                x.eval();
                copy_to_host(x, at, x.nbytes());
                at += x.nbytes();
            }
    });
}

qn_status state_write(qn_mlx_state *s, int32_t unit, const void *bytes, size_t size_bytes,
                      size_t budget_bytes)
{
    return guarded([&] {
        if (size_bytes != unit_bytes(*s)) throw failure(QN_E_INTERNAL, "a unit has another size");
        reach(*s, {unit}, budget_bytes);
        const uint8_t *at = static_cast<const uint8_t *>(bytes);
        set_unit(*s, unit, [&](const mx::array &a) {
            const size_t n = a.nbytes() / static_cast<size_t>(s->capacity);
            const mx::array raw(at, mx::Shape{static_cast<mx::ShapeElem>(n)}, mx::uint8);
            at += n;
            return mx::view(raw, a.dtype());
        });
    });
}

/* ---- rows of sequences -------------------------------------------------------------------------------- */

mx::array numbers(const std::vector<int32_t> &x, mx::Shape shape)
{
    return mx::array(x.data(), std::move(shape), mx::int32);
}

std::vector<batch> batches_of(const std::vector<int32_t> &row_begin,
                              const std::function<bool(const batch &)> &together)
{
    std::vector<batch> all;
    for (size_t i = 0; i + 1 < row_begin.size(); i++) {
        const int64_t n_rows = row_begin[i + 1] - row_begin[i];
        if (n_rows <= 0) continue;
        if (!all.empty() && all.back().n_rows == n_rows &&
            all.back().sequence + all.back().n == static_cast<int64_t>(i)) {
            batch wider = all.back();
            wider.n++;
            if (together(wider)) {
                all.back() = wider;
                continue;
            }
        }
        all.push_back({static_cast<int64_t>(i), 1, row_begin[i], n_rows});
    }
    return all;
}

mx::array rows_of_batch(const mx::array &x, const batch &b)
{
    mx::Shape begin(x.ndim(), 0), end = x.shape(), shape = x.shape();
    begin[0] = static_cast<mx::ShapeElem>(b.row);
    end[0] = static_cast<mx::ShapeElem>(b.row + b.n * b.n_rows);
    shape[0] = static_cast<mx::ShapeElem>(b.n_rows);
    shape.insert(shape.begin(), static_cast<mx::ShapeElem>(b.n));
    return mx::reshape(mx::slice(x, std::move(begin), std::move(end)), std::move(shape));
}

mx::array joined(const call &c, std::vector<mx::array> parts)
{
    if (parts.empty()) return mx::zeros(c.shape, c.dtype);
    for (mx::array &p : parts) {
        mx::Shape rows = c.shape;
        rows[0] = p.shape(0) * p.shape(1);
        p = mx::reshape(p, std::move(rows));
    }
    return parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 0);
}

} // namespace qn
