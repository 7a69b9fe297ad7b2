/* The seed: a toy language model that is part of the program, so that it answers without any file. It is the
 * GGUF file seed.gguf beside this header, byte by byte; docs/training-the-seed.md says how it was made.
 * Constant data, any thread. */
#ifndef QN_SEED_SEED_H
#define QN_SEED_SEED_H

#include <stddef.h>

/* The path that names it (QN_SEED in quern/model.h says the same to users). */
#define QN_SEED_PATH "seed:"

/* Does path name the seed? "seed:" does, and "seed" where nothing has that name. */
int qn_seed_is_path(const char *path);
/* The file, at a multiple of 64. */
const void *qn_seed_bytes(size_t *n);

#endif
