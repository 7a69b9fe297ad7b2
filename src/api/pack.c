/* qn_model_pack. */
#include <quern/model.h>

#include "engine/machine/engine.h"
#include "engine/machine/pack.h"

qn_status qn_model_pack(const char *path, const qn_pack_options *options, qn_pack_result *out)
{
    const qn_pack_options defaults = {0};
    if (!path || !out) return qn_fail(QN_E_ARG, "qn_model_pack: path and out are needed");
    if (!options) options = &defaults;
    if (options->n_threads < 0 || options->n_threads > 1024)
        return qn_fail(QN_E_ARG, "n_threads: %d is not in the range 0 to 1024", (int)options->n_threads);
    qn_source *source = NULL;
    qn_model_config config = {0};
    qn_status status = qn_source_open(path, &(qn_source_options){.file = options->file, .sees = 1}, &source);
    if (status == QN_OK) status = qn_config_read(source, &config);
    if (status == QN_OK) status = qn_engine_pack(source, &config, options, out);
    qn_config_free(&config);
    qn_source_close(source);
    return status;
}
