/* The metadata of a GGUF file that describe a model, behind the architecture's name or "tokenizer.": what each key is called
 * in config.json, and what it says of a configuration that was read. One table for both directions
 * (gguf_config.c reads by it, convert/export_gguf.c writes). Constant data. */
#ifndef QN_MODEL_CONFIG_GGUF_GGUF_KEYS_H
#define QN_MODEL_CONFIG_GGUF_GGUF_KEYS_H

#include "model/config/config.h"

/* PER_LAYER: a number, or one for each layer. PATTERN: the period of layers that do not slide, or for each layer whether it
 * does. FLAGS: a list of 0 and 1. INTEGERS: a list of numbers from 0 on. SECTIONS: three numbers, which files have four
 * places for. NUMBERS: a list, in which those that are not finite are null. EQUAL_NUMBERS: a number, or the same one for each
 * layer. */
typedef enum {
    QN_GGUF_KEY_INTEGER,
    QN_GGUF_KEY_PER_LAYER,
    QN_GGUF_KEY_NUMBER,
    QN_GGUF_KEY_STRING,
    QN_GGUF_KEY_BOOL,
    QN_GGUF_KEY_PATTERN,
    QN_GGUF_KEY_FLAGS,
    QN_GGUF_KEY_INTEGERS,
    QN_GGUF_KEY_SECTIONS,
    QN_GGUF_KEY_NUMBERS,
    QN_GGUF_KEY_EQUAL_NUMBERS
} qn_gguf_key_kind;

typedef struct {
    const char *key, *name; /* a dot in the name: field of an object inside */
    qn_gguf_key_kind kind;
    /* What is written for c, a configuration as it is in GGUF (family and order of rows are the file's);
     * layer: of PER_LAYER and PATTERN. 0: nothing is written. NULL: the key is read only. */
    int (*value)(const qn_model_config *c, int64_t layer, double *out);
} qn_gguf_key;

extern const qn_gguf_key qn_gguf_keys[]; /* [qn_gguf_key_count] */
extern const int qn_gguf_key_count;

#endif
