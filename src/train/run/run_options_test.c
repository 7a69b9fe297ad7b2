/* Settings that belong to another method, optimiser or schedule than the one that is used are told; rotary positions
 * that cannot be changed are refused. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <string.h>

#include "train/run/run_options.h"

static void expect(qn_train_options o, const char *want)
{
    qn_buf notes = {0};
    qn_run_options_note_unused(&o, &notes);
    assert_string_equal(notes.data ? notes.data : "", want);
    qn_buf_free(&notes);
}

static void unused_settings(void **state)
{
#define OF(name, owner) name " has no effect: it belongs to " owner "\n"
    expect((qn_train_options){0}, "");
    expect((qn_train_options){.targets = "q_proj", .rank = 4, .beta1 = 0.8, .n_epochs = 2}, "");
    expect((qn_train_options){.momentum = 0.9, .end_rate = 0.1, .n_steps = 5, .n_epochs = 1},
           OF("momentum", "SGD") OF("end-rate", "the linear and cosine schedules")
               OF("epochs", "a training without a number of steps"));
    expect((qn_train_options){.save_type = "f32"}, OF("save-type", "the training of all weights"));
    expect((qn_train_options){.method = QN_TRAIN_FULL,
                              .targets = "q_proj",
                              .rank = 8,
                              .alpha = 16,
                              .rslora = 1,
                              .dropout = 0.1f,
                              .init = QN_TRAIN_NORMAL,
                              .layout = QN_ADAPTER_MLX,
                              .save_type = "f32"},
           OF("targets", "LoRA and DoRA") OF("rank", "LoRA and DoRA") OF("alpha", "LoRA and DoRA")
               OF("rslora", "LoRA and DoRA") OF("dropout", "LoRA and DoRA") OF("init", "LoRA and DoRA")
                   OF("layout", "LoRA and DoRA"));
    expect((qn_train_options){.optimizer = QN_OPTIMIZER_SGD,
                              .momentum = 0.9,
                              .beta1 = 0.8,
                              .beta2 = 0.9,
                              .eps = 1e-6,
                              .no_bias_correction = 1,
                              .schedule = QN_SCHEDULE_LINEAR,
                              .end_rate = 0.1},
           OF("beta1", "AdamW") OF("beta2", "AdamW") OF("eps", "AdamW") OF("no-bias-correction", "AdamW"));
#undef OF
}

static void refuse(qn_train_options o, const char *words)
{
    qn_run_options made;
    assert_int_equal(qn_run_options_make(&o, &made), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), words));
}

static void rotary_positions(void **state)
{
    static char open_model; /* its address alone is looked at */
    refuse((qn_train_options){.model_path = "m", .data_path = "d", .rope = {.theta = -1}}, "rope.theta: -1");
    refuse((qn_train_options){.model_path = "m",
                              .data_path = "d",
                              .rope = {.scaling = QN_ROPE_SCALING_NONE, .factor = 2}},
           "cannot be used with the scaling none");
    refuse(
        (qn_train_options){.model = (qn_model *)(void *)&open_model, .data_path = "d", .rope = {.theta = 2}},
        "rope cannot be given with it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(unused_settings), cmocka_unit_test(rotary_positions)};
    return cmocka_run_group_tests_name("run_options", tests, NULL, NULL);
}
