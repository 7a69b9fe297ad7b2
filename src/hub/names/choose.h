/* Which of a repository's files are fetched. One model is taken: a GGUF file, or the safetensors with the small
 * files beside them. Where there are several, the machine's memory decides, and `why` is the sentence that says so:
 * the largest file of a type that quern computes with is taken that leaves half of the memory free. What is named
 * is taken whatever its size. Pure functions, any thread. */
#ifndef QN_HUB_NAMES_CHOOSE_H
#define QN_HUB_NAMES_CHOOSE_H

#include "hub/names/listing.h"

typedef struct {
    int no_tower; /* set by the caller: no vision tower is taken */
    qn_hub_files
        files; /* to fetch; copies. The vision tower (mmproj) of a GGUF file that lies beside it is among them */
    char main[512]; /* the GGUF file among them; "" for safetensors: the folder is the model */
    char why[512];  /* "" where there was nothing to choose */
} qn_hub_choice;

/* pick: a file, its last part, or a quantisation; "" lets memory_bytes decide. QN_E_NOT_FOUND: no such file, or no
 * model; QN_E_FULL: none fits; QN_E_ARG: pick means several; QN_E_UNSUPPORTED: it is one part of a split file.
 * out is zeroed by the caller and freed by qn_hub_choice_free, whatever came. */
qn_status qn_hub_choose(const char *what, const qn_hub_files *all, const char *pick, int64_t memory_bytes,
                        qn_hub_choice *out);
void qn_hub_choice_free(qn_hub_choice *c);

/* The quantisation in a file's name, as in the table ("Q4_K_M"); "" where there is none. */
const char *qn_hub_quant_of(const char *path);
/* Does the GGUF file called path go by the name pick? */
int qn_hub_pick_fits(const char *path, const char *pick);
/* Is it the file of a vision tower by its name (mmproj)? */
int qn_hub_is_tower(const char *path);
/* Is it a GGUF file that holds a whole model by its name: no projector and no part of a split one? */
int qn_hub_is_whole_gguf(const char *path);
/* What a model of files of so many bytes takes, roughly: its weights packed, and a context. */
int64_t qn_hub_memory_needed(int64_t file_bytes);
/* This machine's memory, or that of the group that the process is in. */
int64_t qn_hub_machine_memory(void);
/* "2.5 GB" into text (decimal units, as the Hub shows sizes); returns text. */
const char *qn_hub_size_text(int64_t n_bytes, char *text, size_t size);

#endif
