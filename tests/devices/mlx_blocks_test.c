/* MLX's quantised matrices of the fixtures' quant/mlx_blocks, handed to the library as they are: products and
 * rows against those of the files. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/mlx/mlx.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

/* One file; calls of the library are made by the owner's thread. */
typedef struct {
    const qn_mlx_shim *shim;
    const qn_safetensors *st;
    qn_mlx_weight_spec spec;
    float *got; /* as many as y, then as dequant_f32 has */
    int is_gather;
} job;

static const qn_tensor_view *tensor(const job *j, const char *name)
{
    return qn_safetensors_find(j->st, name);
}

static qn_status array_of(const job *j, const qn_tensor_view *v, qn_dtype dtype, qn_mlx_array **out)
{
    return j->shim->array_new(v->data, v->n_dims, v->shape, dtype, 0, out);
}

/* The result of one step on x and ids, either of which may be NULL. */
static qn_status step(const job *j, qn_prim prim, qn_mlx_weight *w, const qn_tensor_view *x,
                      const qn_tensor_view *ids, const qn_tensor_view *like, float *to)
{
    qn_params params = {{0}};
    qn_mlx_array *in[3] = {NULL}, *out = NULL;
    qn_mlx_weight *weight[3] = {NULL};
    qn_mlx_memo *memo = NULL;
    const int at = x != NULL; /* the weight is behind x */
    weight[at] = w;
    qn_status status = x ? array_of(j, x, QN_DTYPE_F32, &in[0]) : QN_OK;
    if (status == QN_OK && ids) status = array_of(j, ids, QN_DTYPE_I32, &in[at + 1]);
    const qn_mlx_step s = {.prim = prim,
                           .params = &params,
                           .n_in = at + 1 + (ids != NULL),
                           .in = in,
                           .weight = weight,
                           .transposed = 1,
                           .n_dims = like->n_dims,
                           .shape = like->shape,
                           .dtype = QN_DTYPE_F32,
                           .memo = &memo,
                           .budget_bytes = SIZE_MAX / 16};
    if (status == QN_OK) status = j->shim->apply(&s, &out);
    if (status == QN_OK)
        status = j->shim->array_read(out, QN_DTYPE_F32, to, (size_t)like->n_elements * sizeof *to);
    for (int i = 0; i < 3; i++) j->shim->array_free(in[i]);
    j->shim->array_free(out);
    j->shim->memo_free(memo);
    return status;
}

static qn_status compute(void *arg)
{
    const job *j = arg;
    qn_mlx_weight *w = NULL;
    const qn_tensor_view *x = tensor(j, "x"), *y = tensor(j, "y");
    qn_status status = j->shim->weight_new(&j->spec, &w);
    if (status == QN_OK && j->is_gather) {
        status = step(j, QN_PRIM_EXPERTS, w, x, tensor(j, "rhs_indices"), y, j->got);
    } else if (status == QN_OK) {
        const qn_tensor_view *want = tensor(j, "dequant_f32");
        int32_t ids[256];
        assert_true(want->shape[0] <= 256);
        for (int i = 0; i < (int)want->shape[0]; i++) ids[i] = i;
        const qn_tensor_view rows = {.data = ids, .n_dims = 1, .shape = {want->shape[0]}};
        status = step(j, QN_PRIM_MATMUL, w, x, NULL, y, j->got);
        if (status == QN_OK) status = step(j, QN_PRIM_TAKE, w, NULL, &rows, want, j->got + y->n_elements);
    }
    j->shim->weight_free(w);
    return qn_mlx_check(j->shim, status);
}

static double relative_l2(const float *got, const float *want, int64_t n)
{
    double error = 0, power = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        power += (double)want[i] * (double)want[i];
    }
    return sqrt(error / power);
}

/* name: "affine-b4-g64-float32". */
static void check(const qn_mlx *d, qn_mlx_kind kind, int bits, int group, const char *type, int is_gather)
{
    static const char *const kinds[] = {NULL, "affine", "mxfp4", "nvfp4"};
    char path[128];
    snprintf(path, sizeof path, "quant/mlx_blocks/%s%s-b%d-g%d-%s.safetensors", is_gather ? "gather-" : "",
             kinds[kind], bits, group, type);
    const char *file = qn_test_fixture(path);
    if (!file && is_gather) return; /* there are few of these */
    qn_safetensors *st = NULL;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    job j = {.shim = d->shim, .st = st, .is_gather = is_gather};
    const qn_tensor_view *weight = tensor(&j, "weight"), *scales = tensor(&j, "scales"),
                         *biases = tensor(&j, "biases"), *y = tensor(&j, "y"),
                         *want = tensor(&j, "dequant_f32");
    const int last = weight->n_dims - 1;
    j.spec = (qn_mlx_weight_spec){.kind = kind,
                                  .n_parts = is_gather ? weight->shape[0] : 1,
                                  .n_out = weight->shape[last - 1],
                                  .n_in = weight->shape[last] * 32 / bits,
                                  .bits = bits,
                                  .group = group,
                                  .dtype = scales->dtype,
                                  .data = weight->data,
                                  .scales = scales->data,
                                  .biases = biases ? biases->data : NULL};
    j.got = qn_alloc_array((size_t)(y->n_elements + (want ? want->n_elements : 0)), sizeof *j.got);
    assert_non_null(j.got);
    qn_test_ok(qn_mlx_call(d->owner, compute, &j));
    const double error = relative_l2(j.got, y->data, y->n_elements);
    if (!(error <= 1e-5)) fail_msg("%s: relative error %g", path, error);
    double most = 0;
    for (int64_t i = 0; want && i < want->n_elements; i++)
        most = fmax(most, fabs((double)((const float *)want->data)[i]));
    for (int64_t i = 0; want && i < want->n_elements; i++) {
        const double number = ((const float *)want->data)[i], got = j.got[y->n_elements + i];
        if (!(fabs(got - number) <= 1e-6 * most))
            fail_msg("%s: number %lld is %.9g, not %.9g", path, (long long)i, got, number);
    }
    qn_free(j.got);
    qn_safetensors_close(st);
}

static void blocks_of_the_fixtures(void **state)
{
    static const char *const types[] = {"float32", "float16", "bfloat16"};
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    qn_device *base;
    if (qn_device_open("mlx", &(qn_device_options){.n_threads = 1}, &base) != QN_OK) {
        qn_test_leave_out(qn_last_error());
        return;
    }
    const qn_mlx *d = (const qn_mlx *)base;
    for (int gather = 0; gather < 2; gather++)
        for (int t = 0; t < 3; t++) {
            for (int b = 0; b < 6; b++)
                for (int group = 32; group <= 128; group *= 2)
                    check(d, QN_MLX_AFFINE, bits[b], group, types[t], gather);
            if (t == 1) continue;
            check(d, QN_MLX_MXFP4, 4, 32, types[t], gather);
            check(d, QN_MLX_NVFP4, 4, 16, types[t], gather);
        }
    qn_device_close(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_of_the_fixtures)};
    return cmocka_run_group_tests_name("mlx_blocks", tests, NULL, NULL);
}
