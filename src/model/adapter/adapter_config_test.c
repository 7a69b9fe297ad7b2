/* What adapter_config.json may say: both layouts, patterns of ranks and factors, and what is refused. */
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
#include "model/adapter/adapter_config.h"

#define FILE_NAME "adapter_config.json"

#define PEFT(more) "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, " more "}"
#define MLX(more) "{\"lora_parameters\": {" more "}}"

static qn_status read_text(const char *text, qn_buf *notes, qn_adapter_config *c)
{
    return qn_adapter_config_read(FILE_NAME, text, strlen(text), notes, c);
}

static qn_adapter_config read_ok(const char *text)
{
    qn_adapter_config c;
    qn_buf notes = {0};
    if (read_text(text, &notes, &c) != QN_OK) fail_msg("%s", qn_last_error());
    if (notes.length) fail_msg("%s", notes.data);
    return c;
}

static void expect_module(const qn_adapter_config *c, const char *module, int64_t rank, double factor)
{
    int64_t r = -1;
    double f = -1;
    if (qn_adapter_config_module(c, module, &r, &f) != QN_OK) fail_msg("%s", qn_last_error());
    if (r != rank || fabs(f - factor) > 1e-12 * (1 + fabs(factor)))
        fail_msg("%s: rank %d and factor %g, expected %d and %g", module, (int)r, f, (int)rank, factor);
}

/* field NULL: the module gets factors; else the one that says that it does not. */
static void expect_target(const qn_adapter_config *c, const char *module, int is_linear, const char *field)
{
    const char *said = NULL;
    const qn_status status = qn_adapter_config_check_target(c, module, is_linear, &said);
    if (field && strcmp(field, "layers_to_transform") == 0) {
        assert_int_equal(status, QN_E_FORMAT);
        if (!strstr(qn_last_error(), field) || !strstr(qn_last_error(), module))
            fail_msg("%s", qn_last_error());
        return;
    }
    if (status != QN_OK) fail_msg("%s: %s", module, qn_last_error());
    if (!said != !field || (said && strcmp(said, field) != 0))
        fail_msg("%s: %s instead of %s", module, said ? said : "none", field ? field : "none");
}

static void factors(void **state)
{
    qn_adapter_config c = read_ok("{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8}");
    assert_int_equal(c.layout, QN_ADAPTER_PEFT);
    expect_module(&c, "model.layers.0.self_attn.q_proj", 4, 2);
    qn_adapter_config_free(&c);
    c = read_ok("{\"peft_type\": \"LORA\", \"r\": 16, \"lora_alpha\": 8, \"use_rslora\": true}");
    expect_module(&c, "lm_head", 16, 2);
    qn_adapter_config_free(&c);
    c = read_ok(PEFT("\"use_dora\": true"));
    assert_int_equal(c.dora, 1);
    qn_adapter_config_free(&c);
    c = read_ok("{\"fine_tune_type\": \"dora\", \"lora_parameters\": {\"rank\": 8, \"scale\": 2}}");
    assert_int_equal(c.dora, 1);
    qn_adapter_config_free(&c);
    c = read_ok("{\"lora_parameters\": {\"rank\": 8, \"scale\": 20.0, \"dropout\": 0.1}, \"iters\": 1000}");
    assert_int_equal(c.dora, 0);
    assert_int_equal(c.layout, QN_ADAPTER_MLX);
    expect_module(&c, "model.layers.0.self_attn.q_proj", 8, 20);
    expect_target(&c, "model.layers.77.mlp.up_proj", 1, NULL);
    assert_null(qn_adapter_config_target(&c, 0));
    qn_adapter_config_free(&c);
}

