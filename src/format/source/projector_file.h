/* The file of a vision tower beside a GGUF: llama.cpp's mmproj*.gguf, whose general.architecture is "clip". Chosen by names
 * alone; nothing is opened. Any thread. */
#ifndef QN_FORMAT_SOURCE_PROJECTOR_FILE_H
#define QN_FORMAT_SOURCE_PROJECTOR_FILE_H

#include "base/buf.h"
#include "base/status.h"

/* 1: the name is that of a projector: "mmproj" is in it, and it ends in .gguf. */
int qn_projector_is_name(const char *name);
/* The projector in the folder for the model file of this name, to *out; it stays empty if there is none, or no single one. Of
 * several those count whose name is in the model's, else all; of files that differ in their type alone, F16 is taken before
 * BF16, F32 and Q8_0. *why: why none of several is taken, one sentence. */
qn_status qn_projector_find(const char *folder, const char *model, qn_buf *out, qn_buf *why);

#endif
