/* The machine as users see it. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/threads.h"
#include "device/cpu/cpu.h"

static char chip[128], sets[64];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void append(char *to, size_t size, const char *text)
{
    size_t n = strlen(to);
    snprintf(to + n, size - n, "%s%s", n ? " " : "", text);
}

/* The chip's own name; /proc/cpuinfo has none on some machines. */
static void read_names(void)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !chip[0] && fgets(line, sizeof line, f)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value[strcspn(value, "\n")] = 0;
        append(chip, sizeof chip, value + 2);
    }
    if (f) fclose(f);
    for (const char *const *name = qn_kernels_names(); *name; name++) append(sets, sizeof sets, *name);
}

/* A number in a file of the kernel's; otherwise where there is none ("max"). */
static long long read_number(const char *path, long long otherwise)
{
    long long value = otherwise;
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%lld", &value) != 1) value = otherwise;
    if (f) fclose(f);
    return value;
}

/* The number behind a name in a file of lines of such. */
static long long read_entry(const char *path, const char *name, long long otherwise)
{
    long long value = otherwise;
    char line[128];
    const size_t n = strlen(name);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, "%lld", &value) == 1) break;
    if (f) fclose(f);
    return value;
}

/* What a cgroup holds of files and has not used lately counts as available: a model's file, read once, would
 * otherwise leave no room for its context. */
static void read_memory(size_t *total, size_t *available)
{
    long long page = sysconf(_SC_PAGESIZE), all = sysconf(_SC_PHYS_PAGES) * page,
              kib = read_entry("/proc/meminfo", "MemAvailable:", -1), room = kib < 0 ? all : kib * 1024;
    long long limit = read_number("/sys/fs/cgroup/memory.max", -1);
    if (limit >= 0 && limit < all) {
        long long left = limit - read_number("/sys/fs/cgroup/memory.current", 0) +
                         read_entry("/sys/fs/cgroup/memory.stat", "inactive_file ", 0);
        all = limit;
        if (left < room) room = left;
    }
    *total = all > 0 ? (size_t)all : 0;
    *available = room > 0 ? (size_t)room : 0;
}

qn_status qn_cpu_get_info(qn_device_info *out)
{
    const qn_kernels *kernels;
    QN_TRY(qn_kernels_get(&kernels));
    pthread_once(&once, read_names);
    qn_device_info info = {.name = "cpu",
                           .description = chip,
                           .set = kernels->name,
                           .sets = sets,
                           .note = "",
                           .n_threads = qn_threads_default()};
    read_memory(&info.memory_bytes, &info.available_bytes);
    *out = info;
    return QN_OK;
}
