/* A file of one sequence, loaded into the prefix tree. */
#include <string.h>

#include "base/mem.h"
#include "engine/clients/state_binding.h"
#include "engine/clients/state_io.h"
#include "engine/clients/warm.h"

/* The tokens of a file without nodes are none; its key says whose it is. */
static qn_status check_form(const qn_state_file *f)
{
    const int64_t n_nodes = qn_state_file_nodes(f);
    if (qn_state_file_keys(f) == 1 && n_nodes <= 1 && !qn_state_file_pins(f)) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: it holds a prompt cache, not the state of one sequence",
                   qn_state_file_path(f));
}

/* Texts become NUL-terminated, so they must have no NUL. */
static qn_status check_key(const qn_state_file *f, const qn_state_key *key)
{
    const int is_good = key->adapter_length <= QN_ADAPTER_NAME_LENGTH &&
                        (!key->adapter_length || !memchr(key->adapter, 0, key->adapter_length)) &&
                        (!key->salt_bytes || !memchr(key->salt, 0, key->salt_bytes));
    return is_good ? QN_OK : qn_fail(QN_E_FORMAT, "%s: key 0 is malformed", qn_state_file_path(f));
}

static char *put_text(char **at, const void *text, size_t n)
{
    char *to = *at;
    if (n) memcpy(to, text, n);
    to[n] = 0;
    *at += n + 1;
    return to;
}

/* What the file has, copied: the record, the ids, the texts. */
static qn_status read_prefix(const qn_state_file *f, qn_saved_prefix **out)
{
    static const char none[] = "none"; /* the model alone */
    const qn_state_key key = qn_state_file_key(f, 0);
    const int64_t n_nodes = qn_state_file_nodes(f);
    qn_state_node node = {0};
    if (n_nodes) node = qn_state_file_node(f, 0);
    const size_t n_ids_bytes = (size_t)node.n_ids * sizeof *node.ids;
    const size_t n_texts = key.adapter_length + sizeof none + key.salt_bytes + 2;
    QN_TRY(check_key(f, &key));
    qn_saved_prefix *p = qn_calloc(1, sizeof *p + n_ids_bytes + n_texts);
    if (!p) return QN_E_NOMEM;
    int32_t *ids = (int32_t *)(void *)(p + 1);
    char *texts = (char *)(p + 1) + n_ids_bytes;
    if (n_ids_bytes) memcpy(ids, node.ids, n_ids_bytes);
    p->ids = ids;
    p->n_ids = node.n_ids;
    p->options.adapter = key.adapter_length ? put_text(&texts, key.adapter, key.adapter_length)
                                            : put_text(&texts, none, sizeof none - 1);
    p->options.cache_salt = key.salt_bytes ? put_text(&texts, key.salt, key.salt_bytes) : NULL;
    *out = p;
    return QN_OK;
}

static qn_status read_file(const char *path, qn_saved_prefix **out)
{
    qn_state_file *f = NULL;
    QN_TRY(qn_state_file_open(path, &f));
    qn_status status = check_form(f);
    if (status == QN_OK) status = read_prefix(f, out);
    qn_state_file_close(f);
    return status;
}

qn_status qn_state_load_prefix(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint, const char *path,
                               qn_saved_prefix **out)
{
    qn_saved_prefix *p = NULL;
    qn_tree_miss miss;
    int32_t adapter = -1;
    QN_TRY(qn_engine_check_tree(e));
    QN_TRY(read_file(path, &p));
    qn_status status = qn_adapters_hold(e->adapters, p->options.adapter, &adapter);
    if (status != QN_OK) qn_fail_prefix(status, "%s", path);
    if (status == QN_OK) {
        status = qn_state_load_tree(e, scheduler, fingerprint, path);
        if (status == QN_OK && p->n_ids) status = qn_engine_explain(e, &p->options, p->ids, p->n_ids, &miss);
        if (status == QN_OK && p->n_ids) p->n_loaded = miss.n_usable;
        qn_adapters_release(e->adapters, adapter);
    }
    if (status == QN_OK)
        *out = p;
    else
        qn_free(p);
    return status;
}
