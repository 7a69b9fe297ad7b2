/* Adapters on the matrices of experts, of every form that files have: what fits, and what is refused with which
 * words. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <string.h>

#include "model/adapter/adapter_file.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/adapter_dir.h"
#include "tests/support/scratch.h"

static char experts[] = "model.layers.1.mlp.experts";
enum { RANK = 2 };

typedef struct {
    int64_t n, hidden, width; /* of experts */
} sizes;

static void add_pair(qn_test_adapter *a, const char *module, int64_t rank, int64_t n_in, int64_t n_out)
{
    qn_test_adapter_add(a, module, rank, n_in, n_out, 3);
}

static void both_parameters(qn_test_adapter *a, const sizes *s)
{
    char name[96];
    snprintf(name, sizeof name, "%s.base_layer", experts);
    add_pair(a, name, RANK * s->n, s->hidden, 2 * s->width);
    add_pair(a, experts, RANK * s->n, s->width, s->hidden);
    qn_test_adapter_patch(a,
                          "{\"target_parameters\": [\"experts.gate_up_proj\", \"mlp.experts.down_proj\"]}");
}
static void wrong_rank(qn_test_adapter *a, const sizes *s)
{
    both_parameters(a, s);
    qn_test_adapter_patch(a, "{\"r\": 4}");
}
static void pattern_of_rank(qn_test_adapter *a, const sizes *s)
{
    both_parameters(a, s);
    qn_test_adapter_patch(
        a, "{\"r\": 4, \"rank_pattern\": {\".*\\\\.gate_up_proj\": 2, \"experts.down_proj\": 2}}");
}
static void turned_about(qn_test_adapter *a, const sizes *s)
{
    add_pair(a, experts, RANK * s->n, s->hidden, s->width);
    qn_test_adapter_patch(a, "{\"target_parameters\": [\"experts.down_proj\"]}");
}
static void no_parameter(qn_test_adapter *a, const sizes *s)
{
    add_pair(a, experts, RANK * s->n, s->width, s->hidden);
}
static void one_of_both(qn_test_adapter *a, const sizes *s)
{
    no_parameter(a, s);
    qn_test_adapter_patch(a, "{\"target_parameters\": [\"gate_up_proj\", \"down_proj\"]}");
}
static void another_parameter(qn_test_adapter *a, const sizes *s)
{
    both_parameters(a, s);
    qn_test_adapter_patch(
        a, "{\"target_parameters\": [\"experts.gate_up_proj\", \"experts.down_proj\", \"c_fc\"]}");
}
static void each_form(qn_test_adapter *a, const sizes *s)
{
    add_pair(a, "model.layers.1.mlp.experts.0.up_proj", RANK, s->hidden, s->width);
}
static void expert_beyond(qn_test_adapter *a, const sizes *s)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%d.up_proj", experts, (int)s->n);
    add_pair(a, name, RANK, s->hidden, s->width);
}
static void half_a_pair(qn_test_adapter *a, const sizes *s)
{
    each_form(a, s);
    add_pair(a, "model.layers.1.mlp.experts.2.up_proj", RANK, s->hidden, s->width);
    qn_test_adapter_drop(a, qn_test_adapter_find(a, "experts.2.up_proj.lora_A"));
}
static void two_forms(qn_test_adapter *a, const sizes *s)
{
    both_parameters(a, s);
    each_form(a, s);
}
static void two_ranks(qn_test_adapter *a, const sizes *s)
{
    each_form(a, s);
    add_pair(a, "model.layers.1.mlp.experts.2.up_proj", 1, s->hidden, s->width);
    qn_test_adapter_patch(a, "{\"rank_pattern\": {\"experts.2.up_proj\": 1}}");
}
static void magnitudes(qn_test_adapter *a, const sizes *s)
{
    each_form(a, s);
    qn_test_adapter_add_magnitudes(a, "model.layers.1.mlp.experts.0.up_proj", s->width, 1, 3);
}
static void not_a_number(qn_test_adapter *a, const sizes *s)
{
    both_parameters(a, s);
    qn_test_adapter_find(a, "experts.lora_B")->values[7] = NAN;
}
static void deeper(qn_test_adapter *a, const sizes *s)
{
    add_pair(a, "model.layers.1.mlp.experts.base_layer.base_layer", RANK * s->n, s->hidden, 2 * s->width);
}

static void what_fits_and_what_does_not(void **state)
{
    static const struct {
        void (*bend)(qn_test_adapter *a, const sizes *s);
        qn_status status;
        const char *words; /* of the message, or of the note */
    } cases[] = {
        {both_parameters, QN_OK, NULL},
        {pattern_of_rank, QN_OK, NULL},
        {each_form, QN_OK, NULL},
        {another_parameter, QN_OK, "target_parameters names c_fc, but no tensor belongs to it"},
        {wrong_rank, QN_E_FORMAT, "(rank 4)"},
        {turned_about, QN_E_FORMAT, "expected ["},
        {no_parameter, QN_E_FORMAT, "target_parameters names none of the two parameters"},
        {one_of_both, QN_E_FORMAT, "target_parameters names both of the two parameters"},
        {expert_beyond, QN_E_UNSUPPORTED, "not a linear layer"},
        {half_a_pair, QN_E_FORMAT, "experts.2.up_proj.lora_B.weight: the other tensor"},
        {two_forms, QN_E_UNSUPPORTED, "of different forms or ranks"},
        {two_ranks, QN_E_UNSUPPORTED, "of different forms or ranks"},
        {magnitudes, QN_E_UNSUPPORTED, "magnitudes (DoRA)"},
        {not_a_number, QN_E_FORMAT, "element 7 is not a number"},
        {deeper, QN_E_UNSUPPORTED, "not a linear layer"},
    };
    const char *scratch = qn_test_scratch();
    qn_engine *e = qn_test_adapter_engine(qn_test_need_fixture("models/qwen3_moe"), NULL, 1);
    const qn_model_config *c = qn_engine_config(e);
    const sizes s = {c->experts.num_experts, c->hidden_size, c->experts.moe_intermediate_size};
    const uint64_t before = qn_test_adapter_hash(e, "none");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_test_adapter *a = qn_test_adapter_new(RANK, 4);
        qn_buf notes = {0};
        cases[i].bend(a, &s);
        const char *path = qn_test_adapter_write(a, scratch, "it", QN_ADAPTER_PEFT);
        const qn_status status = qn_engine_adapter_load(e, "it", path, 1, &notes);
        const char *said = status == QN_OK ? notes.data : qn_last_error(), *words = cases[i].words;
        if (status != cases[i].status || (words ? !said || !strstr(said, words) : said != NULL))
            fail_msg("case %d: %s: %s", (int)i, qn_status_name(status), said ? said : "");
        if (status == QN_OK) {
            assert_true(qn_test_adapter_hash(e, "it") != before);
            qn_test_ok(qn_engine_adapter_unload(e, "it"));
        }
        qn_buf_free(&notes);
        qn_test_adapter_free(a);
    }
    assert_true(qn_test_adapter_hash(e, "none") == before);
    qn_engine_close(e);
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_fits_and_what_does_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