static void patterns(void **state)
{
    qn_adapter_config c = read_ok("{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                                  " \"rank_pattern\": {\"^model.layers.0.mlp.up_proj\": 2, "
                                  "\"layers\\\\.1\\\\.self_attn\\\\.q_proj$\": 16,"
                                  "                    \"q_proj\": 8},"
                                  " \"alpha_pattern\": {\"q_proj\": 32, \"down_proj\": 2.5}}");
    expect_module(&c, "model.layers.0.self_attn.q_proj", 8, 4);
    expect_module(&c, "model.layers.1.self_attn.q_proj", 16, 2); /* the first that matches */
    expect_module(&c, "model.layers.11.self_attn.q_proj", 8, 4);
    expect_module(&c, "q_proj", 8, 4);
    expect_module(&c, "model.layers.0.self_attn.xq_proj", 4, 2); /* names match as a whole */
    expect_module(&c, "model.layers.0.mlp.up_proj", 2, 4);
    expect_module(&c, "x.model.layers.0.mlp.up_proj", 4, 2); /* ^ begins at the beginning */
    expect_module(&c, "model.layers.0.mlp.down_proj", 4, 2.5 / 4);
    qn_adapter_config_free(&c);
}

static void targets_by_rule(void **state)
{
    static const struct {
        const char *fields, *module, *field;
    } cases[] = {
        {"\"target_modules\": \".*\\\\.[02]\\\\..*proj\"", "model.layers.2.mlp.up_proj", NULL},
        {"\"target_modules\": \".*\\\\.[02]\\\\..*proj\"", "model.layers.1.mlp.up_proj", "target_modules"},
        {"\"target_modules\": \"up|down\"", "down", NULL},
        {"\"target_modules\": \"up|down\"", "downs", "target_modules"}, /* the whole name */
        {"\"exclude_modules\": [\"1.mlp.up_proj\"]", "model.layers.1.mlp.up_proj", "exclude_modules"},
        {"\"exclude_modules\": [\"1.mlp.up_proj\"]", "model.layers.11.mlp.up_proj", NULL},
        {"\"exclude_modules\": \".*mlp.*\"", "model.layers.1.mlp.up_proj", "exclude_modules"},
        {"\"modules_to_save\": [\"mlp\"]", "model.layers.1.mlp.up_proj", "modules_to_save"},
        {"\"modules_to_save\": [\"mlp\"]", "model.layers.1.mlp2.up_proj", NULL},
        {"\"layers_to_transform\": [1], \"layers_pattern\": \"h\"", "model.h.1.up", NULL},
        {"\"layers_to_transform\": [1], \"layers_pattern\": \"h\"", "model.layers.1.up",
         "layers_to_transform"},
        {"\"layers_to_transform\": [1], \"layers_pattern\": [\"x\", \"layers\"]", "model.layers.1.up", NULL},
        {"\"layers_to_transform\": [1]", "model.layers.1.mlp.experts.0.up", NULL}, /* the first number */
        {"\"layers_to_transform\": [1]", "lm_head", "layers_to_transform"},
        {"\"layers_to_transform\": [1], \"target_modules\": [\"lm_head\"]", "lm_head",
         NULL}, /* the whole name */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text, PEFT("%s"), cases[i].fields);
        qn_adapter_config c = read_ok(text);
        expect_target(&c, cases[i].module, 1, cases[i].field);
        qn_adapter_config_free(&c);
    }
}

static void layers_and_targets(void **state)
{
    qn_adapter_config c =
        read_ok("{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                " \"layers_to_transform\": [0, 3], \"target_modules\": [\"q_proj\", \"v_proj\"]}");
    expect_target(&c, "model.layers.0.self_attn.q_proj", 1, NULL);
    expect_target(&c, "model.layers.1.self_attn.q_proj", 1, "layers_to_transform");
    expect_target(&c, "model.layers.3.self_attn.v_proj", 1, NULL);
    expect_target(&c, "model.layers.3.self_attn.k_proj", 1, "target_modules");
    expect_target(&c, "model.layers.3.self_attn.xq_proj", 1, "target_modules");
    assert_string_equal(qn_adapter_config_target(&c, 1), "v_proj");
    assert_null(qn_adapter_config_target(&c, 2));
    qn_adapter_config_free(&c);
    c = read_ok("{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"layers_to_transform\": 2,"
                " \"target_modules\": \"all-linear\"}");
    expect_target(&c, "model.layers.2.mlp.up_proj", 1, NULL);
    expect_target(&c, "model.layers.0.mlp.up_proj", 1, "layers_to_transform");
    expect_target(&c, "lm_head", 0, "target_modules");
    assert_null(qn_adapter_config_target(&c, 0));
    qn_adapter_config_free(&c);
}

