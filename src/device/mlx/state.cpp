/* State as arrays of MLX. An update takes the array that was and gives the one that will be; MLX writes into
 * the same memory when nobody else holds the old one, so the state is its only holder here, and what is read
 * of it is gathered (a copy), never a view. */
#include "device/mlx/state.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

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
    const int64_t pages[] = {n, s.page_tokens, s.kv_heads, values ? s.v_dim : s.head_dim};
    const int64_t slots[] = {n, s.slot_floats};
    return mx::broadcast_to(mx::array(0, s.dtype), s.is_pages ? shape_of(4, pages) : shape_of(2, slots));
}

static void check_unit(const qn_mlx_state &s, int64_t unit)
{
    if (unit < 0 || unit >= s.n_units)
        throw failure(QN_E_INTERNAL, "a state of " + std::to_string(s.n_units) + " units has none at " +
                                         std::to_string(unit));
}

static int64_t n_used(const qn_mlx_state &s)
{
    return s.capacity - static_cast<int64_t>(s.free.size());
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
    for (int64_t i = wish; i-- > s.capacity;) s.free.push_back(static_cast<int32_t>(i));
    s.capacity = wish;
}

void reach(qn_mlx_state &s, const std::vector<int32_t> &units, size_t budget_bytes)
{
    std::vector<int32_t> wanted;
    for (const int32_t u : units) {
        check_unit(s, u);
        if (s.place[u] < 0) wanted.push_back(u);
    }
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    const int64_t n_needed = n_used(s) + static_cast<int64_t>(wanted.size());
    if (n_needed > s.capacity) grow(s, n_needed, budget_bytes);
    for (const int32_t u : wanted) {
        s.place[u] = s.free.back();
        s.free.pop_back();
    }
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
                         {}});
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
    return s->free.size() * unit_bytes(*s);
}

/* What lies at a place of one layer, a copy: [1, ..]. */
static mx::array unit_of(const mx::array &a, int32_t place)
{
    return mx::take(a, numbers({place}, {1}), 0);
}

static void put_unit(mx::array &a, int32_t place, const mx::array &x)
{
    mx::Shape begin(a.ndim(), 0), end = a.shape();
    begin[0] = place;
    end[0] = place + 1;
    mx::array next = mx::slice_update(a, x, std::move(begin), std::move(end));
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
            put_unit(a, s.place[unit], x);
            a.eval();
        }
}

qn_status state_drop(qn_mlx_state *s, int32_t unit, int poison)
{
    return guarded([&] {
        check_unit(*s, unit);
        if (s->place[unit] < 0) return;
        if (poison)
            set_unit(*s, unit, [](const mx::array &a) {
                mx::Shape one = a.shape();
                one[0] = 1;
                return mx::full(std::move(one), std::numeric_limits<float>::quiet_NaN(), a.dtype());
            });
        s->free.push_back(s->place[unit]);
        s->place[unit] = -1;
    });
}

/* A layer at a time, so that there is one more of them at most. */
qn_status state_shrink(qn_mlx_state *s)
{
    return guarded([&] {
        std::vector<int32_t> kept;
        for (const int32_t p : s->place)
            if (p >= 0) kept.push_back(p);
        const mx::ShapeElem n = static_cast<mx::ShapeElem>(kept.size());
        for (auto *part : parts_of(*s))
            for (mx::array &a : *part) {
                mx::array fewer =
                    n ? mx::take(a, numbers(kept, {n}), 0) : empty_units(*s, part == &s->values, 0);
                fewer.eval();
                a = std::move(fewer);
            }
        int32_t next = 0;
        for (int32_t &p : s->place)
            if (p >= 0) p = next++;
        s->free.clear();
        s->capacity = n;
    });
}

qn_status state_copy(qn_mlx_state *s, int32_t from, int32_t to, size_t budget_bytes)
{
    return guarded([&] {
        reach(*s, {from, to}, budget_bytes);
        set_unit(*s, to, [&](const mx::array &a) { return unit_of(a, s->place[from]); });
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
                mx::array x = unit_of(a, s.place[unit]);
                x.eval();
                std::memcpy(at, x.data<char>(), x.nbytes());
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
            mx::Shape one = a.shape();
            one[0] = 1;
            const size_t n = a.nbytes() / static_cast<size_t>(a.shape(0));
            const mx::array raw(at, mx::Shape{static_cast<mx::ShapeElem>(n)}, mx::uint8);
            at += n;
            return mx::reshape(mx::view(raw, a.dtype()), std::move(one));
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
