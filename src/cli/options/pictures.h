/* Picture files of the command line, as the library takes them. */
#ifndef QN_CLI_OPTIONS_PICTURES_H
#define QN_CLI_OPTIONS_PICTURES_H

#include <quern/model.h>

#include "cli/options/args.h"
#include "media/picture.h"

/* Starts with n 0. The pixels of the first n are owned. */
typedef struct {
    qn_picture decoded[QN_ARG_LIST_MAX];
    qn_image images[QN_ARG_LIST_MAX];
    size_t n;
} qn_pictures;

/* Reads and decodes all. On failure, too, the caller calls qn_pictures_free. */
qn_status qn_pictures_read(const qn_arg_list *paths, qn_pictures *out);
void qn_pictures_free(qn_pictures *p);

#endif
