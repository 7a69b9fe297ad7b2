#include <quern/train.h>

#include "base/status.h"

static const char *const event_names[] = {
    [QN_TRAIN_EVENT_START] = "start",     [QN_TRAIN_EVENT_NOTE] = "note",
    [QN_TRAIN_EVENT_WARNING] = "warning", [QN_TRAIN_EVENT_STEP] = "step",
    [QN_TRAIN_EVENT_VALID] = "valid",     [QN_TRAIN_EVENT_SAVED] = "saved",
    [QN_TRAIN_EVENT_STOPPED] = "stopped", [QN_TRAIN_EVENT_DONE] = "done"};

const char *qn_train_event_name(qn_train_event_kind kind)
{
    return event_names[kind];
}

static qn_status none(void)
{
    return qn_fail(QN_E_UNSUPPORTED, "this version of the library does not train");
}

qn_status qn_training_open(const qn_train_options *options, qn_training **out)
{
    (void)options;
    (void)out;
    return none();
}

void qn_training_close(qn_training *t)
{
    (void)t;
}

qn_status qn_training_get_info(const qn_training *t, qn_train_info *out)
{
    (void)t;
    (void)out;
    return none();
}

qn_status qn_training_step(qn_training *t, qn_train_step_report *out)
{
    (void)t;
    (void)out;
    return none();
}

qn_status qn_training_validate(qn_training *t, double *loss)
{
    (void)t;
    (void)loss;
    return none();
}

qn_status qn_training_run(qn_training *t, qn_train_notify_fn *notify, void *user)
{
    (void)t;
    (void)notify;
    (void)user;
    return none();
}

void qn_training_stop(qn_training *t)
{
    (void)t;
}

qn_status qn_training_save(qn_training *t, const char *path, qn_adapter_layout layout)
{
    (void)t;
    (void)path;
    (void)layout;
    return none();
}

qn_status qn_training_show_batch(qn_training *t, int colours, char **out)
{
    (void)t;
    (void)colours;
    (void)out;
    return none();
}

qn_status qn_training_get_array(const qn_training *t, int64_t i, qn_train_array *out)
{
    (void)t;
    (void)i;
    (void)out;
    return none();
}

qn_status qn_training_read_array(const qn_training *t, int64_t i, float *numbers, float *gradient)
{
    (void)t;
    (void)i;
    (void)numbers;
    (void)gradient;
    return none();
}

qn_status qn_evaluate(const qn_evaluate_options *options, qn_evaluation *out)
{
    (void)options;
    (void)out;
    return none();
}
