#include "tests/hostile/hostile.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/scratch.h"

/* What opening may take at once: so much for the readers and the programs of the smallest model, and so much
 * for each byte of the files. What was seen stays below half of the first and the second together. */
enum { BYTES_ALWAYS = 3 << 19, BYTES_PER_BYTE = 4 };

static size_t file_bytes(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t total = 0;
    struct stat st;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (stat(qn_test_path(folder, e->d_name), &st) != 0 || !S_ISREG(st.st_mode)) continue;
        size_t size = (size_t)st.st_size, kept = (size_t)st.st_blocks * 512 + 4096;
        total += size < kept ? size : kept; /* holes justify nothing */
    }
    closedir(dir);
    return total;
}

/* The message without "folder/", wherever that stands. */
static void strip(const char *folder, char *message)
{
    size_t n = strlen(folder);
    for (char *at = message; (at = strstr(at, folder));) {
        size_t cut = at[n] == '/' ? n + 1 : n;
        memmove(at, at + cut, strlen(at + cut) + 1);
    }
}

static qn_status take_logits(void *user, int64_t row, int64_t position, int64_t n_positions,
                             const float *logits)
{
    *(float *)user = logits[0];
    return QN_OK;
}

static qn_status use(qn_model *m, qn_test_opening *out)
{
    static const int32_t id;
    float first = 0;
    qn_model_info info;
    qn_status status = qn_model_get_info(m, &info);
    if (status == QN_OK) snprintf(out->notes, sizeof out->notes, "%s", info.notes);
    return status == QN_OK ? qn_model_logits(m, &(qn_ids){&id, 1}, 1, NULL, take_logits, &first) : status;
}

void qn_test_open(const char *folder, const char *name, qn_test_opening *out)
{
    const qn_model_options options = {.n_threads = 1, .prefill_chunk = 4};
    int64_t blocks = qn_mem_live_blocks();
    size_t before = qn_mem_reset_peak();
    size_t most = BYTES_ALWAYS + BYTES_PER_BYTE * file_bytes(folder);
    qn_model *m = NULL;
    *out = (qn_test_opening){.status = QN_OK};
    out->status = qn_model_open(*name ? qn_test_path(folder, name) : folder, &options, &m);
    if (out->status == QN_OK) out->status = use(m, out);
    if (out->status != QN_OK) snprintf(out->message, sizeof out->message, "%s", qn_last_error());
    strip(folder, out->message);
    qn_model_close(&m);
    out->peak_bytes = qn_mem_peak_bytes() - before;
    if (out->peak_bytes > most)
        fail_msg("%s: %zu bytes at once, %zu are allowed: %s", name, out->peak_bytes, most, out->message);
    if (qn_mem_live_blocks() != blocks) fail_msg("%s: memory stays behind: %s", name, out->message);
    if (out->status != QN_OK && !*out->message) fail_msg("%s: refused without a word", name);
}

int qn_test_matches(const char *pattern, const char *text)
{
    for (; *pattern && *pattern != '*'; pattern++, text++)
        if (*pattern != *text) return 0;
    if (!*pattern) return !*text;
    while (!qn_test_matches(pattern + 1, text))
        if (!*text++) return 0;
    return 1;
}

void qn_test_refused(const char *folder, const char *name, qn_status status, const char *pattern)
{
    qn_test_opening o;
    qn_test_open(folder, name, &o);
    if (o.status != status || !qn_test_matches(pattern, o.message))
        fail_msg("expected %s, \"%s\"\n     but it is %s, \"%s\"", qn_status_name(status), pattern,
                 qn_status_name(o.status), o.message);
}

void qn_test_accepted(const char *folder, const char *name)
{
    qn_test_opening o;
    qn_test_open(folder, name, &o);
    if (o.status != QN_OK) fail_msg("%s", o.message);
}

qn_model *qn_test_open_model(const char *path, const char *chat_template)
{
    qn_model *m = NULL;
    qn_model_options o = {.n_threads = 1, .chat_template = chat_template, .context_size = 64};
    if (qn_model_open(path, &o, &m) != QN_OK) fail_msg("%s", qn_last_error());
    return m;
}

char *qn_test_repeat(const char *before, const char *unit, size_t count, const char *after)
{
    size_t n_before = strlen(before), n_unit = strlen(unit), n = n_before + n_unit * count;
    char *text = qn_alloc(n + strlen(after) + 1);
    assert_non_null(text);
    memcpy(text, before, n_before);
    for (size_t i = 0; i < count; i++) memcpy(text + n_before + i * n_unit, unit, n_unit);
    memcpy(text + n, after, strlen(after) + 1);
    return text;
}

void qn_test_expect(const char *what, qn_status got, qn_status status, const char *pattern)
{
    if (got == status && (status == QN_OK || qn_test_matches(pattern, qn_last_error()))) return;
    fail_msg("%.80s: expected %s, \"%s\"\n     but it is %s, \"%s\"", what, qn_status_name(status), pattern,
             qn_status_name(got), got == QN_OK ? "" : qn_last_error());
}

const char *qn_test_folder;

int qn_test_folder_make(void **state)
{
    qn_test_folder = qn_test_scratch();
    return 0;
}

int qn_test_folder_remove(void **state)
{
    qn_test_remove(qn_test_folder);
    return 0;
}
