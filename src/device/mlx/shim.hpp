/* Inside of the library quern-mlx: the types behind shim.h's handles, and what a primitive gets. */
#ifndef QN_DEVICE_MLX_SHIM_HPP
#define QN_DEVICE_MLX_SHIM_HPP

#include <mlx/mlx.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/mlx/shim.h"

namespace mx = mlx::core;

/* What a table of angles was made of: a fused call of MLX's turns by these. periods: 1 / frequency, f32 [half]. */
struct qn_mlx_turns {
    std::vector<int32_t> positions;
    mx::array periods;
    std::optional<mx::array> offsets; /* positions as an array, once somebody needs it */
    float factor;
};

struct qn_mlx_array {
    mx::array a;
    std::shared_ptr<qn_mlx_turns> turns; /* of a ROPE_TABLE */
};

/* data: PLAIN [n_parts, n_out, n_in], else words, which are twice as many where affine groups have 16 codes.
 * With n_parts == 1 the first dimension is left out. */
struct qn_mlx_weight {
    qn_mlx_kind kind;
    int64_t n_parts, n_out, n_in;
    int bits, group;
    mx::array data;
    std::optional<mx::array> scales, biases;
    /* AFFINE: both as the type of 16 bits that products were last computed in, if it is not theirs: scales, biases.
     * Copies of the weight share it. */
    std::shared_ptr<std::vector<mx::array>> narrow;
};

/* keys[layer]: [capacity * page_tokens, kv_heads, head_dim]; values alike with v_dim, empty where values are
 * parts of keys (v_dim 0 here); slots[layer]: [capacity, slot_floats] f32. place[unit]: where in these, -1
 * for a unit that uses no memory; unit_at: the unit of each place, -1 for a free one. planned: what attention
 * made of the last run's block tables. */
struct qn_mlx_state {
    bool is_pages;
    int64_t n_layers, n_units, page_tokens, kv_heads, head_dim, v_dim, slot_floats;
    mx::Dtype dtype;
    int64_t capacity;
    std::vector<int32_t> place, unit_at;
    std::vector<mx::array> keys, values, slots;
    std::shared_ptr<void> planned;

    int64_t rows_per_unit() const
    {
        return is_pages ? page_tokens : 1;
    }
};

struct qn_mlx_memo {
    std::function<std::vector<mx::array>(const std::vector<mx::array> &)> compiled;
    std::optional<mx::array> source, made; /* a constant, and what the step makes of it in each run */
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
/* Arrays are computed on a GPU; on one of NVIDIA's. */
bool on_gpu();
bool on_cuda();
/* The first bytes of an array that is computed and contiguous. */
void copy_to_host(const mx::array &a, void *to, size_t size_bytes);

/* One application: what a primitive's function sees. */
struct call {
    const qn_mlx_step &step;
    mx::Shape shape; /* of the result */
    mx::Dtype dtype;
    /* The type of 16 bits that the result may have instead, and inputs too. */
    std::optional<mx::Dtype> narrow;

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
        if (!step.in[i]) throw failure(QN_E_INTERNAL, "an input that is no array");
        return step.in[i]->a;
    }
    /* The result may be narrow, and input i is. */
    bool is_narrow(int i) const
    {
        return narrow && step.in[i] && step.in[i]->a.dtype() == *narrow;
    }
    const qn_mlx_weight *weight(int i) const
    {
        return step.weight[i];
    }
    /* An i32 input as numbers on the host; computes it if need be. */
    std::vector<int32_t> ints(int i) const;
    /* What make says of an array that is the same in each run, computed once. */
    mx::array once(const mx::array &constant, const std::function<mx::array(const mx::array &)> &make) const;
    /* Throws QN_E_NOMEM when an array of so many elements is above the step's budget: before it is built,
     * since MLX does not survive an allocation that fails. */
    void room(int64_t elements, size_t element_bytes = 4) const;
};

typedef mx::array prim_fn(const call &c);

/* What a table of angles is made of; nullptr: its positions are no numbers of the host. */
std::shared_ptr<qn_mlx_turns> turns_of(const call &c);

/* All of it in f32 or a type of 16 bits: [n_out, n_in], or [n_parts, n_out, n_in]. */
mx::array dequantized(const qn_mlx_weight &w, mx::Dtype dtype = mx::float32);
/* Rows ids [R] of a matrix: [R, n_in]. */
mx::array rows_of(const qn_mlx_weight &w, const mx::array &ids, mx::Dtype dtype = mx::float32);

#define S(name)
#define E(name, inputs)
#define P(name, rows) prim_fn prim_##name;
#include "prim/primitives.def"
/* Of the element-wise ones, which steps have alone for types that are not fused, and FUSED has in chains. */
mx::array elementwise(qn_prim prim, const mx::array &a, const mx::array *b);
/* The inputs of one of them, of one width. */
std::vector<mx::array> together(const call &c);

} // namespace qn
#endif
