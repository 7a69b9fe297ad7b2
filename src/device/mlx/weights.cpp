/* Weights: built of what C hands over, and multiplied. Quantised ones stay as they are and go through MLX's
 * own products; 16-bit ones become f32 as they are multiplied, a piece at a time where they are large, since
 * MLX would round a product of 16-bit activations to 16 bits. Groups of 16 codes, which MLX has not, become
 * groups of 32 with nothing in the second half, and so do 16 columns of what they are multiplied by. */
#include "device/mlx/weights.hpp"

#include "device/mlx/shim_parts.hpp"

namespace qn
{

/* Elements of a 16-bit weight that are f32 at a time: 32 MiB. */
static constexpr int64_t piece_elements = int64_t(1) << 23;

static const char *mode_of(const qn_mlx_weight &w)
{
    switch (w.kind) {
    case QN_MLX_MXFP4:
        return "mxfp4";
    case QN_MLX_NVFP4:
        return "nvfp4";
    default:
        return "affine";
    }
}

static bool is_spread(const qn_mlx_weight &w)
{
    return w.kind == QN_MLX_AFFINE && w.group == 16;
}

static int group_of(const qn_mlx_weight &w)
{
    return is_spread(w) ? 32 : w.group;
}

/* Of each n elements of the last dimension 2 n, zeros behind them; and the other way. */
static mx::array spread(const mx::array &a, int n)
{
    mx::Shape whole = a.shape(), groups = whole;
    groups.back() /= n;
    groups.push_back(n);
    whole.back() *= 2;
    const mx::array apart = mx::reshape(a, std::move(groups));
    return mx::reshape(mx::concatenate({apart, mx::zeros_like(apart)}, -1), std::move(whole));
}

static mx::array gathered_in(const mx::array &a, int n)
{
    mx::Shape whole = a.shape(), groups = whole;
    groups.back() /= 2 * n;
    groups.push_back(2 * n);
    whole.back() /= 2;
    const mx::array apart = mx::reshape(a, std::move(groups));
    return mx::reshape(between(apart, static_cast<int>(apart.ndim()) - 1, 0, n), std::move(whole));
}

/* ---- building ----------------------------------------------------------------------------------------- */

static void check_spec(const qn_mlx_weight_spec &s)
{
    const bool float_type = s.dtype == QN_DTYPE_F16 || s.dtype == QN_DTYPE_BF16 || s.dtype == QN_DTYPE_F32;
    bool good = s.n_parts > 0 && s.n_out > 0 && s.n_in > 0 && s.data;
    switch (s.kind) {
    case QN_MLX_PLAIN:
        good = good && float_type;
        break;
    case QN_MLX_AFFINE:
        good = good && float_type && s.scales && s.biases && s.bits >= 2 && s.bits <= 8 && s.bits != 7 &&
               ((s.group == 16 && s.bits % 2 == 0) || s.group == 32 || s.group == 64 || s.group == 128);
        break;
    case QN_MLX_MXFP4:
        good = good && s.scales && s.bits == 4 && s.group == 32;
        break;
    case QN_MLX_NVFP4:
        good = good && s.scales && s.bits == 4 && s.group == 16;
        break;
    }
    if (good && s.kind != QN_MLX_PLAIN) good = s.n_in % s.group == 0 && s.n_in % 32 == 0;
    if (!good)
        throw failure(QN_E_ARG, "a weight of " + std::to_string(s.n_out) + " x " + std::to_string(s.n_in) +
                                    " with " + std::to_string(s.bits) + " bits in groups of " +
                                    std::to_string(s.group));
}

/* Bytes of any alignment, copied and there when it returns: what they were copied from may go. */
static mx::array copied(const void *data, const qn_mlx_weight_spec &s, int64_t columns, mx::Dtype dtype)
{
    const int64_t dims[3] = {s.n_parts, s.n_out, columns * mx::size_of(dtype)};
    const int first = s.n_parts == 1;
    const mx::array bytes(static_cast<const uint8_t *>(data), shape_of(3 - first, dims + first), mx::uint8);
    mx::array a = dtype == mx::uint8 ? bytes : mx::view(bytes, dtype);
    a.eval();
    return a;
}

qn_status weight_new(const qn_mlx_weight_spec *spec, qn_mlx_weight **out)
{
    return guarded([&] {
        const qn_mlx_weight_spec &s = *spec;
        check_spec(s);
        if (s.kind == QN_MLX_PLAIN) {
            *out = new qn_mlx_weight{
                s.kind, s.n_parts, s.n_out, s.n_in, 0, 0, copied(s.data, s, s.n_in, dtype_of(s.dtype)),
                {},     {},        nullptr};
            return;
        }
        const mx::Dtype scale = s.kind == QN_MLX_AFFINE ? dtype_of(s.dtype) : mx::uint8;
        qn_mlx_weight w{s.kind,
                        s.n_parts,
                        s.n_out,
                        s.n_in,
                        s.bits,
                        s.group,
                        copied(s.data, s, s.n_in / 32 * s.bits, mx::uint32),
                        copied(s.scales, s, s.n_in / s.group, scale),
                        {},
                        std::make_shared<std::vector<mx::array>>()};
        if (s.kind == QN_MLX_AFFINE) w.biases = copied(s.biases, s, s.n_in / s.group, scale);
        if (is_spread(w)) {
            w.data = spread(w.data, 16 * s.bits / 32);
            w.data.eval();
        }
        *out = new qn_mlx_weight(std::move(w));
    });
}

size_t weight_bytes(const qn_mlx_weight *w)
{
    size_t bytes = w->data.nbytes();
    if (w->scales) bytes += w->scales->nbytes();
    if (w->biases) bytes += w->biases->nbytes();
    return bytes;
}

qn_dtype weight_type(const qn_mlx_weight *w)
{
    const mx::Dtype type = w->kind == QN_MLX_PLAIN           ? w->data.dtype()
                           : w->scales->dtype() == mx::uint8 ? mx::bfloat16
                                                             : w->scales->dtype();
    return type == mx::bfloat16 ? QN_DTYPE_BF16 : type == mx::float16 ? QN_DTYPE_F16 : QN_DTYPE_F32;
}

int weight_is_quantised(const qn_mlx_weight *w)
{
    return w->kind != QN_MLX_PLAIN;
}

void weight_free(qn_mlx_weight *w)
{
    delete w;
}

/* ---- looking ------------------------------------------------------------------------------------------ */

qn_mlx_weight operand_weight(const call &c, int i)
{
    if (c.weight(i)) return *c.weight(i);
    const mx::array &a = c.in(i);
    const int n = static_cast<int>(a.ndim());
    const bool parts = n > 2 && a.shape(0) != 1;
    return {QN_MLX_PLAIN,
            n > 2 ? a.shape(0) : 1,
            a.shape(n - 2),
            a.shape(n - 1),
            0,
            0,
            n > 2 && !parts ? mx::squeeze(a, 0) : a,
            {},
            {},
            nullptr};
}

mx::array between(const mx::array &a, int axis, int64_t begin, int64_t end)
{
    if (begin == 0 && end == a.shape(axis)) return a;
    mx::Shape from(a.ndim(), 0), to = a.shape();
    from[axis] = static_cast<mx::ShapeElem>(begin);
    to[axis] = static_cast<mx::ShapeElem>(end);
    return mx::slice(a, std::move(from), std::move(to));
}

mx::array after(const mx::array &a, const mx::array &b)
{
    return mx::depends({a}, {b})[0];
}

/* The same range of all arrays of a weight, along a dimension that comes before the columns. */
static qn_mlx_weight range_of(const qn_mlx_weight &w, int axis, int64_t begin, int64_t end)
{
    qn_mlx_weight r = w;
    r.data = between(w.data, axis, begin, end);
    if (w.scales) r.scales = between(*w.scales, axis, begin, end);
    if (w.biases) r.biases = between(*w.biases, axis, begin, end);
    r.narrow = nullptr;
    return r;
}

qn_mlx_weight parts_of(const qn_mlx_weight &w, int64_t begin, int64_t end)
{
    if (begin == 0 && end == w.n_parts) return w;
    qn_mlx_weight r = range_of(w, 0, begin, end);
    r.n_parts = end - begin;
    if (r.n_parts != 1) return r;
    r.data = mx::squeeze(r.data, 0);
    if (r.scales) r.scales = mx::squeeze(*r.scales, 0);
    if (r.biases) r.biases = mx::squeeze(*r.biases, 0);
    return r;
}

qn_mlx_weight rows_between(const qn_mlx_weight &w, int64_t begin, int64_t end)
{
    qn_mlx_weight r = range_of(w, w.n_parts > 1, begin, end);
    r.n_out = end - begin;
    return r;
}

static mx::array wide(const mx::array &a)
{
    return mx::astype(a, mx::float32);
}

/* MLX rounds to the type of scales unless these are wide. */
mx::array dequantized(const qn_mlx_weight &w, mx::Dtype dtype)
{
    if (w.kind == QN_MLX_PLAIN) return mx::astype(w.data, dtype);
    if (w.kind == QN_MLX_AFFINE) {
        const mx::array a =
            mx::dequantize(w.data, wide(*w.scales), wide(*w.biases), group_of(w), w.bits, mode_of(w));
        return mx::astype(is_spread(w) ? gathered_in(a, 16) : a, dtype);
    }
    return mx::dequantize(w.data, *w.scales, std::nullopt, w.group, w.bits, mode_of(w), std::nullopt, dtype);
}

mx::array rows_of(const qn_mlx_weight &w, const mx::array &ids, mx::Dtype dtype)
{
    if (w.n_parts != 1) throw failure(QN_E_UNSUPPORTED, "rows of several matrices");
    const int64_t dims[2] = {0, w.n_in};
    if (ids.size() == 0) return mx::zeros(shape_of(2, dims), dtype);
    qn_mlx_weight r = w;
    r.data = mx::take(w.data, ids, 0);
    if (w.scales) r.scales = mx::take(*w.scales, ids, 0);
    if (w.biases) r.biases = mx::take(*w.biases, ids, 0);
    return dequantized(r, dtype);
}

/* ---- products ----------------------------------------------------------------------------------------- */

/* With a matrix whose elements become f32 here, a piece of its rows at a time: one after the other, or all
 * would be there together. On the CPU MLX takes memory long before it computes; on a GPU few steps run ahead,
 * and waiting costs. */
static mx::array narrow_product(const mx::array &x, const qn_mlx_weight &w, bool transpose)
{
    const int64_t each = piece_elements / w.n_in > 0 ? piece_elements / w.n_in : 1;
    std::vector<mx::array> parts;
    for (int64_t row = 0; row < w.n_out; row += each) {
        const int64_t end = row + each < w.n_out ? row + each : w.n_out;
        mx::array piece = between(w.data, 0, row, end);
        if (!parts.empty()) piece = after(piece, parts.back());
        piece = wide(piece);
        const mx::array y = transpose
                                ? mx::matmul(x, mx::swapaxes(piece, 0, 1))
                                : mx::matmul(between(x, static_cast<int>(x.ndim()) - 1, row, end), piece);
        if (transpose || parts.empty())
            parts.push_back(y);
        else
            parts[0] = mx::add(parts[0], y);
        if (each < w.n_out && !on_gpu()) parts.back().eval();
    }
    return parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), -1);
}

