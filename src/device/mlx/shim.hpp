/* Inside of the library quern-mlx: the types behind shim.h's handles, and what a primitive gets. */
#ifndef QN_DEVICE_MLX_SHIM_HPP
#define QN_DEVICE_MLX_SHIM_HPP

#include <mlx/mlx.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/mlx/shim.h"

namespace mx = mlx::core;

struct qn_mlx_array {
    mx::array a;
};

/* data: PLAIN [n_parts, n_out, n_in], else words, which are twice as many where affine groups have 16 codes.
 * With n_parts == 1 the first dimension is left out. */
struct qn_mlx_weight {
    qn_mlx_kind kind;
    int64_t n_parts, n_out, n_in;
    int bits, group;
    mx::array data;
    std::optional<mx::array> scales, biases;
};

/* keys[layer]: [capacity, page_tokens, kv_heads, head_dim]; values alike with v_dim, empty where values are
 * parts of keys (v_dim 0 here); slots[layer]: [capacity, slot_floats] f32. place[unit]: where in these, -1
 * for a unit that uses no memory; free: the places that no unit has. */
struct qn_mlx_state {
    bool is_pages;
    int64_t n_layers, n_units, page_tokens, kv_heads, head_dim, v_dim, slot_floats;
    mx::Dtype dtype;
    int64_t capacity;
    std::vector<int32_t> place, free;
    std::vector<mx::array> keys, values, slots;
};

struct qn_mlx_memo {
    std::function<std::vector<mx::array>(const std::vector<mx::array> &)> compiled;
};

namespace qn
{

/* A failure that is not MLX's: becomes the status and sentence of the call. */
struct failure : std::runtime_error {
    qn_status status;
    failure(qn_status s, const std::string &text) : std::runtime_error(text), status(s)
    {
    }
};

mx::Dtype dtype_of(qn_dtype d);                 /* throws for what MLX has not */
mx::Shape shape_of(int n, const int64_t *dims); /* throws when a dimension is above 2^31 - 1 */

/* Chains are compiled by MLX (begin's wish). */
extern bool compiles;
/* Arrays are computed on an Apple GPU. */
bool on_gpu();

/* One application: what a primitive's function sees. */
struct call {
    const qn_mlx_step &step;
    mx::Shape shape; /* of the result */
    mx::Dtype dtype;

    const qn_params &p() const
    {
        return *step.params;
    }
    int n() const
    {
        return step.n_in;
    }
    const mx::array &in(int i) const
    {
        return step.in[i]->a;
    }
    const qn_mlx_weight *weight(int i) const
    {
        return step.weight[i];
    }
    /* An i32 input as numbers on the host; computes it if need be. */
    std::vector<int32_t> ints(int i) const;
    /* Throws QN_E_NOMEM when an array of so many elements is above the step's budget: before it is built,
     * since MLX does not survive an allocation that fails. */
    void room(int64_t elements, size_t element_bytes = 4) const;
};

typedef mx::array prim_fn(const call &c);

/* x [.., n_in] times the transpose of the weight: f32 [.., n_out]. part: of a weight with several. */
mx::array product(const mx::array &x, const qn_mlx_weight &w, int64_t part = 0);
/* All of it in f32: [n_out, n_in], or [n_parts, n_out, n_in]. */
mx::array dequantized(const qn_mlx_weight &w);
/* Rows ids [R] of a matrix in f32: [R, n_in]. */
mx::array rows_of(const qn_mlx_weight &w, const mx::array &ids);

#define S(name)
#define E(name, inputs)
#define P(name, rows) prim_fn prim_##name;
#include "prim/primitives.def"
/* Of the element-wise ones, which steps have alone for types that are not fused, and FUSED has in chains. */
mx::array elementwise(qn_prim prim, const mx::array &a, const mx::array *b);

} // namespace qn
#endif
