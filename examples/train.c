/* Fine-tunes a model: train MODEL DATA OUT [PROMPT]. DATA is a jsonl file or a folder (docs/training.md), OUT
 * gets the adapter. Ctrl-C saves; the same command goes on. Then it answers PROMPT with what was learned.
 * Build: cc train.c $(pkg-config --cflags --libs quern) -o train */
#include <quern/quern.h>
#include <signal.h>
#include <stdio.h>

static qn_training *under_way;

static void on_signal(int signal_number)
{
    (void)signal_number;
    qn_training_stop(under_way);
}

static int fail(void)
{
    fprintf(stderr, "train: %s\n", qn_last_error());
    return 1;
}

static int tell(void *user, const qn_train_event *e)
{
    (void)user;
    if (e->kind == QN_TRAIN_EVENT_STEP)
        printf("step %lld of %lld: loss %.4f, %.0f tokens/s\n", (long long)e->step,
               (long long)e->report->n_steps, e->report->loss, e->report->tokens_per_s);
    else if (e->kind == QN_TRAIN_EVENT_VALID)
        printf("validation: loss %.4f\n", e->valid_loss);
    else if (e->text)
        printf("%s\n", e->text);
    else
        printf("%s %s\n", qn_train_event_name(e->kind), e->path ? e->path : "");
    return 0;
}

/* Opens a new training, or the one that is in the folder. */
static qn_status open_training(qn_train_options *o)
{
    o->resume = 1;
    qn_status status = qn_training_open(o, &under_way);
    o->resume = 0;
    return status == QN_E_NOT_FOUND ? qn_training_open(o, &under_way) : status;
}

static qn_status answer(const char *path, const char *adapter, const char *prompt)
{
    qn_model_options load = {0};
    qn_model *model = NULL;
    qn_generation *generation = NULL;
    qn_token token = {0};
    load.adapter_path = adapter;
    qn_status status = qn_model_open(path, &load, &model);
    qn_generate_options options = {0};
    options.max_tokens = 32;
    if (status == QN_OK) status = qn_generate(model, prompt, &options, &generation);
    while (status == QN_OK && token.end == QN_END_NONE) {
        status = qn_generation_next(generation, &token);
        if (status == QN_OK) fwrite(token.text, 1, token.text_bytes, stdout);
    }
    printf("\n");
    qn_generation_close(generation);
    qn_model_close(&model);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: train MODEL DATA OUT [PROMPT]\n");
        return 2;
    }
    qn_train_options o = {0}; /* LoRA of rank 8 on all linear layers, AdamW */
    o.model_path = argv[1];
    o.data_path = argv[2];
    o.out_path = argv[3];
    o.learning_rate = 1e-3;
    o.schedule = QN_SCHEDULE_COSINE;
    o.batch_sequences = 4;
    o.n_epochs = 3;
    if (open_training(&o) != QN_OK) return fail();
    signal(SIGINT, on_signal);
    qn_status status = qn_training_run(under_way, tell, NULL);
    signal(SIGINT, SIG_DFL);
    qn_training_close(under_way);
    char adapter[4096];
    snprintf(adapter, sizeof adapter, "%s/last", argv[3]);
    if (status == QN_OK && argc == 5) status = answer(argv[1], adapter, argv[4]);
    return status == QN_OK ? 0 : fail();
}
