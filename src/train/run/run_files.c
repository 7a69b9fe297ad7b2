/* What a training keeps in its folder, and how it goes on from there. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "train/run/run.h"

static const char state_name[] = "state.safetensors", log_name[] = "log.jsonl", last_name[] = "last",
                  best_name[] = "best";

/* What a state knows of the data: counters, then a position of the data set. */
enum { AT_TOKENS, AT_VALIDATED, AT_VALID_HASH, AT_EPOCH, AT_NEXT, AT_HELD };

static qn_status path_in(const qn_training *t, const char *name, char **out)
{
    qn_buf b = {0};
    qn_buf_printf(&b, "%s/%s", t->options.o.out_path, name);
    char *path = qn_buf_take(&b, NULL);
    if (!path) return QN_E_NOMEM;
    *out = path;
    return QN_OK;
}

/* ---- states ------------------------------------------------------------------------------------------- */

/* Of the data that is validated with: another one's best loss says nothing. */
static int64_t valid_hash(const qn_training *t)
{
    return t->valid ? (int64_t)(qn_dataset_hash(t->valid) >> 1) : 0;
}

static qn_status check_numbers(qn_training *t)
{
    const qn_trainable *what = qn_trainer_trainable(t->trainer);
    for (int64_t i = 0; i < what->n; i++)
        for (int64_t k = 0; k < what->arrays[i].n; k++) {
            float x;
            qn_trainable_read(&what->arrays[i], k, 1, &x);
            if (!isfinite(x))
                return qn_fail(QN_E_DEVICE, "%s is not finite after %lld steps: nothing is saved",
                               what->arrays[i].name, (long long)qn_trainer_steps(t->trainer));
        }
    return QN_OK;
}

qn_status qn_run_files_save_state(qn_training *t)
{
    qn_train_state_run run = {
        .settings = t->settings.data, .seed = t->options.o.seed, .best_loss = t->best_loss};
    qn_dataset_position at;
    char *path;
    QN_TRY(check_numbers(t));
    qn_dataset_tell(t->train, &at);
    run.position[AT_TOKENS] = t->n_tokens;
    run.position[AT_VALIDATED] = t->validated;
    run.position[AT_VALID_HASH] = valid_hash(t);
    run.position[AT_EPOCH] = at.epoch;
    run.position[AT_NEXT] = at.next;
    for (int64_t i = 0; i < at.n_held; i++) run.position[AT_HELD + i] = at.held[i];
    run.n_position = AT_HELD + at.n_held;
    QN_TRY(path_in(t, state_name, &path));
    const qn_status status = qn_train_state_write(path, t->trainer, &run);
    qn_free(path);
    return status;
}

static qn_status go_to(qn_training *t, const char *path, const qn_train_state *state)
{
    const qn_train_state_run *run = qn_train_state_get_run(state);
    qn_dataset_position at = {0};
    if (run->n_position < AT_HELD || run->n_position > AT_HELD + QN_DATASET_WINDOW ||
        run->position[AT_TOKENS] < 0)
        return qn_fail(QN_E_FORMAT, "%s: it lacks the position in the data", path);
    at.epoch = run->position[AT_EPOCH];
    at.next = run->position[AT_NEXT];
    at.n_held = run->n_position - AT_HELD;
    for (int64_t i = 0; i < at.n_held; i++) at.held[i] = run->position[AT_HELD + i];
    QN_TRY(qn_train_state_restore(state, t->trainer, t->settings.data));
    QN_TRY(qn_dataset_seek(t->train, &at));
    t->n_tokens = run->position[AT_TOKENS];
    if (run->position[AT_VALID_HASH] == valid_hash(t)) {
        t->validated = run->position[AT_VALIDATED];
        t->best_loss = run->best_loss;
    } else {
        qn_buf_puts(&t->notes, "the validation data has changed: the best loss starts over\n");
    }
    return t->notes.status;
}

/* Other devices have other bits. */
qn_status qn_run_files_take_device(qn_training *t)
{
    qn_train_options *o = &t->options.o;
    qn_train_state *state = NULL;
    char *path;
    if (!o->resume || o->model) return QN_OK;
    QN_TRY(path_in(t, state_name, &path));
    qn_status status = qn_train_state_open(path, &state);
    qn_free(path);
    const char *was = status == QN_OK ? qn_train_state_device(state) : NULL;
    if (was && (!o->device || strcmp(o->device, "auto") == 0)) {
        qn_free((char *)o->device);
        o->device = qn_strdup(was);
        if (!o->device) status = QN_E_NOMEM;
    } else if (was && strcmp(o->device, was) != 0) {
        qn_buf_printf(&t->notes, "the training began on the device %s, so the bits of this one differ\n",
                      was);
    }
    qn_train_state_close(state);
    return status;
}

qn_status qn_run_files_restore(qn_training *t)
{
    qn_train_state *state = NULL;
    char *path;
    QN_TRY(path_in(t, state_name, &path));
    qn_status status = qn_train_state_open(path, &state);
    if (status == QN_OK) status = go_to(t, path, state);
    qn_train_state_close(state);
    qn_free(path);
    return status;
}

/* ---- the folder --------------------------------------------------------------------------------------- */

static qn_status is_there(const qn_training *t, const char *name, int *out)
{
    struct stat about;
    char *path;
    QN_TRY(path_in(t, name, &path));
    *out = lstat(path, &about) == 0;
    qn_free(path);
    return QN_OK;
}

