/* Which files a path stands for: the rules of source.h, applied to names alone (only a shard index is read).
 * Used by source.c. One thread at a time. */
#ifndef QN_FORMAT_SOURCE_SOURCE_FILES_H
#define QN_FORMAT_SOURCE_SOURCE_FILES_H

#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "format/source/source.h"

/* A line of a shard index: the tensor must be in files[i_file]. */
typedef struct {
    const char *tensor;
    size_t i_file;
} qn_index_entry;

typedef struct {
    qn_arena arena;     /* owns all that is below */
    const char *folder; /* where the side files lie */
    qn_source_kind kind;
    int is_seed;        /* the weights are the program's own; files[0] is the name that stands for them */
    const char **files; /* paths of the weights, sorted by name; none for QN_SOURCE_TEXT */
    size_t n_files;
    const char **templates; /* names of additional_chat_templates/NAME.jinja, sorted */
    size_t n_templates;
    const char *index_path; /* NULL: no index */
    const qn_index_entry *entries;
    size_t n_entries;
} qn_source_files;

/* Fills a zeroed *f. On failure too it is to be cleared. */
qn_status qn_source_files_find(const char *path, const qn_source_options *options, qn_source_files *f);
/* The file, one of n_parts, becomes all of them in order. QN_E_NOT_FOUND names those that are missing;
 * QN_E_FORMAT: its name is not that of a part. */
qn_status qn_source_files_add_parts(qn_source_files *f, int64_t part, int64_t n_parts);
/* Fills templates and n_templates. */
qn_status qn_source_files_find_templates(qn_source_files *f);
/* *out: the path of the first file by name that ends in .tiktoken; as it was if there is none. */
qn_status qn_source_files_find_tiktoken(qn_source_files *f, const char **out);
/* The path of one. NULL: out of memory. */
char *qn_source_files_template_path(const qn_source_files *f, size_t i);
void qn_source_files_clear(qn_source_files *f);
/* "config.json". */
const char *qn_side_file_name(qn_side_file which);
/* folder + "/" + name in the arena; NULL: out of memory. */
const char *qn_source_join(qn_arena *arena, const char *folder, const char *name);

#endif
