/* The model that is served, as Ollama's API describes one. All functions append. Any thread. */
#ifndef QN_SERVER_OLLAMA_MODEL_H
#define QN_SERVER_OLLAMA_MODEL_H

#include "server/core/state.h"

/* The name with the tag that clients expect: "mill" -> "mill:latest". */
void qn_ollama_write_name(const qn_server *s, qn_buf *out, const char *key, const char *adapter);
/* "size" in bytes, and "digest": 64 digits that stay while the model does. */
void qn_ollama_write_identity(const qn_server *s, qn_buf *out, const char *adapter);
/* "details": {...}. */
void qn_ollama_write_details(const qn_server *s, qn_buf *out);

#endif
