/* The vocabulary: token texts by id, ids by text. Texts lie in one block of bytes; ids may have holes.
 * Built by one owner, then read-only: any thread. */
#ifndef QN_TEXT_TOKENIZER_VOCAB_H
#define QN_TEXT_TOKENIZER_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    QN_TOKEN_SPECIAL = 1,  /* tokenizer.json's special: true; GGUF's control and unknown types */
    QN_TOKEN_ADDED = 2,    /* matched in the text before the model sees it */
    QN_TOKEN_HIDDEN = 4,   /* the model must never produce it from text */
    QN_TOKEN_BYTE = 8,     /* stands for one byte, <0xNN> */
    QN_TOKEN_WHOLE = 32,   /* SentencePiece's user-defined pieces: taken wherever they stand */
    QN_TOKEN_UNUSED = 64,  /* SentencePiece: never given, merges may pass through it */
    QN_TOKEN_RESPELT = 16, /* decodes to the normalized form of its text, which the tokenizer keeps */
};

typedef struct {
    uint32_t hash, id_plus_1; /* id_plus_1 0: free */
} qn_vocab_slot;

typedef struct {
    char *bytes;
    size_t n_bytes, bytes_capacity;
    uint32_t *start, *length; /* [n_ids]; start UINT32_MAX: no such token */
    uint8_t *flags;           /* [n_ids] */
    size_t n_ids, ids_capacity;
    size_t n_tokens; /* distinct texts */
    size_t max_length;
    qn_vocab_slot *slots;
    size_t mask;
    uint64_t seed;
} qn_vocab;

/* Makes room; a zeroed qn_vocab may be freed. */
qn_status qn_vocab_init(qn_vocab *v, size_t expected_tokens, size_t expected_bytes);
void qn_vocab_free(qn_vocab *v);
/* Gives id its text (replacing another one) and the text its id (replacing another one). id in [0, 2^31 - 1).
 */
qn_status qn_vocab_add(qn_vocab *v, int32_t id, const char *text, size_t n, uint8_t flags);
/* The same without an entry from text to id. */
qn_status qn_vocab_add_text(qn_vocab *v, int32_t id, const char *text, size_t n, uint8_t flags);
/* Adding many tokens, each at a fraction of the time, since their waits for memory overlap: they are gathered in
 * a group (zeroed before the first), and found by their texts once it is settled. */
enum { QN_VOCAB_GROUP = 32 };
typedef struct {
    int32_t ids[QN_VOCAB_GROUP];
    uint32_t hashes[QN_VOCAB_GROUP];
    int n;
} qn_vocab_group;
/* The group has room, and id has no token. */
qn_status qn_vocab_gather(qn_vocab *v, qn_vocab_group *g, int32_t id, const char *text, size_t n);
/* Empties the group. The place in it of the first token whose text was there before; -1: none. */
int qn_vocab_settle(qn_vocab *v, qn_vocab_group *g);
/* -1: none. */
int32_t qn_vocab_find(const qn_vocab *v, const char *text, size_t n);
/* Many look-ups at once, each at a fraction of the time, since their waits for memory overlap. */
typedef struct {
    const char *text;
    size_t n;
    uint32_t hash, guess; /* inside */
    int32_t id;           /* -1: none */
} qn_vocab_lookup;
void qn_vocab_find_all(const qn_vocab *v, qn_vocab_lookup *lookups, size_t count);
/* NULL: no such token. Borrowed, not NUL-terminated. */
const char *qn_vocab_text(const qn_vocab *v, int32_t id, size_t *n);
uint8_t qn_vocab_flags(const qn_vocab *v, int32_t id);
/* The value of a text of the form <0xNN>, else -1. */
int qn_byte_token_value(const char *text, size_t n);

#endif