/* Scales and biases for rows of that type: MLX computes in the widest of the three. */
static std::pair<mx::array, std::optional<mx::array>> scales_for(const qn_mlx_weight &w, mx::Dtype type)
{
    if (w.kind != QN_MLX_AFFINE || type == mx::float32 || w.scales->dtype() == type)
        return {*w.scales, w.biases};
    if (!w.narrow) return {mx::astype(*w.scales, type), mx::astype(*w.biases, type)}; /* a part of a weight */
    if (w.narrow->empty() || w.narrow->at(0).dtype() != type) {
        *w.narrow = {mx::astype(*w.scales, type), mx::astype(*w.biases, type)};
        mx::eval(*w.narrow);
    }
    return {w.narrow->at(0), w.narrow->at(1)};
}

bool multiplies_narrow(const qn_mlx_weight &w, mx::Dtype type)
{
    return w.kind != QN_MLX_PLAIN || w.data.dtype() == type;
}

mx::array multiplied(const mx::array &x, const qn_mlx_weight &w, bool transpose)
{
    if (x.size() == 0) { /* MLX's quantised product divides by the number of rows */
        mx::Shape shape = x.shape();
        shape[shape.size() - 1] = static_cast<mx::ShapeElem>(transpose ? w.n_out : w.n_in);
        return mx::zeros(shape);
    }
    if (w.kind != QN_MLX_PLAIN) {
        const auto [scales, biases] = scales_for(w, x.dtype());
        const mx::array y = mx::quantized_matmul(is_spread(w) && transpose ? spread(x, 16) : x, w.data,
                                                 scales, biases, transpose, group_of(w), w.bits, mode_of(w));
        return is_spread(w) && !transpose ? gathered_in(y, 16) : y;
    }
    if (w.data.dtype() != x.dtype()) return narrow_product(x, w, transpose);
    return mx::matmul(x, transpose ? mx::swapaxes(w.data, 0, 1) : w.data);
}

