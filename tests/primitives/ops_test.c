/* Functions with known results, gradients and tangents (fixtures/ops/autograd.json), computed by the fused
 * primitives and, on a device that says it lacks all that can be stated in smaller ones, by their fallbacks.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/primitives/ops_cases.h"
#include "tests/support/fixtures.h"
#include "tests/support/json_file.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

typedef struct {
    int passed, n_left;
    const char *left[128];
    double worst;
    const char *worst_name;
} summary;

static const char *string_at(json_t *list, size_t i)
{
    return json_string_value(json_array_get(list, i));
}

static void compare(qn_op_case *c, const char *what, qn_array *got, const char *name, summary *sum)
{
    const qn_tensor_view *want = qn_safetensors_find(c->tensors, name);
    if (!want) fail_msg("%s: no tensor %s", c->name, name);
    const float *w = want->data, *g = qn_array_data(got);
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        double d = fabs((double)w[i] - (g ? g[i] : 0)); /* no array: no dependence, the gradient is zero */
        if (fabs(w[i]) > largest) largest = fabs(w[i]);
        if (!(d <= worst)) worst = d;
    }
    if (!(worst <= 2e-5 * largest))
        fail_msg("%s: %s differs by %g, its largest value is %g", c->name, what, worst, largest);
    if (largest > 0 && worst / largest > sum->worst) {
        sum->worst = worst / largest;
        sum->worst_name = c->name;
    }
}

static qn_array *build(qn_op_case *c, const qn_op_entry *e, int fused)
{
    if (fused) return e->fused(c);
    if (e->build) return e->build(c);
    return e->unary ? e->unary(c->scope, c->in[0]) : e->binary(c->scope, c->in[0], c->in[1]);
}

static void one(qn_device *d, json_t *f, const qn_op_entry *e, int fused, const qn_safetensors *tensors,
                summary *sum)
{
    qn_scope *s = qn_scope_new(d);
    qn_op_case c = {
        .scope = s, .name = e->name, .attributes = json_object_get(f, "attributes"), .tensors = tensors};
    json_t *inputs = json_object_get(f, "inputs");
    int n = (int)json_array_size(inputs);
    qn_array *tangents[4] = {NULL}, *results[6] = {NULL};
    assert_in_range(n, 1, 4);
    for (int i = 0; i < n; i++) {
        c.in[i] = qn_op_tensor(&c, string_at(inputs, (size_t)i));
        tangents[i] = qn_op_tensor(&c, string_at(json_object_get(f, "tangents"), (size_t)i));
    }
    qn_array *out = build(&c, e, fused);
    OK(qn_scope_status(s));
    qn_array *cotangent = qn_op_tensor(&c, json_string_value(json_object_get(f, "cotangent")));
    out = qn_reshape_sym(s, out, *qn_array_shape(cotangent));
    OK(qn_vjp(s, out, cotangent, n, c.in, results + 2));
    if (fused)
        assert_int_equal(qn_jvp(s, out, n, c.in, tangents, &results[1]), QN_E_UNSUPPORTED);
    else
        OK(qn_jvp(s, out, n, c.in, tangents, &results[1]));
    results[0] = out;
    if (fused) { /* the refusal is this scope's first error: what was built before it stands */
        qn_scope_free(s);
        s = qn_scope_new(d);
        c.scope = s;
        for (int i = 0; i < n; i++) c.in[i] = qn_op_tensor(&c, string_at(inputs, (size_t)i));
        cotangent = qn_op_tensor(&c, json_string_value(json_object_get(f, "cotangent")));
        results[0] = qn_reshape_sym(s, build(&c, e, fused), *qn_array_shape(cotangent));
        results[1] = NULL;
        OK(qn_vjp(s, results[0], cotangent, n, c.in, results + 2));
    }
    OK(qn_eval(s, n + 2, results));
    compare(&c, fused ? "fused output" : "output", results[0],
            json_string_value(json_object_get(f, "output")), sum);
    if (!fused) compare(&c, "tangent", results[1], json_string_value(json_object_get(f, "jvp")), sum);
    for (int i = 0; i < n; i++)
        compare(&c, "gradient", results[i + 2], string_at(json_object_get(f, "gradients"), (size_t)i), sum);
    qn_scope_free(s);
}

static void all(qn_device *d, const char *how)
{
    json_t *root = qn_test_json(qn_test_need_fixture("ops/autograd.json")), *f;
    qn_safetensors *tensors;
    size_t i;
    summary sum = {0};
    OK(qn_safetensors_open(qn_test_need_fixture("ops/autograd.safetensors"), &tensors));
    json_array_foreach(json_object_get(root, "functions"), i, f)
    {
        const char *name = json_string_value(json_object_get(f, "name"));
        const qn_op_entry *e = qn_op_find(name);
        if (!e) {
            if (sum.n_left < 128) sum.left[sum.n_left++] = name;
            continue;
        }
        one(d, f, e, 0, tensors, &sum);
        if (e->fused) one(d, f, e, 1, tensors, &sum);
        sum.passed++;
    }
    printf("%s: %d functions agree (worst %.1e, %s), %d cannot be stated", how, sum.passed, sum.worst,
           sum.worst_name, sum.n_left);
    for (int k = 0; k < sum.n_left; k++) printf("%s %s", k ? "," : ":", sum.left[k]);
    printf("; without a tangent: attention in one primitive\n");
    assert_true(sum.passed > 0);
    assert_int_equal(sum.n_left, 0);
    qn_safetensors_close(tensors);
    json_decref(root);
}

static void by_fused(void **state)
{
    qn_device *d;
    (void)qn_test_need_fixture(
        "ops/autograd.json"); /* before anything is held: a test that is left out jumps */
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 2}, &d));
    all(d, "fused");
    qn_device_close(d);
}

/* What a device has to have: all else is stated in these. */
static int few_supported(qn_device *d, qn_prim prim)
{
    switch (prim) {
    case QN_PRIM_NEG:
    case QN_PRIM_ABS:
    case QN_PRIM_RSQRT:
    case QN_PRIM_SQUARE:
    case QN_PRIM_RECIP:
    case QN_PRIM_SIGMOID:
    case QN_PRIM_SOFTPLUS:
    case QN_PRIM_SILU:
    case QN_PRIM_GELU:
    case QN_PRIM_GELU_TANH:
    case QN_PRIM_RELU:
    case QN_PRIM_LOG1P:
    case QN_PRIM_EXPM1:
    case QN_PRIM_PROD:
    case QN_PRIM_SCAN:
    case QN_PRIM_SUB:
    case QN_PRIM_MINIMUM:
    case QN_PRIM_SOFTMAX:
    case QN_PRIM_SINKHORN:
    case QN_PRIM_RMS_NORM:
    case QN_PRIM_LAYER_NORM:
    case QN_PRIM_ROPE:
        return 0;
    default:
        return 1;
    }
}

static void by_fallbacks(void **state)
{
    qn_device *d;
    (void)qn_test_need_fixture("ops/autograd.json");
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d));
    const qn_device_ops *ops = d->ops;
    qn_device_ops few = *ops;
    few.supports = few_supported;
    d->ops = &few;
    all(d, "fallbacks");
    d->ops = ops;
    qn_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_fused), cmocka_unit_test(by_fallbacks)};
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
