/* Which of a repository's files are fetched. One model is taken: a GGUF file, all parts of a split one, or the
 * safetensors with the small files beside them. Where there are several, the machine's memory decides, and `why` is
 * the sentence that says so: the largest of a type that quern computes with is taken that leaves half of the memory
 * free. What is named is taken whatever its size. Pure functions, any thread. */
#ifndef QN_HUB_NAMES_CHOOSE_H
#define QN_HUB_NAMES_CHOOSE_H

#include "hub/names/listing.h"

typedef struct {
    int no_tower; /* set by the caller: no vision tower is taken */
    qn_hub_files
        files; /* to fetch; copies. The vision tower (mmproj) of a GGUF file that lies beside it is among them */
    char main
        [512]; /* the GGUF file among them, the first of its parts; "" for safetensors: the folder is the model */
    char why[512]; /* "" where there was nothing to choose */
} qn_hub_choice;

/* pick: a file, its last part, one part of a split one, or a quantisation; "" lets memory_bytes decide.
 * QN_E_NOT_FOUND: no such file, no model, or a part is missing; QN_E_FULL: none fits; QN_E_ARG: pick means several.
 * out is zeroed by the caller and freed by qn_hub_choice_free, whatever came. */
qn_status qn_hub_choose(const char *what, const qn_hub_files *all, const char *pick, int64_t memory_bytes,
                        qn_hub_choice *out);
void qn_hub_choice_free(qn_hub_choice *c);

/* The quantisation in a file's name, as in the table ("Q4_K_M"); "" where there is none. */
const char *qn_hub_quant_of(const char *path);
/* What names files of a repository: a path, the last part of one, or a quantisation. */
typedef struct {
    const char *text; /* borrowed */
    int is_path;      /* a file has this very path: no other file is meant, but for its parts */
} qn_hub_pick;
qn_hub_pick qn_hub_pick_read(const qn_hub_files *all, const char *text);
/* Is the GGUF file called path meant? All parts of a split one are, if one is named. */
int qn_hub_pick_fits(const qn_hub_pick *pick, const char *path);
/* Is it the file of a vision tower by its name (mmproj)? */
int qn_hub_is_tower(const char *path);
/* What a model of files of so many bytes takes, roughly: its weights packed, and a context. */
int64_t qn_hub_memory_needed(int64_t file_bytes);
/* This machine's memory, or that of the group that the process is in. */
int64_t qn_hub_machine_memory(void);
/* "2.5 GB" into text (decimal units, as the Hub shows sizes); returns text. */
const char *qn_hub_size_text(int64_t n_bytes, char *text, size_t size);

#endif
