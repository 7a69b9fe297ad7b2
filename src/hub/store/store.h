/* Where models lie: the cache of Python's huggingface_hub, in its layout, and beside it a folder of quern's with the
 * same layout for models of Ollama and of URLs:
 *
 *     models--ORG--NAME/ (ollama--NAMESPACE--NAME/, url--HOST--HASH/)
 *         blobs/SUM                      a file's bytes, called by their sum
 *         blobs/SUM.quern.incomplete     while they are fetched (partial.h)
 *         snapshots/COMMIT/PATH          a link to ../../blobs/SUM
 *         refs/REVISION                  the text COMMIT
 *     .locks/models--ORG--NAME/quern.lock
 *
 * A blob appears whole; links are made when all blobs of a model are there, and the reference last. So whatever is
 * interrupted, a model is there or not. One process at a time changes a model (the lock); others may read. */
#ifndef QN_HUB_STORE_STORE_H
#define QN_HUB_STORE_STORE_H

#include "hub/names/listing.h"
#include "hub/names/name.h"
#include "hub/names/settings.h"
#include "hub/net/session.h"

/* Puts into out (replaced) the folder of a name's repository. */
qn_status qn_store_folder(const qn_hub_settings *s, const qn_hub_name *name, qn_buf *out);
/* FOLDER/blobs/HEX and FOLDER/snapshots/COMMIT[/PATH] into out (replaced). */
qn_status qn_store_blob(const char *folder, const char *hex, qn_buf *out);
qn_status qn_store_snapshot(const char *folder, const char *commit, const char *path, qn_buf *out);
/* Creates all folders above path. */
qn_status qn_store_make_parents(const char *path);
/* Takes the lock of a repository's folder, waiting with a note for another process that has it. *file: to
 * qn_store_unlock; -1 is accepted there. s NULL: does not wait, QN_E_FULL. */
qn_status qn_store_lock(const qn_hub_session *s, const char *folder, int *file);
void qn_store_unlock(int file);

/* QN_E_FULL, with a sentence, where the disk of folder has too little room for so many more bytes. */
qn_status qn_store_check_room(const char *folder, int64_t n_bytes);
/* Bytes that an interrupted fetch of blob has left on the disk. */
int64_t qn_store_left_bytes(const char *blob);

/* Links the files to their blobs. */
qn_status qn_store_link(const char *folder, const char *commit, const qn_hub_files *files);
/* Writes refs/REVISION, unless revision is the commit itself. */
qn_status qn_store_set_ref(const char *folder, const char *revision, const char *commit);
/* The commit that a revision means here. QN_E_NOT_FOUND. */
qn_status qn_store_get_commit(const char *folder, const char *revision, char commit[QN_SUM_HEX_MAX]);

/* The files of a folder and of those in it, with their sizes; broken links are left out. Sums are QN_SUM_NONE. */
qn_status qn_store_walk(const char *folder, qn_hub_files *out);

/* Puts into out (replaced) the path of a snapshot's model: its GGUF file `main`, or if that is "" the folder. A folder
 * that has GGUF files too is no one model: then it is the file of its safetensors, or their index. */
qn_status qn_store_model_path(const char *folder, const char *commit, const char *main, qn_buf *out);
/* The model that a name means among what is there: a GGUF file or a folder. is_final: what is there has to do, there
 * is no network. QN_E_NOT_FOUND: nothing, or a part. */
qn_status qn_store_find(const qn_hub_settings *s, const qn_hub_name *name, int64_t memory_bytes, int is_final,
                        qn_buf *path, char commit[QN_SUM_HEX_MAX]);

/* Calls fn with the folder of each repository that has a snapshot, those of the Hub first, sorted. fn's failure ends
 * it. */
qn_status qn_store_each(const qn_hub_settings *s, qn_status (*fn)(void *user, const char *folder),
                        void *user);
/* Appends the name that a path in a snapshot goes by: "hf:org/name:FILE", with "@COMMIT" where no reference called
 * main or latest leads to it. path itself where it is in no store. */
void qn_store_put_name(const qn_hub_settings *s, const char *path, qn_buf *out);

/* What removing a name would take away. */
typedef struct {
    qn_buf folder;
    char commit
        [QN_SUM_HEX_MAX]; /* "": no file goes by the name, and only what interrupted fetches left is taken */
    int is_whole;         /* the whole snapshot, not one file of it */
    qn_hub_files links;   /* relative to the snapshot */
    qn_hub_files
        blobs; /* names in blobs/ that no other snapshot has; leftovers too when the last snapshot goes */
    int64_t freed_bytes;
} qn_store_removal;
/* out is zeroed by the caller and freed by qn_store_removal_free, whatever came. QN_E_NOT_FOUND. */
qn_status qn_store_plan_removal(const qn_hub_settings *s, const qn_hub_name *name, qn_store_removal *out);
/* With the lock held. */
qn_status qn_store_remove(const qn_store_removal *r);
void qn_store_removal_free(qn_store_removal *r);

#endif
