/* RANDOM: the bits of device/cpu/random.c, Philox4x32-10, of all blocks at once. */
#include "device/mlx/shim.hpp"

#include <limits>

namespace qn
{

/* Both halves of x times a constant. */
struct halves {
    mx::array high, low;
};

static halves product_of(const mx::array &x, uint32_t factor)
{
    const mx::array whole = mx::astype(x, mx::uint64) * mx::array(static_cast<uint64_t>(factor), mx::uint64);
    return {mx::astype(mx::right_shift(whole, mx::array(32, mx::uint64)), mx::uint32),
            mx::astype(whole, mx::uint32)};
}

static mx::array word(uint32_t x)
{
    return mx::array(x, mx::uint32);
}

/* Blocks 0 .. n of a stream, [n, 4]; a block's number has 32 bits here. */
static mx::array blocks(const mx::array &key, int64_t n, uint32_t stream)
{
    const int count = static_cast<int>(n);
    mx::array c0 = mx::arange(0.0, static_cast<double>(n), mx::uint32), c1 = mx::zeros({count}, mx::uint32),
              c2 = mx::full({count}, word(stream)), c3 = c1;
    mx::array k0 = mx::slice(key, {0}, {1}), k1 = mx::slice(key, {1}, {2});
    for (int round = 0; round < 10; round++) {
        const halves a = product_of(c0, 0xd2511f53u), b = product_of(c2, 0xcd9e8d57u);
        c0 = mx::bitwise_xor(mx::bitwise_xor(b.high, c1), k0);
        c1 = b.low;
        c2 = mx::bitwise_xor(mx::bitwise_xor(a.high, c3), k1);
        c3 = a.low;
        k0 = k0 + word(0x9e3779b9u);
        k1 = k1 + word(0xbb67ae85u);
    }
    return mx::stack({c0, c1, c2, c3}, 1);
}

mx::array prim_RANDOM(const call &c)
{
    int64_t n = 1;
    for (auto dim : c.shape) n *= dim;
    if (n == 0) return mx::zeros(c.shape, c.dtype);
    if (n > std::numeric_limits<int32_t>::max() - 4)
        throw failure(QN_E_UNSUPPORTED, "MLX: more random numbers at once than 2^31");
    c.room((n + 3) / 4 * 4, 8);
    const mx::array all = blocks(c.in(0), (n + 3) / 4, static_cast<uint32_t>(c.p().random.stream));
    mx::array x = mx::slice(mx::reshape(all, {-1}), {0}, {static_cast<int>(n)});
    if (c.dtype == mx::float32)
        x = mx::astype(mx::right_shift(x, word(8)), mx::float32) * mx::array(0x1p-24f);
    return mx::reshape(x, c.shape);
}

} // namespace qn
