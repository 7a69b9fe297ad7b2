#include "cli/options/prompt_cache.h"

#include <errno.h>
#include <sys/stat.h>

#include "cli/term/out.h"

int qn_prompt_cache_load(qn_model *model, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0 ? errno == ENOENT : S_ISREG(st.st_mode) && st.st_size == 0) return 1;
    qn_status status = qn_model_load_state(model, path);
    if (status == QN_OK) return 1;
    int is_ours = status != QN_E_FORMAT && status != QN_E_IO;
    qn_out_note("%s; the prompt cache is not used%s", qn_last_error(),
                is_ours ? "" : ", and the file is left unchanged");
    return is_ours;
}

void qn_prompt_cache_save(qn_model *model, const char *path)
{
    if (qn_model_save_state(model, path) != QN_OK)
        qn_out_note("%s; the prompt cache is not saved", qn_last_error());
}

qn_status qn_prompt_cache_beside(const char *path, qn_buf *out)
{
    qn_buf_printf(out, "%s.state", path);
    return out->status;
}