/* ---- products with chosen matrices -------------------------------------------------------------------- */

/* MLX has got an argument more in 0.32: before the last one. */
static mx::array gather_quantized(const mx::array &x, const qn_mlx_weight &w, const mx::array &ids,
                                  bool transpose, bool rising)
{
    const auto lead = [&](const mx::array &a) { return w.n_parts == 1 ? mx::expand_dims(a, 0) : a; };
    const auto [own_scales, own_biases] = scales_for(w, x.dtype());
    const mx::array data = lead(w.data), scales = lead(own_scales),
                    in = is_spread(w) && transpose ? spread(x, 16) : x;
    const std::optional<mx::array> none,
        biases = own_biases ? std::optional<mx::array>(lead(*own_biases)) : std::nullopt;
    const auto call = [&](auto sorted) {
        if constexpr (requires {
                          mx::gather_qmm(in, data, scales, biases, none, ids, transpose, w.group, w.bits,
                                         mode_of(w), sorted);
                      })
            return mx::gather_qmm(in, data, scales, biases, none, ids, transpose, group_of(w), w.bits,
                                  mode_of(w), sorted);
        else
            return mx::gather_qmm(in, data, scales, biases, none, ids, transpose, group_of(w), w.bits,
                                  mode_of(w), none, sorted);
    };
    const mx::array y = call(rising);
    return is_spread(w) && !transpose ? gathered_in(y, 16) : y;
}

