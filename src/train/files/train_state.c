#include "train/files/train_state.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/c_locale.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/safetensors/safetensors.h"

/* What __metadata__ has, in the order of the checksum, which comes last. */
enum { VERSION, STEPS, PRINT, TRAINER, SETTINGS, SEED, BEST, POSITION, SUM, META_COUNT };

static const char device_key[] = "quern.device"; /* that computed it */
static const char *const keys[META_COUNT] = {"quern.training", "quern.steps",    "quern.fingerprint",
                                             "quern.trainer",  "quern.settings", "quern.seed",
                                             "quern.best",     "quern.position", "quern.sum"};
static const char version_now[] = "1";

enum { TEXT_BYTES = 32, NAME_BYTES = sizeof((qn_trainable_array *)NULL)->name + 16, KINDS = 3 };
static const char *const kinds[KINDS] = {"trained.", "m.", "v."};

struct qn_train_state {
    qn_safetensors *file;
    const char *texts[META_COUNT]; /* the file's */
    qn_train_state_run run;
    uint64_t fingerprint;
    int64_t steps;
};

/* ---- what a state depends on -------------------------------------------------------------------------- */

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* Numbers as they are to the last bit, yet readable where they are short. */
static void put_real(qn_buf *b, const char *name, double value)
{
    qn_buf_printf(b, "%s=%.17g\n", name, value);
}

static void put_int(qn_buf *b, const char *name, int64_t value)
{
    qn_buf_printf(b, "%s=%" PRId64 "\n", name, value);
}

/* What of a trainer's options changes the steps to come: a line each. The shapes say the rest. */
static qn_status describe(const qn_trainer *t, qn_buf *b)
{
    static const char *const methods[] = {
        [QN_TRAIN_LORA] = "lora", [QN_TRAIN_DORA] = "dora", [QN_TRAIN_FULL] = "full"};
    const qn_trainer_options *o = qn_trainer_get_options(t);
    const qn_trainable_options *what = &o->trainable;
    const qn_optimizer *by = &o->optimizer;
    qn_buf_printf(b, "method=%s\n", methods[what->method]);
    if (what->method != QN_TRAIN_FULL) {
        put_int(b, "rank", what->rank);
        put_real(b, "alpha", (double)what->alpha);
        put_int(b, "rslora", what->rslora != 0);
        put_real(b, "dropout", (double)what->dropout);
        if (what->bf16) qn_buf_puts(b, "adapter=bf16\n");
        if (what->dropout > 0 || what->bf16) qn_buf_printf(b, "seed=%" PRIu64 "\n", what->seed);
    }
    if (by->kind == QN_OPTIMIZER_ADAMW) {
        qn_buf_puts(b, "optimizer=adamw\n");
        put_real(b, "beta1", by->beta1);
        put_real(b, "beta2", by->beta2);
        put_real(b, "eps", by->eps);
        put_int(b, "bias_correction", !by->no_bias_correction);
    } else {
        qn_buf_puts(b, "optimizer=sgd\n");
        put_real(b, "momentum", by->momentum);
    }
    put_real(b, "weight_decay", by->weight_decay);
    put_real(b, "clip_norm", o->clip_norm > 0 ? o->clip_norm : 0);
    put_int(b, "precision", o->precision);
    return b->status;
}

/* The first line in which two texts differ. */
static qn_status compare_lines(const char *path, const char *was, const char *is)
{
    while (*was && *is) {
        const size_t n = strcspn(was, "\n"), m = strcspn(is, "\n");
        if (n != m || memcmp(was, is, n) != 0) break;
        was += n + (was[n] == '\n');
        is += m + (is[m] == '\n');
    }
    const int n = (int)strcspn(was, "\n"), m = (int)strcspn(is, "\n");
    if (!n && !m) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: it belongs to a training with %.*s; this one has %.*s%s", path,
                   n ? n < 200 ? n : 200 : 7, n ? was : "nothing", m ? m < 200 ? m : 200 : 4, m ? is : "none",
                   strncmp(was, "data=", 5) == 0 ? ": the training data differs" : "");
}