/* Fields about the making are skipped, those that are off too, whatever their names. */
static void what_does_not_matter(void **state)
{
    qn_adapter_config c = read_ok(
        "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"bias\": \"all\", \"fan_in_fan_out\": true, "
        "\"lora_dropout\": 0.1,"
        " \"init_lora_weights\": \"gaussian\", \"base_model_name_or_path\": \"x\", \"use_dora\": false,"
        " \"modules_to_save\": null, \"loftq_config\": {\"a\": 1}, \"what_comes_next\": [],"
        " \"and_then\": {}, \"never\": 0, \"nothing\": \"\"}");
    qn_adapter_config_free(&c);
    qn_buf notes = {0};
    assert_int_equal(
        read_text("{\"lora_parameters\": {\"rank\": 8, \"scale\": 2, \"alpha\": 16}}", &notes, &c), QN_OK);
    assert_non_null(strstr(notes.data, "alpha is ignored"));
    qn_buf_free(&notes);
    qn_adapter_config_free(&c);
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *text;
        qn_status status;
        const char *words;
    } cases[] = {
        {"", QN_E_FORMAT, FILE_NAME},
        {"[]", QN_E_FORMAT, "not an object"},
        {"{}", QN_E_FORMAT, "neither PEFT's peft_type nor mlx_lm's lora_parameters"},
        {"{\"peft_type\": \"IA3\"}", QN_E_UNSUPPORTED, "peft_type is \"IA3\""},
        {"{\"peft_type\": 3}", QN_E_FORMAT, "peft_type"},
        {"{\"peft_type\": \"LORA\", \"lora_alpha\": 8}", QN_E_FORMAT, "r is missing"},
        {"{\"peft_type\": \"LORA\", \"r\": 4}", QN_E_FORMAT, "lora_alpha is missing"},
        {"{\"peft_type\": \"LORA\", \"r\": 0, \"lora_alpha\": 8}", QN_E_FORMAT, "r is 0"},
        {"{\"peft_type\": \"LORA\", \"r\": 1000000000000, \"lora_alpha\": 8}", QN_E_FORMAT,
         "expected 1 to 1024"},
        {"{\"peft_type\": \"LORA\", \"r\": 4.5, \"lora_alpha\": 8}", QN_E_FORMAT, "expected an integer"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 1e30}", QN_E_FORMAT, "lora_alpha is 1e+30"},
        {PEFT("\"r\": 8"), QN_E_FORMAT, "duplicate"},
        {PEFT("\"use_dora\": 1"), QN_E_FORMAT, "use_dora"},
        {PEFT("\"lora_bias\": true, \"use_dora\": true"), QN_E_UNSUPPORTED, "lora_bias and use_dora"},
        {PEFT("\"bias\": \"some\""), QN_E_UNSUPPORTED, "bias is \"some\""},
        {PEFT("\"alora_invocation_tokens\": [1, 2]"), QN_E_UNSUPPORTED, "alora_invocation_tokens"},
        {PEFT("\"modules_to_save\": \"lm_head\""), QN_E_FORMAT, "modules_to_save is neither"},
        {PEFT("\"modules_to_save\": [3]"), QN_E_FORMAT, "modules_to_save: element 0"},
        {PEFT("\"target_modules\": [\"q\", null]"), QN_E_FORMAT, "target_modules: element 1"},
        {PEFT("\"target_modules\": \"(q\""), QN_E_FORMAT,
         "target_modules: \"(q\" is not a regular expression"},
        {PEFT("\"exclude_modules\": 3"), QN_E_FORMAT, "exclude_modules"},
        {PEFT("\"target_modules\": \"q\", \"layers_to_transform\": 1"), QN_E_FORMAT,
         "layers_to_transform cannot"},
        {PEFT("\"layers_pattern\": \"layers\""), QN_E_FORMAT, "layers_pattern needs layers_to_transform"},
        {PEFT("\"trainable_token_indices\": [1, -2]"), QN_E_FORMAT, "trainable_token_indices: element 1"},
        {PEFT("\"trainable_token_indices\": {\"embed_tokens\": 7}"), QN_E_FORMAT, "not a list of ids"},
        {PEFT("\"layer_replication\": [[0, 2]]"), QN_E_UNSUPPORTED, "layer_replication"},
        {PEFT("\"what_comes_next\": 3"), QN_E_UNSUPPORTED, "what_comes_next"},
        {PEFT("\"use_rslora\": 1"), QN_E_FORMAT, "use_rslora"},
        {PEFT("\"init_lora_weights\": \"pissa_niter_16\""), QN_E_UNSUPPORTED, "pissa_niter_16"},
        {PEFT("\"rank_pattern\": []"), QN_E_FORMAT, "rank_pattern"},
        {PEFT("\"rank_pattern\": {\"q_proj\": 0}"), QN_E_FORMAT, "q_proj is 0"},
        {PEFT("\"rank_pattern\": {\"q_proj\": null}"), QN_E_FORMAT, "q_proj is null"},
        {PEFT("\"rank_pattern\": {\"layers.[01.q_proj\": 2}"), QN_E_FORMAT,
         "rank_pattern: \"layers.[01.q_proj\" is not a regular expression"},
        {PEFT("\"alpha_pattern\": {\"q_proj\": \"8\"}"), QN_E_FORMAT, "q_proj"},
        {PEFT("\"layers_to_transform\": \"0\""), QN_E_FORMAT, "layers_to_transform"},
        {PEFT("\"layers_to_transform\": [0, \"1\"]"), QN_E_FORMAT, "element 1"},
        {"{\"fine_tune_type\": \"full\"}", QN_E_UNSUPPORTED, "fine_tune_type is \"full\""},
        {"{\"fine_tune_type\": \"lora\"}", QN_E_FORMAT, "lora_parameters is missing"},
        {"{\"lora_parameters\": 3}", QN_E_FORMAT, "lora_parameters"},
        {MLX("\"scale\": 2"), QN_E_FORMAT, "lora_parameters.rank is missing"},
        {MLX("\"rank\": 8"), QN_E_FORMAT, "lora_parameters.scale is missing"},
        {MLX("\"rank\": 8, \"scale\": \"2\""), QN_E_FORMAT, "lora_parameters.scale"},
        {MLX("\"rank\": -8, \"scale\": 2"), QN_E_FORMAT, "lora_parameters.rank is -8"},
    };
    int64_t live = qn_mem_live_blocks();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_adapter_config c = {.rank = -7};
        qn_buf notes = {0};
        qn_status status = read_text(cases[i].text, &notes, &c);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].words))
            fail_msg("%s: %s: %s", cases[i].text, qn_status_name(status), qn_last_error());
        assert_int_equal(c.rank, -7);
        qn_buf_free(&notes);
    }
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void a_rank_that_is_no_number_of_rows(void **state)
{
    int64_t rank;
    double factor;
    qn_adapter_config c = read_ok(PEFT("\"rank_pattern\": {\"q_proj\": 2.5}"));
    assert_int_equal(qn_adapter_config_module(&c, "a.q_proj", &rank, &factor), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "2.5"));
    qn_adapter_config_free(&c);
}

static void memory_runs_out(void **state)
{
    static const char text[] =
        "{\"lora_parameters\": {\"rank\": 8, \"scale\": 2, \"alpha\": 16}, \"fine_tune_type\": \"lora\"}";
    int64_t live = qn_mem_live_blocks();
    for (int n = 1;; n++) {
        qn_adapter_config c;
        qn_buf notes = {0};
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_status status = read_text(text, &notes, &c);
        qn_mem_fail_nth(0);
        qn_buf_free(&notes);
        if (status == QN_OK) {
            qn_adapter_config_free(&c);
            break;
        }
        assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_int_equal(qn_mem_live_blocks(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors),
        cmocka_unit_test(patterns),
        cmocka_unit_test(targets_by_rule),
        cmocka_unit_test(layers_and_targets),
        cmocka_unit_test(what_does_not_matter),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_rank_that_is_no_number_of_rows),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests_name("adapter config", tests, NULL, NULL);
}
