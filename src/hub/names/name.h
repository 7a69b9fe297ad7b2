/* What a user calls a model by: hf:ORG/NAME[@REVISION][:PICK], ollama:[NAMESPACE/]NAME[:TAG], the URL of a GGUF
 * file, or a short name of the table (qwen3, qwen3:0.6b). A name never reaches a path or a URL before each of its
 * parts was checked here: no "..", no separator, no control character. Pure functions and constant data, any
 * thread. */
#ifndef QN_HUB_NAMES_NAME_H
#define QN_HUB_NAMES_NAME_H

#include "base/buf.h"

typedef enum { QN_HUB_NONE, QN_HUB_HF, QN_HUB_OLLAMA, QN_HUB_URL } qn_hub_kind;

enum { QN_HUB_REPO_MAX = 200, QN_HUB_REVISION_MAX = 200, QN_HUB_PICK_MAX = 512, QN_HUB_URL_MAX = 4096 };

typedef struct {
    qn_hub_kind kind;
    char repo[QN_HUB_REPO_MAX]; /* "org/name", "library/name"; "" for a URL */
    char
        revision[QN_HUB_REVISION_MAX]; /* a branch, tag or commit; "main" and "latest" where none was named */
    char pick[QN_HUB_PICK_MAX];        /* a file or a quantisation; "" lets the machine's memory choose */
    char url[QN_HUB_URL_MAX];          /* of QN_HUB_URL */
} qn_hub_name;

typedef struct {
    const char *name, *repo;
    const char *quant; /* of the file that it means; "bf16": the safetensors */
    int size_mb;       /* of that file, in 10^6 bytes */
} qn_hub_short;
/* Up to a row without a name. */
extern const qn_hub_short qn_hub_shorts[];

/* Reads text. bare: "org/name" without "hf:" counts too. What is no name gives the kind QN_HUB_NONE and QN_OK;
 * what begins as a name and is a bad one gives QN_E_ARG with a sentence. */
qn_status qn_hub_name_read(const char *text, int bare, qn_hub_name *out);
/* Appends what the user may type for it again: "hf:org/name@rev:pick". */
void qn_hub_name_put(qn_buf *b, const qn_hub_name *name);
/* A relative path of plain parts: no empty one, no "." or "..", no backslash or control character, valid UTF-8. */
int qn_hub_is_plain_path(const char *path);

#endif
