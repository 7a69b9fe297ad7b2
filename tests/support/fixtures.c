#include "tests/support/fixtures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_PATHS = 24, PATH_MAX_BYTES = 4096 };

static char *next_buffer(void)
{
    static _Thread_local char paths[N_PATHS][PATH_MAX_BYTES];
    static _Thread_local unsigned i_next;
    return paths[i_next++ % N_PATHS];
}

/* folder/below relative when that exists; below: "", or with a slash at its end. */
static const char *existing(const char *folder, const char *below, const char *relative)
{
    char *path = next_buffer();
    int n = snprintf(path, PATH_MAX_BYTES, "%s/%s%s", folder, below, relative);
    return n > 0 && n < PATH_MAX_BYTES && access(path, R_OK) == 0 ? path : NULL;
}

const char *qn_test_fixture(const char *relative)
{
    static const char models[] = "models/";
    const size_t n = sizeof models - 1;
    const char *set = getenv("QUERN_FIXTURES"), *folder = set && *set ? set : "../shared/fixtures";
    const char *path = existing(folder, "", relative);
    if (!path && strncmp(relative, models, n) == 0) path = existing(folder, "families2/", relative + n);
    return path ? path : existing("tests/golden", "", relative);
}

const char *qn_test_model(const char *name)
{
    static const struct {
        const char *name, *file;
    } models[] = {{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
                  {"gemma3-270m", "gemma-3-270m-q4_k_m.gguf"}};
    const char *cache = getenv("QUERN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char relative[256];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(models[i].name, name) != 0) continue;
        const char *below = cache && *cache ? "" : xdg && *xdg ? "quern/" : ".cache/quern/";
        const char *folder = cache && *cache ? cache : xdg && *xdg ? xdg : home ? home : "";
        snprintf(relative, sizeof relative, "%smodels/%s/%s", below, name, models[i].file);
        return existing(folder, "", relative);
    }
    return NULL;
}

void qn_test_leave_out(const char *why)
{
    printf("skipped: %s\n", why);
    skip();
}

const char *qn_test_need_fixture(const char *relative)
{
    const char *path = qn_test_fixture(relative);
    char why[512];
    snprintf(why, sizeof why,
             "%s is not in this clone: it is of the larger fixtures (QUERN_FIXTURES, CONTRIBUTING.md)",
             relative);
    if (!path) qn_test_leave_out(why);
    return path;
}

const char *qn_test_need_model(const char *name)
{
    const char *path = qn_test_model(name);
    char why[512];
    snprintf(why, sizeof why, "the model %s is absent (tools/fetch-models)", name);
    if (!path) qn_test_leave_out(why);
    return path;
}