qn_status qn_run_files_check(const qn_training *t)
{
    static const char *const others[] = {last_name, best_name, log_name};
    const qn_train_options *o = &t->options.o;
    struct stat about;
    int found;
    if (!o->out_path) return QN_OK;
    if (stat(o->out_path, &about) == 0 && !S_ISDIR(about.st_mode))
        return qn_fail(QN_E_ARG, "%s: it already exists and is not a folder", o->out_path);
    QN_TRY(is_there(t, state_name, &found));
    if (o->resume && !found)
        return qn_fail(QN_E_NOT_FOUND, "%s: there is no training in this folder to resume", o->out_path);
    if (o->resume || o->overwrite) return QN_OK;
    if (found)
        return qn_fail(QN_E_ARG,
                       "%s: there is a training in this folder; resume it, overwrite it, or use another "
                       "folder",
                       o->out_path);
    /* Not a training's, maybe, but a training would write there. */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        QN_TRY(is_there(t, others[i], &found));
        if (found)
            return qn_fail(QN_E_ARG,
                           "%s: this folder already contains %s; overwrite it, or use another folder",
                           o->out_path, others[i]);
    }
    return QN_OK;
}

static qn_status make_folder(const char *path)
{
    struct stat about;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && stat(path, &about) == 0 && S_ISDIR(about.st_mode)))
        return QN_OK;
    return qn_fail(QN_E_IO, "%s: cannot create the folder: %s", path, strerror(errno));
}

/* What was saved by a training that is overwritten: the folder with the files in it. */
static qn_status drop_saved(const qn_training *t, const char *name)
{
    char *path;
    QN_TRY(path_in(t, name, &path));
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(path);
    qn_free(path);
    return QN_OK;
}

/* ---- what one that was killed left behind -------------------------------------------------------------- */

/* "NAME.PID-N.tmp": what writers fill before it takes its place. */
static int is_unfinished(const char *entry, const char *name)
{
    static const char digits[] = "0123456789";
    const size_t n = strlen(name);
    if (strncmp(entry, name, n) != 0 || entry[n] != '.') return 0;
    const char *pid = entry + n + 1, *number = pid + strspn(pid, digits) + 1;
    if (number == pid + 1 || number[-1] != '-') return 0;
    const size_t m = strspn(number, digits);
    return m && strcmp(number + m, ".tmp") == 0;
}

/* A folder that was to change places with `name`, or has: files that this one has too, all where there is
 * none. What else somebody put there stays. */
static void drop_unfinished_folder(int at, const char *entry, const char *name)
{
    const int file = openat(at, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
              finished = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = file >= 0 ? fdopendir(file) : NULL;
    struct stat about;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (finished < 0 || fstatat(finished, e->d_name, &about, 0) == 0) unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    else if (file >= 0)
        close(file);
    if (finished >= 0) close(finished);
    unlinkat(at, entry, AT_REMOVEDIR);
}

/* Whoever holds the log is the only one to write here. */
static void drop_unfinished(const char *folder)
{
    static const char *const names[] = {state_name, last_name, best_name, "report.html"};
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d));)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (is_unfinished(e->d_name, names[i]) && unlinkat(dirfd(d), e->d_name, 0) != 0)
                drop_unfinished_folder(dirfd(d), e->d_name, names[i]);
    if (d) closedir(d);
}

static qn_status begin_files(qn_training *t)
{
    char *path, *saved = NULL;
    if (t->options.o.resume) return QN_OK;
    if (t->options.o.overwrite) {
        QN_TRY(
            path_in(t, state_name, &path)); /* first of all: what is left of the old one cannot be resumed */
        unlink(path);
        qn_free(path);
        QN_TRY(drop_saved(t, best_name));
        QN_TRY(drop_saved(t, last_name));
    }
    QN_TRY(qn_run_files_save_last(t, &saved));
    qn_free(saved);
    return qn_run_files_save_state(t);
}

qn_status qn_run_files_begin(qn_training *t)
{
    char *path;
    if (!t->options.o.out_path || t->log) return QN_OK;
    QN_TRY(make_folder(t->options.o.out_path));
    QN_TRY(path_in(t, log_name, &path));
    const int64_t step = t->options.o.resume ? qn_trainer_steps(t->trainer) : -1;
    qn_run_log *log = NULL;
    qn_status status = qn_run_log_open(path, step, &log);
    qn_free(path);
    if (status == QN_OK) drop_unfinished(t->options.o.out_path);
    if (status == QN_OK) status = begin_files(t);
    if (status == QN_OK)
        t->log = log;
    else
        qn_run_log_close(log);
    return status;
}

/* ---- what is trained ---------------------------------------------------------------------------------- */

static qn_status save_as(qn_training *t, const char *name, char **saved)
{
    char *path;
    QN_TRY(check_numbers(t));
    QN_TRY(path_in(t, name, &path));
    const qn_status status = qn_training_save(t, path, t->options.o.layout);
    if (status == QN_OK)
        *saved = path;
    else
        qn_free(path);
    return status;
}

qn_status qn_run_files_save_last(qn_training *t, char **saved)
{
    return save_as(t, last_name, saved);
}

qn_status qn_run_files_save_best(qn_training *t, char **saved)
{
    return save_as(t, best_name, saved);
}
