/* State on disk: the tokens of sequences and the pages and recurrent state that belong to them, so that a
 * later process goes on without computing them again.
 *
 * It is a safetensors file. Its nodes form trees: a node covers the tokens behind its parent's and names, for
 * each group of layers, the pages that hold their keys and values; a lone sequence is a tree of one node.
 * __metadata__ says what the state belongs to, and who loads compares it. Checksums (qn_hash_bytes, 64 bits)
 * cover everything: the header and all that describes the nodes are checked by open, a page or slot when it
 * is asked for. Invariant: what an open file gives lies inside the mapping, parents come before children, and
 * every number of a page, slot, key, parent or pinned node is in range; what the tokens are is for the caller
 * to check. Pages are borrowed from the mapping: nothing is copied. An open file is immutable, any thread; a
 * writer is one thread's. */
#ifndef QN_FORMAT_STATE_STATE_FILE_H
#define QN_FORMAT_STATE_STATE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { QN_STATE_FILE_GROUPS_MAX = 8 };

typedef struct qn_state_file qn_state_file;
typedef struct qn_state_writer qn_state_writer;

/* What the bits of the state depend on. Texts are compared as they are. */
typedef struct {
    uint64_t fingerprint;  /* of the model's tensors (packed.h) */
    const char *precision; /* "high" */
    const char *kv_type;   /* "bf16" */
    const char *set;       /* instructions that computed it: "cpu avx512" */
    const char *layout;    /* heads, windows and layers of each group of pages, floats of slots */
    const char *positions; /* a hash of rotary positions that options changed; NULL: they are the files' */
} qn_state_binding;

/* Bytes of one page of each group, and of one slot (0: there are none). */
typedef struct {
    int n_groups;
    size_t page_bytes[QN_STATE_FILE_GROUPS_MAX], slot_bytes;
} qn_state_sizes;

/* Nodes of one key alone share tokens. */
typedef struct {
    const char *adapter; /* name, [adapter_length]; NULL or empty: none */
    size_t adapter_length;
    uint64_t adapter_fingerprint;
    int is_long;      /* turned by the frequencies of long sequences */
    const void *salt; /* [salt_bytes] */
    size_t salt_bytes;
} qn_state_key;

/* numbers[i] is the page in the file of positions [(first + i) * 32, (first + i + 1) * 32); -1: not kept. */
typedef struct {
    int64_t first, n;
    const int32_t *numbers;
} qn_state_pages;

typedef struct {
    int64_t parent; /* an earlier node, of the same key; -1: none */
    int64_t key;
    const int32_t *ids; /* [n_ids] behind the parent's; at least one */
    int64_t n_ids;
    int64_t slot;    /* recurrent state at exactly the end; -1: not kept */
    int64_t cost_ns; /* of computing a token */
    qn_state_pages pages[QN_STATE_FILE_GROUPS_MAX];
} qn_state_node;

/* Tokens up to the end of a node that are kept ready under a name. */
typedef struct {
    int64_t node;
    const char *name; /* [name_length], without NUL */
    size_t name_length;
} qn_state_pin;

/* QN_E_IO: not there or not readable; QN_E_FORMAT: damaged, or no such file; messages begin with the path. */
qn_status qn_state_file_open(const char *path, qn_state_file **out);
/* The same over bytes[0..n), aligned to 8, which must outlive the reader. */
qn_status qn_state_file_open_bytes(const char *name, const void *bytes, size_t n, qn_state_file **out);
void qn_state_file_close(qn_state_file *f);
const char *qn_state_file_path(const qn_state_file *f);
/* Borrowed. */
const qn_state_binding *qn_state_file_binding(const qn_state_file *f);
const qn_state_sizes *qn_state_file_sizes(const qn_state_file *f);
/* QN_E_UNSUPPORTED: it is of another model, precision, type of keys and values, set, layout or sizes
 * (message: which). */
qn_status qn_state_file_check(const qn_state_file *f, const qn_state_binding *wanted,
                              const qn_state_sizes *sizes);
int64_t qn_state_file_keys(const qn_state_file *f);
int64_t qn_state_file_nodes(const qn_state_file *f);
int64_t qn_state_file_pages(const qn_state_file *f, int group);
int64_t qn_state_file_slots(const qn_state_file *f);
/* 0 in files of the first version, which has none. */
int64_t qn_state_file_pins(const qn_state_file *f);
/* i in range. Borrowed. */
qn_state_key qn_state_file_key(const qn_state_file *f, int64_t i);
qn_state_node qn_state_file_node(const qn_state_file *f, int64_t i);
qn_state_pin qn_state_file_pin(const qn_state_file *f, int64_t i);
/* The bytes of a page or slot, as written. QN_E_FORMAT: its checksum is wrong. */
qn_status qn_state_file_page(const qn_state_file *f, int group, int64_t number, const void **out);
qn_status qn_state_file_slot(const qn_state_file *f, int64_t number, const void **out);

/* Nothing is touched on disk until begin; the file appears when it is whole. Keys come before the nodes that
 * name them, parents before children. */
qn_status qn_state_writer_new(const char *path, const qn_state_binding *binding, const qn_state_sizes *sizes,
                              qn_state_writer **out);
/* Everything is copied. *index may be NULL. */
qn_status qn_state_writer_key(qn_state_writer *w, const qn_state_key *key, int64_t *index);
qn_status qn_state_writer_node(qn_state_writer *w, const qn_state_node *node, int64_t *index);
/* name: NUL-terminated, not empty. */
qn_status qn_state_writer_pin(qn_state_writer *w, int64_t node, const char *name);
/* n_pages: of each group. QN_E_ARG: a node names a page or slot beyond them; QN_E_IO: no room and the like.
 */
qn_status qn_state_writer_begin(qn_state_writer *w, const int64_t *n_pages, int64_t n_slots);
/* Each once, in any order. */
qn_status qn_state_writer_page(qn_state_writer *w, int group, int64_t number, const void *bytes);
qn_status qn_state_writer_slot(qn_state_writer *w, int64_t number, const void *bytes);
/* Puts the file in its place. The writer is still to be freed. */
qn_status qn_state_writer_finish(qn_state_writer *w);
/* Without a successful finish nothing is left behind. NULL is accepted. */
void qn_state_writer_free(qn_state_writer *w);

#endif
