/* The main of a fuzz target outside the fuzzer: feeds it every file of the folders and files given, in the
 * order of their names, so that what once went wrong is tried again by `make test`. With nothing to feed it
 * still tries the empty input. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        if (f) fclose(f);
        return 1;
    }
    long size = ftell(f);
    rewind(f);
    /* Exactly as long as the file, so that reading past the end is seen by AddressSanitizer. */
    uint8_t *data = size < 0 ? NULL : qn_alloc((size_t)size);
    int bad = !data || fread(data, 1, (size_t)size, f) != (size_t)size;
    if (!bad) {
        fprintf(stderr, "%s (%ld bytes)\n", path, size);
        LLVMFuzzerTestOneInput(data, (size_t)size);
    }
    qn_free(data);
    fclose(f);
    return bad;
}

int main(int argc, char **argv)
{
    int n_files = 0, bad = 0;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        struct dirent **entries;
        int n = scandir(argv[i], &entries, NULL, alphasort);
        if (n < 0) {
            bad += replay(argv[i]);
            n_files++;
            continue;
        }
        for (int j = 0; j < n; j++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], entries[j]->d_name);
            if (entries[j]->d_name[0] != '.') {
                bad += replay(path);
                n_files++;
            }
            free(entries[j]); /* foreign: scandir's */
        }
        free(entries); /* foreign: scandir's */
    }
    printf("%d inputs\n", n_files);
    return bad ? 1 : 0;
}
