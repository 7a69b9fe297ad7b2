/* quern: runs language models. This header includes the whole public API.
 *
 * Conventions. What can fail returns a qn_status; qn_last_error() has the sentence. Outputs come last and are
 * untouched on failure unless said otherwise. open/close and new/free: one owner. get: borrowed. close and
 * free accept NULL. Structures of options may be all zero. Texts are UTF-8. Sizes in bytes are size_t, counts
 * and positions int64_t, token ids int32_t; units are in the names. */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H

#include <quern/adapter.h>
#include <quern/array.h>
#include <quern/array_nn.h>
#include <quern/attention.h>
#include <quern/backend.h>
#include <quern/batch.h>
#include <quern/bench.h>
#include <quern/cache.h>
#include <quern/classify.h>
#include <quern/constrain.h>
#include <quern/discover.h>
#include <quern/dtype.h>
#include <quern/figures.h>
#include <quern/finetune.h>
#include <quern/generate.h>
#include <quern/log.h>
#include <quern/memory.h>
#include <quern/model.h>
#include <quern/probe.h>
#include <quern/rerank.h>
#include <quern/status.h>
#include <quern/tokenizer.h>
#include <quern/train.h>

#define QN_VERSION_MAJOR 0
#define QN_VERSION_MINOR 1
#define QN_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0", of the library that runs. Static storage. */
QN_API const char *qn_version(void);

#ifdef __cplusplus
}
#endif
#endif
