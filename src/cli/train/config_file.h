/* A command's options out of a file: YAML, or JSON, which YAML takes in. One mapping, whose keys are the
 * options' names without their hyphens ('_' stands for '-' too):
 *
 *     rank: 16
 *     targets: [q_proj, v_proj]     # a list of words may be a list
 *     strict: true                  # what takes no value is true or false
 *     data: null                    # as if it were not there
 *
 * A value goes where the option's would, by the same rules (args.h), so a file and a command line that say
 * the same are the same. Strict: an unknown key (the nearest one is named), a key that stands twice, a value
 * of another type, more than one document are errors at FILE:LINE. Anchors, aliases and tags are refused, so
 * a file cannot grow beyond what it is. Pure functions over bytes but for read; any thread. */
#ifndef QN_CLI_TRAIN_CONFIG_FILE_H
#define QN_CLI_TRAIN_CONFIG_FILE_H

#include "base/arena.h"
#include "cli/options/args.h"

enum { QN_CONFIG_FILE_BYTES_MAX = 256 << 10 };

/* Reads the file at path into the command's options; of what it does not name nothing changes. texts keeps
 * the texts that options point to. not_here: an option that cannot be in a file ("--config"). QN_E_IO,
 * QN_E_FORMAT (neither YAML nor JSON, or not of this form), QN_E_ARG (a key or value), QN_E_FULL (too long);
 * options are then partly set. */
qn_status qn_config_file_read(const char *path, const qn_arg_spec *spec, const char *not_here, void *options,
                              qn_arena *texts);
/* The same over bytes[0..n); name stands for the path. */
qn_status qn_config_file_take(const char *name, const char *bytes, size_t n, const qn_arg_spec *spec,
                              const char *not_here, void *options, qn_arena *texts);

#endif