/* ---- checksum ----------------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *text, uint64_t hash)
{
    return qn_hash_bytes(text, strlen(text) + 1, hash);
}

static uint64_t hash_tensor(const char *name, int n_dims, const int64_t *shape, const void *data,
                            size_t size_bytes, uint64_t hash)
{
    hash = hash_text(name, hash);
    hash = qn_hash_bytes(shape, (size_t)n_dims * sizeof *shape, hash);
    return qn_hash_bytes(data, size_bytes, hash);
}

/* device NULL: the file is of a time before it was kept. */
static uint64_t hash_texts(const char *const texts[META_COUNT], const char *device)
{
    uint64_t hash = 1;
    for (int i = 0; i < SUM; i++) hash = hash_text(texts[i], hash);
    return device ? hash_text(device, hash) : hash;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

/* Numbers as they lie; data NULL: there are none. */
typedef struct {
    void *data;
    size_t size_bytes;
    qn_dtype dtype;
} numbers;

static numbers numbers_of(qn_trainer *t, int64_t i, int kind)
{
    const qn_trainable_array *a = &qn_trainer_trainable(t)->arrays[i];
    if (!kind)
        return (numbers){
            .data = qn_trainable_numbers(a), .size_bytes = qn_trainable_bytes(a), .dtype = a->dtype};
    return (numbers){.data = qn_trainer_moment(t, i, kind - 1),
                     .size_bytes = (size_t)a->n * sizeof(float),
                     .dtype = QN_DTYPE_F32};
}

static void tensor_name(const qn_trainable_array *a, int kind, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%s%s", kinds[kind], a->name);
}

static uint64_t hash_numbers(qn_trainer *t, uint64_t hash)
{
    const qn_trainable *what = qn_trainer_trainable(t);
    char name[NAME_BYTES];
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t i = 0; i < what->n; i++) {
            const qn_trainable_array *a = &what->arrays[i];
            const numbers x = numbers_of(t, i, kind);
            tensor_name(a, kind, name);
            if (x.data) hash = hash_tensor(name, a->shape.n, a->shape.dim, x.data, x.size_bytes, hash);
        }
    return hash;
}

static qn_status write_numbers(qn_trainer *t, qn_st_writer *w)
{
    const qn_trainable *what = qn_trainer_trainable(t);
    char name[NAME_BYTES];
    int64_t index = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t i = 0; i < what->n; i++) {
            const qn_trainable_array *a = &what->arrays[i];
            const numbers x = numbers_of(t, i, kind);
            tensor_name(a, kind, name);
            if (x.data) QN_TRY(qn_st_writer_add(w, name, x.dtype, a->shape.n, a->shape.dim, NULL));
        }
    QN_TRY(qn_st_writer_begin(w));
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t i = 0; i < what->n; i++) {
            const numbers x = numbers_of(t, i, kind);
            if (x.data) QN_TRY(qn_st_writer_write(w, index++, 0, x.data, x.size_bytes));
        }
    return qn_st_writer_finish(w);
}

static qn_status write_texts(qn_st_writer *w, const char *const texts[META_COUNT])
{
    for (int i = 0; i < META_COUNT; i++) QN_TRY(qn_st_writer_metadata(w, keys[i], texts[i]));
    return QN_OK;
}

