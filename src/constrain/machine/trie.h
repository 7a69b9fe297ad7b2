/* The inside of a vocabulary, for the walks that make masks. See vocabulary.h for the invariants. */
#ifndef QN_CONSTRAIN_MACHINE_TRIE_H
#define QN_CONSTRAIN_MACHINE_TRIE_H

#include <stdatomic.h>

#include "constrain/machine/vocabulary.h"

/* Nodes are in depth-first order, children by rising byte. Node 0 is the root, the empty text. */
typedef struct {
    uint64_t below;  /* bits of the kinds of bytes below */
    uint32_t end;    /* the first node behind this one's subtree */
    int32_t id;      /* the token whose text ends here; -1: none */
    uint16_t depth;  /* bytes from the root */
    uint16_t height; /* bytes of the longest text below */
    uint8_t byte;
} qn_trie_node;

/* Kinds of bytes in JSON strings, a bit each, so that whole subtrees of plain text are passed at once: small
 * letters one by one, capitals by two, and so on. First bytes of characters above ASCII that patterns often name
 * (spaces, line ends) have one kind each. */
enum {
    QN_KIND_FIRST = 50,
    QN_KIND_INSIDE = 57, /* of a character, behind its first byte */
    QN_KIND_DELETE = 58,
    QN_KIND_CONTROL = 62,
    QN_KIND_ESCAPE = 63 /* quotes and backslashes */
};
static inline int qn_kind_of_high(uint8_t b)
{
    switch (b) {
    case 0x7f:
        return QN_KIND_DELETE;
    case 0xc2:
        return QN_KIND_FIRST;
    case 0xe1:
        return QN_KIND_FIRST + 1;
    case 0xe2:
        return QN_KIND_FIRST + 2;
    case 0xe3:
        return QN_KIND_FIRST + 3;
    case 0xef:
        return QN_KIND_FIRST + 4;
    default:
        return b < 0xc0 ? QN_KIND_INSIDE : QN_KIND_FIRST + (b < 0xf0 ? 5 : 6);
    }
}

static inline int qn_kind_of(uint8_t b)
{
    if (b >= 'a' && b <= 'z') return b - 'a';
    if (b >= 'A' && b <= 'Z') return 26 + (b - 'A') / 2;
    if (b >= '0' && b <= '9') return 39 + (b != '0');
    if (b == '"' || b == '\\') return QN_KIND_ESCAPE;
    if (b < 0x20) return QN_KIND_CONTROL;
    if (b >= 0x7f) return qn_kind_of_high(b);
    switch (b) {
    case ' ':
        return 41;
    case '.':
        return 42;
    case '-':
        return 43;
    case '_':
        return 44;
    case '/':
        return 45;
    case ':':
        return 46;
    case '@':
        return 47;
    case ',':
        return 48;
    default:
        return 49;
    }
}

struct qn_vocabulary {
    atomic_int n_references;
    const qn_tokenizer *tokenizer;
    size_t n_ids, n_words;
    qn_trie_node *nodes; /* [n_nodes] */
    size_t n_nodes;
    size_t depth_max;
    int32_t *same;  /* [n_ids]: the next token of the same text; -1: none */
    int32_t *twins; /* [n_twins] nodes' tokens that have such a next one */
    size_t n_twins;
    char *text;     /* the tokens' texts, special ones behind QN_VOCABULARY_SPECIAL */
    size_t *offset; /* [n_ids + 1] into text; equal: no text */
    int32_t *end_ids;
    size_t n_end_ids;
    atomic_uintptr_t shared; /* qn_free_strings of strings.h, made when first wanted */
};

/* The bytes of a token as a language sees them; *n 0: it has none. */
static inline const char *qn_vocabulary_text(const qn_vocabulary *v, int32_t id, size_t *n)
{
    if (id < 0 || (size_t)id >= v->n_ids) {
        *n = 0;
        return "";
    }
    *n = v->offset[id + 1] - v->offset[id];
    return v->text + v->offset[id];
}

static inline int qn_vocabulary_is_end(const qn_vocabulary *v, int32_t id)
{
    for (size_t i = 0; i < v->n_end_ids; i++)
        if (v->end_ids[i] == id) return 1;
    return 0;
}

/* Of strings.c, for qn_vocabulary_release. */
void qn_vocabulary_strings_free(qn_vocabulary *v);

/* Sets the bits of all tokens of a node's text. */
static inline void qn_trie_mark(const qn_vocabulary *v, const qn_trie_node *node, uint32_t *bits)
{
    for (int32_t id = node->id; id >= 0; id = v->same[id]) bits[id >> 5] |= UINT32_C(1) << (id & 31);
}

/* Gives tokens of the same text the bits of their nodes' tokens. */
static inline void qn_trie_spread(const qn_vocabulary *v, uint32_t *bits)
{
    for (size_t i = 0; i < v->n_twins; i++) {
        int32_t first = v->twins[i];
        uint32_t bit = bits[first >> 5] >> (first & 31) & 1;
        for (int32_t id = v->same[first]; id >= 0; id = v->same[id])
            bits[id >> 5] = (bits[id >> 5] & ~(UINT32_C(1) << (id & 31))) | bit << (id & 31);
    }
}

#endif