mx::array gathered(const call &c, const mx::array &x, const qn_mlx_weight &w, const mx::array &ids,
                   bool transpose, bool sorted)
{
    if (w.kind != QN_MLX_PLAIN) return gather_quantized(x, w, ids, transpose, sorted);
    mx::array data = w.n_parts == 1 ? mx::expand_dims(w.data, 0) : w.data;
    if (on_cuda())
        data = mx::contiguous(data); /* MLX's CUDA kernels take a matrix to begin where the one before ends */
    if (x.dtype() != mx::float32 && !on_gpu()) /* the CPU's takes nothing else */
        return mx::astype(gathered(c, wide(x), w, ids, transpose, sorted), x.dtype());
    if (data.dtype() == x.dtype())
        return mx::gather_mm(x, transpose ? mx::swapaxes(data, 1, 2) : data, std::nullopt, ids, sorted);
    /* The chosen matrices, or all of them, whichever are fewer, become f32. */
    const int64_t chosen = static_cast<int64_t>(ids.size());
    if (chosen < w.n_parts) {
        c.room(chosen * w.n_out * w.n_in);
        const mx::array few = wide(mx::take(data, ids, 0));
        return mx::matmul(x, transpose ? mx::swapaxes(few, -1, -2) : few);
    }
    c.room(w.n_parts * w.n_out * w.n_in);
    const mx::array all = wide(data);
    return mx::gather_mm(x, transpose ? mx::swapaxes(all, 1, 2) : all, std::nullopt, ids, sorted);
}

} // namespace qn
