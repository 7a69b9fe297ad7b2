/* The GGUF models among the files of a repository: each is one file, or all parts of a split one in the same folder. A
 * set without one of its parts is no model. Pure functions, any thread. */
#ifndef QN_HUB_NAMES_GGUF_SET_H
#define QN_HUB_NAMES_GGUF_SET_H

#include "hub/names/listing.h"

typedef struct {
    const qn_hub_file *first; /* the file, or of the parts that are there the lowest; borrowed */
    int64_t n_parts;          /* 1: the file is whole by its name */
    int64_t n_here;           /* parts that are there */
    int64_t size;             /* bytes of those together */
} qn_hub_gguf;

/* 1: file i of all is one, or the lowest part of a set; 0: it is another file, or a later part. Takes time in
 * proportion to the number of files. */
int qn_hub_gguf_read(const qn_hub_files *all, size_t i, qn_hub_gguf *out);
static inline int qn_hub_gguf_is_whole(const qn_hub_gguf *g)
{
    return g->n_here == g->n_parts;
}
/* Copies all parts into files, in order. QN_E_NOT_FOUND: one is missing; the sentence, which begins with what, names
 * it. */
qn_status qn_hub_gguf_take(const char *what, const qn_hub_files *all, const qn_hub_gguf *g,
                           qn_hub_files *files);

#endif
