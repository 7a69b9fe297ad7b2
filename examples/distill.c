/* Distillation: distill STUDENT TEACHER TEXT [TEACHER_ADAPTER [OUT]]. Trains an adapter of the student until its
 * distributions over the next token, at every token of TEXT, are the teacher's. Both need the same vocabulary.
 * Build: cc distill.c $(pkg-config --cflags --libs quern) -o distill */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20 };

/* What the teacher says, [1, n, vocab_size]. */
typedef struct {
    float *logits;
    int64_t n, vocab_size;
} lesson;

static qn_status keep(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    lesson *l = user;
    (void)row;
    memcpy(l->logits + position * l->vocab_size, values, (size_t)(n * l->vocab_size) * sizeof *values);
    return QN_OK;
}

static qn_status ask(const char *path, const char *adapter, const int32_t *ids, int64_t n, lesson *out)
{
    qn_model *teacher = NULL;
    qn_model_info info;
    const qn_ids row = {ids, n};
    qn_status status = qn_model_open(path, &(qn_model_options){.adapter_path = adapter}, &teacher);
    if (status == QN_OK) status = qn_model_get_info(teacher, &info);
    if (status == QN_OK && info.vocab_size != out->vocab_size) {
        fprintf(stderr, "distill: %lld tokens in the teacher's vocabulary\n", (long long)info.vocab_size);
        status = QN_E_ARG;
    } else if (status == QN_OK) {
        *out = (lesson){calloc((size_t)(n * info.vocab_size), sizeof(float)), n, info.vocab_size};
        if (!out->logits) status = QN_E_NOMEM;
    }
    if (status == QN_OK) status = qn_model_logits(teacher, &row, 1, NULL, keep, out);
    qn_model_close(&teacher);
    return status;
}

/* The mean over rows of the divergence of the student's distribution from the teacher's. */
static qn_array *divergence(qn_scope *s, qn_finetune *f, qn_array *ids, const lesson *l)
{
    const qn_loss_options each = {.reduction = QN_LOSS_SUM};
    qn_array *teacher = qn_from_data(s, QN_DTYPE_F32, 3, (int64_t[]){1, l->n, l->vocab_size}, l->logits);
    qn_array *student = qn_log_softmax(s, qn_finetune_forward(f, s, NULL, ids, NULL), -1);
    qn_array *sum = qn_loss_kl_div(s, student, qn_log_softmax(s, teacher, -1), 1, &each);
    return qn_scale(s, sum, 1 / (double)l->n);
}

static qn_status learn(qn_finetune *f, const int32_t *ids, const lesson *l)
{
    qn_optimizer_options optimizer = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    optimizer.rate = 3e-3;
    for (int i = 0; i < STEPS; i++) {
        qn_finetune_report report;
        qn_scope *s = qn_scope_inner(qn_finetune_scope(f));
        if (!s) return QN_E_NOMEM;
        qn_array *rows = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){1, l->n}, ids);
        qn_status status = qn_finetune_step(f, s, divergence(s, f, rows, l), &optimizer, 1, &report);
        qn_scope_close(s);
        if (status != QN_OK) return status;
        printf("step %lld: loss %.6f\n", (long long)report.step, report.loss);
    }
    return QN_OK;
}

int main(int argc, char **argv)
{
    qn_model *model = NULL;
    qn_finetune *f = NULL;
    lesson l = {0};
    qn_model_info info;
    int32_t *ids = NULL;
    int64_t n = 0;
    if (argc < 4 || argc > 6) {
        fprintf(stderr, "usage: distill STUDENT TEACHER TEXT [TEACHER_ADAPTER [OUT]]\n");
        return 2;
    }
    qn_status status = qn_model_open(argv[1], NULL, &model);
    if (status == QN_OK) status = qn_finetune_open(model, NULL, &f);
    if (status == QN_OK)
        status = qn_model_encode(model, argv[3], strlen(argv[3]), &(qn_encode_options){.bos = 1}, &ids, &n);
    if (status == QN_OK) status = qn_model_get_info(model, &info);
    l.vocab_size = status == QN_OK ? info.vocab_size : 0;
    if (status == QN_OK) status = ask(argv[2], argc > 4 ? argv[4] : NULL, ids, n, &l);
    if (status == QN_OK) status = learn(f, ids, &l);
    if (status == QN_OK && argc == 6) status = qn_finetune_save(f, argv[5], QN_ADAPTER_PEFT);
    if (status != QN_OK && *qn_last_error()) fprintf(stderr, "distill: %s\n", qn_last_error());
    free(l.logits);
    qn_buffer_free(ids);
    qn_finetune_close(f);
    qn_model_close(&model);
    return status == QN_OK ? 0 : 1;
}
