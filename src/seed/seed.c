#include "seed/seed.h"

#include <string.h>
#include <sys/stat.h>

/* The assembler copies the file into the constants. Its path is from the root of the tree, where make runs.
 */
#ifdef __APPLE__
#define SECTION ".section __DATA,__const\n"
#define SYMBOL(name) "_" name
#define PREVIOUS ".text\n"
#else
#define SECTION ".pushsection .rodata.qn_seed, \"a\", %progbits\n"
#define SYMBOL(name) name
#define PREVIOUS ".popsection\n"
#endif

// clang-format off
__asm__(SECTION
        ".balign 64\n"
        SYMBOL("qn_seed_file") ":\n"
        ".incbin \"src/seed/seed.gguf\"\n"
        SYMBOL("qn_seed_file_end") ":\n"
        ".byte 0\n"
        PREVIOUS);
// clang-format on
extern const unsigned char qn_seed_file[] __attribute__((visibility("hidden"))),
    qn_seed_file_end[] __attribute__((visibility("hidden")));

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
