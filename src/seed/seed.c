#include "seed/seed.h"

#include <string.h>
#include <sys/stat.h>

#include "base/embed.h"

QN_EMBED(qn_seed_file, "src/seed/seed.gguf");

int qn_seed_is_path(const char *path)
{
    struct stat st;
    return strcmp(path, QN_SEED_PATH) == 0 || (strcmp(path, "seed") == 0 && stat(path, &st) != 0);
}

const void *qn_seed_bytes(size_t *n)
{
    *n = (size_t)(qn_seed_file_end - qn_seed_file);
    return qn_seed_file;
}