qn_status qn_train_state_write(const char *path, qn_trainer *t, const qn_train_state_run *run)
{
    char steps[TEXT_BYTES], print[TEXT_BYTES], seed[TEXT_BYTES], best[TEXT_BYTES], sum[TEXT_BYTES];
    qn_buf trainer = {0}, position = {0};
    qn_st_writer *w = NULL;
    const char *device = qn_trainer_base(t)->device->ops->name;
    if (run->n_position < 0 || run->n_position > QN_TRAIN_STATE_POSITION_MAX)
        return qn_fail(QN_E_ARG, "%s: the position has %lld numbers", path, (long long)run->n_position);
    qn_status status = describe(t, &trainer);
    for (int64_t i = 0; i < run->n_position; i++)
        qn_buf_printf(&position, "%s%" PRId64, i ? "," : "", run->position[i]);
    if (status == QN_OK) status = position.status;
    snprintf(steps, sizeof steps, "%" PRId64, qn_trainer_steps(t));
    snprintf(print, sizeof print, "%016" PRIx64, qn_trainer_base(t)->fingerprint);
    snprintf(seed, sizeof seed, "%" PRIu64, run->seed);
    snprintf(best, sizeof best, "%a", run->best_loss);
    const char *texts[META_COUNT] = {version_now,
                                     steps,
                                     print,
                                     or_empty(trainer.data),
                                     or_empty(run->settings),
                                     seed,
                                     best,
                                     or_empty(position.data),
                                     sum};
    snprintf(sum, sizeof sum, "%016" PRIx64, hash_numbers(t, hash_texts(texts, device)));
    if (status == QN_OK) status = qn_st_writer_new(path, &w);
    if (status == QN_OK) status = qn_st_writer_metadata(w, device_key, device);
    if (status == QN_OK) status = write_texts(w, texts);
    if (status == QN_OK) status = write_numbers(t, w);
    qn_st_writer_free(w);
    qn_buf_free(&trainer);
    qn_buf_free(&position);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static qn_status bad_text(const qn_train_state *c, int which)
{
    return qn_fail(QN_E_FORMAT, "%s: %s \"%.40s\" is not valid", qn_safetensors_path(c->file), keys[which],
                   c->texts[which]);
}

/* A whole number and nothing else; digits: of its base. */
static qn_status read_uint(const qn_train_state *c, int which, int base, uint64_t *out)
{
    const char *text = c->texts[which];
    char *end;
    errno = 0;
    *out = strtoull(text, &end, base);
    return errno || !*text || *end || strspn(text, "0123456789abcdef") != strlen(text) ? bad_text(c, which)
                                                                                       : QN_OK;
}

static qn_status read_position(qn_train_state *c)
{
    const char *at = c->texts[POSITION];
    while (*at) {
        char *end;
        if (c->run.n_position == QN_TRAIN_STATE_POSITION_MAX) return bad_text(c, POSITION);
        errno = 0;
        c->run.position[c->run.n_position++] = strtoll(at, &end, 10);
        if (errno || end == at || (*end && (*end != ',' || !end[1]))) return bad_text(c, POSITION);
        at = end + (*end == ',');
    }
    return QN_OK;
}

static qn_status check_sum(const qn_train_state *c, uint64_t wanted)
{
    uint64_t hash = hash_texts(c->texts, qn_safetensors_metadata(c->file, device_key));
    for (int64_t i = 0; i < qn_safetensors_count(c->file); i++) {
        const qn_tensor_view *v = qn_safetensors_get(c->file, i);
        if (!v->supported || (v->dtype != QN_DTYPE_F32 && v->dtype != QN_DTYPE_BF16))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s is neither f32 nor bf16", v->file, v->name);
        hash = hash_tensor(v->name, v->n_dims, v->shape, v->data, v->size_bytes, hash);
    }
    if (hash == wanted) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: its checksum is wrong: the file is damaged",
                   qn_safetensors_path(c->file));
}

static qn_status read_texts(qn_train_state *c)
{
    const char *path = qn_safetensors_path(c->file);
    uint64_t steps, sum;
    char *end;
    for (int i = 0; i < META_COUNT; i++)
        if (!(c->texts[i] = qn_safetensors_metadata(c->file, keys[i])))
            return qn_fail(QN_E_FORMAT, "%s: not the state of a training", path);
    if (strcmp(c->texts[VERSION], version_now) != 0)
        return qn_fail(QN_E_FORMAT,
                       "%s: training state of format %.16s; this version of quern reads format %s", path,
                       c->texts[VERSION], version_now);
    QN_TRY(read_uint(c, STEPS, 10, &steps));
    if (steps >= INT64_MAX) return bad_text(c, STEPS); /* another one follows */
    c->steps = (int64_t)steps;
    QN_TRY(read_uint(c, PRINT, 16, &c->fingerprint));
    QN_TRY(read_uint(c, SEED, 10, &c->run.seed));
    QN_TRY(read_uint(c, SUM, 16, &sum));
    c->run.best_loss = qn_parse_real(c->texts[BEST], &end);
    if (!*c->texts[BEST] || *end || isnan(c->run.best_loss)) return bad_text(c, BEST);
    c->run.settings = c->texts[SETTINGS];
    QN_TRY(read_position(c));
    return check_sum(c, sum);
}

