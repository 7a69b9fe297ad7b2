/* The files of a model's folder beside its weights, on their way to another folder: taken over as they are,
 * but for what says the type of the numbers. One thread at a time. */
#ifndef QN_CONVERT_FUSED_FOLDER_H
#define QN_CONVERT_FUSED_FOLDER_H

#include "base/buf.h"
#include "format/files/folder_writer.h"
#include "format/source/source.h"

/* Copies plain files but weights; the shard index and config.json are left out. */
qn_status qn_fused_copy(const qn_source *source, qn_folder_writer *to);
/* config.json; dtype ("bfloat16"): it says this type and nothing of quantised layers; NULL: as it is. */
qn_status qn_fused_config(qn_source *source, qn_folder_writer *to, const char *dtype);
/* The plain name of a path. */
const char *qn_fused_name(const char *path);

#endif