static qn_status make(qn_safetensors *file, qn_train_state **out)
{
    qn_train_state *c = qn_calloc(1, sizeof *c);
    if (!c) {
        qn_safetensors_close(file);
        return QN_E_NOMEM;
    }
    c->file = file;
    qn_status status = read_texts(c);
    if (status == QN_OK)
        *out = c;
    else
        qn_train_state_close(c);
    return status;
}

qn_status qn_train_state_open(const char *path, qn_train_state **out)
{
    qn_safetensors *file;
    QN_TRY(qn_safetensors_open(path, &file));
    return make(file, out);
}

qn_status qn_train_state_open_bytes(const char *name, const void *bytes, size_t n, qn_train_state **out)
{
    qn_safetensors *file;
    QN_TRY(qn_safetensors_open_bytes(name, bytes, n, &file));
    return make(file, out);
}

void qn_train_state_close(qn_train_state *c)
{
    if (!c) return;
    qn_safetensors_close(c->file);
    qn_free(c);
}

int64_t qn_train_state_steps(const qn_train_state *c)
{
    return c->steps;
}

const char *qn_train_state_device(const qn_train_state *c)
{
    return qn_safetensors_metadata(c->file, device_key);
}

const qn_train_state_run *qn_train_state_get_run(const qn_train_state *c)
{
    return &c->run;
}

/* ---- going on ----------------------------------------------------------------------------------------- */

/* *out: the file's numbers of an array; NULL where the trainer has none. */
static qn_status find_numbers(const qn_train_state *c, qn_trainer *t, int64_t i, int kind,
                              const qn_tensor_view **out)
{
    const qn_trainable_array *a = &qn_trainer_trainable(t)->arrays[i];
    char name[NAME_BYTES], shape[128];
    *out = NULL;
    const numbers x = numbers_of(t, i, kind);
    if (!x.data) return QN_OK;
    tensor_name(a, kind, name);
    const qn_tensor_view *v = qn_safetensors_find(c->file, name);
    if (!v)
        return qn_fail(QN_E_UNSUPPORTED, "%s: it lacks %s, which this training has",
                       qn_safetensors_path(c->file), name);
    int same = v->n_dims == a->shape.n;
    for (int d = 0; same && d < v->n_dims; d++) same = v->shape[d] == a->shape.dim[d];
    if (!same)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: shape %s, but the trained array has %lld elements",
                       v->file, v->name, qn_view_shape_text(v, shape, sizeof shape), (long long)a->n);
    if (v->dtype != x.dtype)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: its type is %s, but the trained array has %s",
                       v->file, v->name, qn_dtype_name(v->dtype), qn_dtype_name(x.dtype));
    *out = v;
    return QN_OK;
}

static qn_status check(const qn_train_state *c, qn_trainer *t, const char *settings)
{
    const char *path = qn_safetensors_path(c->file);
    const qn_trainable *what = qn_trainer_trainable(t);
    qn_buf trainer = {0};
    int64_t n = 0;
    if (c->fingerprint != qn_trainer_base(t)->fingerprint)
        return qn_fail(QN_E_UNSUPPORTED, "%s: it belongs to a training on another base model", path);
    qn_status status = describe(t, &trainer);
    if (status == QN_OK) status = compare_lines(path, c->texts[TRAINER], or_empty(trainer.data));
    qn_buf_free(&trainer);
    if (status == QN_OK) status = compare_lines(path, c->texts[SETTINGS], or_empty(settings));
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t i = 0; i < what->n && status == QN_OK; i++) {
            const qn_tensor_view *v;
            status = find_numbers(c, t, i, kind, &v);
            n += status == QN_OK && v;
        }
    if (status == QN_OK && n != qn_safetensors_count(c->file))
        status = qn_fail(QN_E_UNSUPPORTED, "%s: it has %lld arrays, but this training has %lld", path,
                         (long long)qn_safetensors_count(c->file), (long long)n);
    return status;
}

qn_status qn_train_state_restore(const qn_train_state *c, qn_trainer *t, const char *settings)
{
    qn_trainable *what = qn_trainer_trainable(t);
    QN_TRY(check(c, t, settings));
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t i = 0; i < what->n; i++) {
            const qn_tensor_view *v;
            QN_TRY(find_numbers(c, t, i, kind, &v));
            if (v) memcpy(numbers_of(t, i, kind).data, v->data, v->size_bytes);
        }
    qn_trainer_resume(t, c->steps);
    return QN_OK;
}
