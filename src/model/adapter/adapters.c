#include "model/adapter/adapters.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/adapter/adapter_changes.h"
#include "model/adapter/adapter_file.h"
#include "model/adapter/adapter_gains.h"
#include "model/config/families.h"
#include "model/weights/row_order.h"

/* The devices that matrices of a model may lie on: one, or a second one for the first layers. */
enum { OWN, BELOW, PARTS };

typedef struct {
    enum { EMPTY, LOADED, SHOWN } state;
    qn_adapter_about about;
    qn_buffer *data[PARTS];     /* all factors; NULL: none are there */
    qn_adapter_change *changes; /* of whole tensors, owned */
    int64_t n_changes;
    int64_t n_holds;
} adapter;

/* One tensor of the model that some adapter changes, or changed: a matrix by factors, or any as a whole. */
typedef struct {
    uint64_t built; /* number of the building in which its steps were made */
    int n_steps;
    qn_lora_pair pairs[]; /* [n_steps][QN_ADAPTERS_MAX] by id */
} place;

struct qn_adapters {
    const qn_model_config *config;
    qn_device *device[PARTS];
    const qn_parameters *parameters[PARTS];
    int64_t border;       /* layers below it are part BELOW; 0: there is none */
    pthread_mutex_t lock; /* of the adapters' names, holds and default */
    adapter adapters[QN_ADAPTERS_MAX];
    int32_t default_id; /* -1: none */
    /* [2][1 + num_hidden_layers][QN_WEIGHT_ROLE_COUNT], NULL where never needed; first those of factors, then
     * those of whole tensors */
    place **places;
    int64_t n_places; /* of the table */
    uint64_t building;
    size_t table_bytes; /* of this and the places, in the ledger */
};

/* ---- life --------------------------------------------------------------------------------------------- */

static qn_status count_bytes(qn_adapters *a, size_t size_bytes)
{
    QN_TRY(qn_ledger_reserve(a->device[OWN]->host_ledger, QN_LEDGER_OTHER, size_bytes));
    a->table_bytes += size_bytes;
    return QN_OK;
}

qn_status qn_adapters_new(qn_device *device, const qn_model_config *config, const qn_parameters *parameters,
                          qn_adapters **out)
{
    qn_adapters *a = qn_calloc(1, sizeof *a);
    if (!a) return QN_E_NOMEM;
    pthread_mutex_init(&a->lock, NULL);
    a->device[OWN] = device;
    a->config = config;
    a->parameters[OWN] = parameters;
    a->default_id = -1;
    a->building = 1;
    a->n_places = 2 * (1 + config->num_hidden_layers) * QN_WEIGHT_ROLE_COUNT;
    a->places = qn_calloc((size_t)a->n_places, sizeof(place *));
    qn_status status = a->places ? count_bytes(a, (size_t)a->n_places * sizeof(place *)) : QN_E_NOMEM;
    if (status == QN_OK)
        *out = a;
    else
        qn_adapters_free(a);
    return status;
}

void qn_adapters_split(qn_adapters *a, int64_t border, qn_device *device, const qn_parameters *parameters)
{
    a->border = border;
    a->device[BELOW] = device;
    a->parameters[BELOW] = parameters;
}

static void release_data(const adapter *a)
{
    for (int k = 0; k < PARTS; k++) qn_buffer_release(a->data[k]);
    for (int64_t i = 0; i < a->n_changes; i++) qn_adapter_change_free(&a->changes[i]);
    qn_free(a->changes);
}

void qn_adapters_free(qn_adapters *a)
{
    if (!a) return;
    for (int i = 0; i < QN_ADAPTERS_MAX; i++) {
        release_data(&a->adapters[i]);
        qn_free(a->adapters[i].about.path);
    }
    for (int64_t i = 0; a->places && i < a->n_places; i++) qn_free(a->places[i]);
    qn_ledger_release(a->device[OWN]->host_ledger, QN_LEDGER_OTHER, a->table_bytes);
    pthread_mutex_destroy(&a->lock);
    qn_free(a->places);
    qn_free(a);
}

static place **place_of(const qn_adapters *a, int is_whole, qn_weight_role role, int64_t layer)
{
    const int64_t i = (role < QN_WEIGHT_MODEL_COUNT ? 0 : 1 + layer) * QN_WEIGHT_ROLE_COUNT + role;
    return &a->places[is_whole * (a->n_places / 2) + i];
}

static qn_status make_place(qn_adapters *a, place **p, int n_steps)
{
    const size_t size_bytes = sizeof **p + (size_t)n_steps * QN_ADAPTERS_MAX * sizeof(qn_lora_pair);
    if (*p) return QN_OK;
    QN_TRY(count_bytes(a, size_bytes));
    *p = qn_calloc(1, size_bytes);
    if (!*p) return QN_E_NOMEM;
    (*p)->n_steps = n_steps;
    return QN_OK;
}

/* ---- names -------------------------------------------------------------------------------------------- */

static int is_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && n <= QN_ADAPTER_NAME_LENGTH && !name[n] && strcmp(name, "none") != 0;
}

static int32_t find(const qn_adapters *a, const char *name)
{
    for (int32_t i = 0; i < QN_ADAPTERS_MAX; i++)
        if (a->adapters[i].state == SHOWN && strcmp(a->adapters[i].about.name, name) == 0) return i;
    return -1;
}

/* Under the lock. */
static qn_status fail_unknown(const qn_adapters *a, const char *name)
{
    qn_buf names = {.limit_bytes = 1000};
    for (int i = 0; i < QN_ADAPTERS_MAX; i++)
        if (a->adapters[i].state == SHOWN)
            qn_buf_printf(&names, "%s%s", names.length ? ", " : "; there are: ", a->adapters[i].about.name);
    qn_status status = qn_fail(QN_E_NOT_FOUND, "there is no loaded adapter named %.80s%s", name,
                               names.data ? names.data : "; there is none");
    qn_buf_free(&names);
    return status;
}

qn_status qn_adapters_hold(qn_adapters *a, const char *name, int32_t *id)
{
    qn_status status = QN_OK;
    int32_t found = -1;
    pthread_mutex_lock(&a->lock);
    if (!name) {
        found = a->default_id;
    } else if (strcmp(name, "none") != 0) {
        found = find(a, name);
        if (found < 0) status = fail_unknown(a, name);
    }
    if (found >= 0) a->adapters[found].n_holds++;
    pthread_mutex_unlock(&a->lock);
    if (status == QN_OK) *id = found;
    return status;
}

void qn_adapters_identify(qn_adapters *a, int32_t id, char *name, uint64_t *fingerprint)
{
    pthread_mutex_lock(&a->lock);
    memcpy(name, a->adapters[id].about.name, QN_ADAPTER_NAME_LENGTH + 1);
    *fingerprint = a->adapters[id].about.fingerprint;
    pthread_mutex_unlock(&a->lock);
}

void qn_adapters_retain(qn_adapters *a, int32_t id)
{
    if (id < 0) return;
    pthread_mutex_lock(&a->lock);
    a->adapters[id].n_holds++;
    pthread_mutex_unlock(&a->lock);
}

void qn_adapters_release(qn_adapters *a, int32_t id)
{
    if (id < 0) return;
    pthread_mutex_lock(&a->lock);
    a->adapters[id].n_holds--;
    pthread_mutex_unlock(&a->lock);
}

qn_status qn_adapters_about(qn_adapters *a, int64_t i, qn_adapter_about *out)
{
    qn_status status = QN_E_NOT_FOUND;
    pthread_mutex_lock(&a->lock);
    for (int id = 0; id < QN_ADAPTERS_MAX; id++) {
        if (a->adapters[id].state != SHOWN || i-- > 0) continue;
        qn_adapter_about about = a->adapters[id].about;
        about.path = qn_strdup(about.path);
        about.is_default = id == a->default_id;
        status = about.path ? QN_OK : QN_E_NOMEM;
        if (about.path) *out = about;
        break;
    }
    pthread_mutex_unlock(&a->lock);
    return status;
}

/* ---- loading ------------------------------------------------------------------------------------------ */

/* The device that a tensor lies on. */
static int part_of_role(const qn_adapters *a, qn_weight_role role, int64_t layer)
{
    return role >= QN_WEIGHT_MODEL_COUNT && layer < a->border ? BELOW : OWN;
}

static int part_of(const qn_adapters *a, const qn_adapter_target *t)
{
    return part_of_role(a, t->role, t->layer);
}

/* Bytes of all factors of a part, each matrix at a multiple of 16 floats. */
static qn_status count_floats(const qn_adapters *a, const qn_adapter_file *f, int part, size_t *out)
{
    size_t total = 0;
    for (int64_t i = 0; i < f->n_targets; i++) {
        const qn_adapter_target *t = &f->targets[i];
        if (part_of(a, t) != part) continue;
        const int64_t sides[3][2] = {{t->n_in, t->rank}, {t->n_out, t->rank}, {t->n_out, t->m != NULL}};
        for (int k = 0; k < 3; k++) {
            size_t n;
            if (!qn_mul_size((size_t)sides[k][0], (size_t)sides[k][1], &n) ||
                !qn_mul_size(n, (size_t)qn_adapter_target_count(t), &n) || !qn_align_size(n, 16, &n) ||
                !qn_add_size(total, n, &total))
                return qn_fail(QN_E_FORMAT, "%s: the adapter is too large", t->a->file);
        }
    }
    if (!qn_mul_size(total, sizeof(float), out))
        return qn_fail(QN_E_FORMAT, "%s: the adapter is too large", qn_safetensors_path(f->tensors));
    return QN_OK;
}

static int64_t aligned(int64_t n)
{
    return (n + 15) / 16 * 16;
}

/* What is of each output, n_rows rows [n_out] as files have it, in the model's order (row_order.h). row has
 * room for one of them. */
static void reorder(const qn_model_config *c, const qn_adapter_target *t, int64_t n_rows, float *rows,
                    float *row)
{
    for (int64_t k = 0; k < n_rows; k++) {
        float *out = rows + k * t->n_out;
        memcpy(row, out, (size_t)t->n_out * sizeof *row);
        for (int64_t i = 0; i < t->n_out; i++) out[qn_row_order_place(c, t->role, t->layer, i)] = row[i];
    }
}

/* The places of the file's targets, and its factors in data; pairs[i] is target i's. */
static qn_status read_all(qn_adapters *a, const qn_adapter_file *f, float scale, qn_buffer *const *data_of,
                          qn_lora_pair *pairs)
{
    int64_t next[PARTS] = {0}, widest = 0;
    for (int64_t i = 0; i < f->n_targets; i++) {
        const qn_adapter_target *t = &f->targets[i];
        if (t->n_out > widest) widest = t->n_out;
        QN_TRY(make_place(a, place_of(a, 0, t->role, t->layer), 1));
    }
    float *row = qn_alloc_array((size_t)widest + 1, sizeof *row);
    qn_status status = row ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; status == QN_OK && i < f->n_targets; i++) {
        const qn_adapter_target *t = &f->targets[i];
        qn_lora_pair *p = &pairs[i];
        qn_buffer *data = data_of[part_of(a, t)];
        int64_t at = next[part_of(a, t)];
        *p = (qn_lora_pair){.data = data, .a = at, .gain = -1, .rank = t->rank, .scale = t->factor * scale};
        p->b = at + aligned(qn_adapter_target_count(t) * t->rank * t->n_in);
        at = p->b + aligned(qn_adapter_target_count(t) * t->rank * t->n_out);
        if (t->m) {
            p->gain = at;
            at += aligned(t->n_out);
        }
        next[part_of(a, t)] = at;
        float *b = (float *)data->data + p->b, *gain = t->m ? (float *)data->data + p->gain : NULL;
        if (!isfinite(p->scale))
            status = qn_fail(QN_E_ARG, "scale %g times the adapter's own %g is too large", (double)scale,
                             (double)t->factor);
        if (status == QN_OK) status = qn_adapter_target_read(t, (float *)data->data + p->a, b, gain);
        if (status == QN_OK && qn_row_order_differs(a->config, t->role)) {
            reorder(a->config, t, t->rank, b, row);
            if (gain) reorder(a->config, t, 1, gain, row);
        }
        const int part = part_of(a, t);
        if (status == QN_OK && gain)
            status = qn_adapter_gains(a->device[part],
                                      qn_parameters_get(a->parameters[part], t->role, t->layer), t, p, gain);
    }
    qn_free(row);
    return status;
}

static int32_t largest_rank(const qn_adapter_file *f)
{
    int32_t rank = 0;
    for (int64_t i = 0; i < f->n_targets; i++)
        if (f->targets[i].rank > rank) rank = f->targets[i].rank;
    return rank;
}

/* The file's whole tensors as changes of made. */
static qn_status read_wholes(qn_adapters *a, const qn_adapter_file *f, float scale, adapter *made)
{
    made->changes = qn_calloc((size_t)f->wholes.n + 1, sizeof *made->changes);
    if (!made->changes) return QN_E_NOMEM;
    for (int64_t i = 0; i < f->wholes.n; i++) {
        const qn_adapter_whole *w = &f->wholes.list[i];
        const int part = part_of_role(a, w->role, w->layer);
        QN_TRY(make_place(a, place_of(a, 1, w->role, w->layer),
                          qn_adapter_change_steps(a->config, w->role, w->layer)));
        QN_TRY(qn_adapter_change_make(a->device[part], a->parameters[part], a->config, w, scale,
                                      &made->changes[i]));
        made->n_changes++;
    }
    return QN_OK;
}

static uint64_t hash_changes(const qn_adapter_file *f, const adapter *made, uint64_t hash)
{
    for (int64_t i = 0; i < made->n_changes; i++) {
        const qn_adapter_change *c = &made->changes[i];
        if (!c->data) continue;
        const int64_t what[3] = {f->wholes.list[i].role, f->wholes.list[i].layer, -1};
        hash = qn_hash_bytes(what, sizeof what, hash);
        hash = qn_hash_bytes(&c->pairs[0].scale, sizeof c->pairs[0].scale, hash);
        hash = qn_hash_bytes(c->data->data, c->size_bytes, hash);
    }
    return hash;
}

static uint64_t hash_factors(const qn_adapter_file *f, const qn_lora_pair *pairs)
{
    uint64_t hash = 1;
    for (int64_t i = 0; i < f->n_targets; i++) {
        const qn_adapter_target *t = &f->targets[i];
        const qn_lora_pair *p = &pairs[i];
        const float *at = (const float *)p->data->data;
        const int64_t what[3] = {t->role, t->layer, p->rank};
        hash = qn_hash_bytes(what, sizeof what, hash);
        hash = qn_hash_bytes(&p->scale, sizeof p->scale, hash);
        const size_t ranks = (size_t)(t->rank * qn_adapter_target_count(t));
        hash = qn_hash_bytes(at + p->a, ranks * (size_t)t->n_in * sizeof *at, hash);
        hash = qn_hash_bytes(at + p->b, ranks * (size_t)t->n_out * sizeof *at, hash);
        if (p->gain >= 0) hash = qn_hash_bytes(at + p->gain, (size_t)t->n_out * sizeof *at, hash);
    }
    return hash;
}

static void show_pairs(qn_adapters *a, const qn_adapter_file *f, const qn_lora_pair *pairs,
                       const adapter *made, int32_t id)
{
    for (int64_t i = 0; i < f->n_targets; i++)
        (*place_of(a, 0, f->targets[i].role, f->targets[i].layer))->pairs[id] = pairs[i];
    for (int64_t i = 0; i < made->n_changes; i++) {
        place *p = *place_of(a, 1, f->wholes.list[i].role, f->wholes.list[i].layer);
        for (int k = 0; k < made->changes[i].n_pairs; k++)
            p->pairs[k * QN_ADAPTERS_MAX + id] = made->changes[i].pairs[k];
    }
}

/* The file becomes adapter number id, which is free. */
static qn_status take_file(qn_adapters *a, const qn_adapter_file *f, int32_t id, const char *name,
                           const char *path, float scale)
{
    size_t size_bytes[PARTS];
    for (int k = 0; k < PARTS; k++) QN_TRY(count_floats(a, f, k, &size_bytes[k]));
    adapter made = {.state = LOADED};
    char *kept_path = qn_strdup(path);
    qn_lora_pair *pairs = qn_alloc_array((size_t)f->n_targets + 1, sizeof *pairs);
    qn_status status = kept_path && pairs ? QN_OK : QN_E_NOMEM;
    for (int k = 0; k < PARTS && status == QN_OK; k++) {
        if (!size_bytes[k]) continue;
        status = a->device[k]->ops->alloc(a->device[k], size_bytes[k], QN_LEDGER_WEIGHTS, &made.data[k]);
        if (status == QN_OK && !qn_buffer_host(made.data[k], QN_HOST_WRITES)) status = QN_E_NOMEM;
    }
    if (status == QN_OK) status = read_all(a, f, scale, made.data, pairs);
    if (status == QN_OK) status = read_wholes(a, f, scale, &made);
    if (status == QN_OK) {
        show_pairs(a, f, pairs, &made, id);
        made.about = (qn_adapter_about){.path = kept_path,
                                        .fingerprint = hash_changes(f, &made, hash_factors(f, pairs)),
                                        .layout = f->config.layout,
                                        .scale = scale,
                                        .n_matrices = f->n_targets + f->wholes.n,
                                        .rank = largest_rank(f),
                                        .size_bytes = size_bytes[OWN] + size_bytes[BELOW]};
        for (int64_t i = 0; i < made.n_changes; i++) made.about.size_bytes += made.changes[i].size_bytes;
        memcpy(made.about.name, name, strlen(name) + 1);
        pthread_mutex_lock(&a->lock);
        a->adapters[id] = made;
        pthread_mutex_unlock(&a->lock);
    } else {
        release_data(&made);
        qn_free(kept_path);
    }
    qn_free(pairs);
    return status;
}

qn_status qn_adapters_load(qn_adapters *a, const char *name, const char *path, float scale, qn_buf *notes,
                           int32_t *id)
{
    int32_t at = 0;
    qn_adapter_file file = {0};
    if (!is_name(name))
        return qn_fail(
            QN_E_ARG,
            "\"%.80s\" is not a name for an adapter: a name has 1 to %d letters, digits, '.', '_' and '-', "
            "and is not \"none\"",
            name, QN_ADAPTER_NAME_LENGTH);
    if (!isfinite(scale)) return qn_fail(QN_E_ARG, "adapter %s: the scale is not a finite number", name);
    if (find(a, name) >= 0) return qn_fail(QN_E_ARG, "an adapter named %s is loaded already", name);
    while (at < QN_ADAPTERS_MAX && a->adapters[at].state != EMPTY) at++;
    if (at == QN_ADAPTERS_MAX) return qn_fail(QN_E_FULL, "%d adapters are loaded, which is the maximum", at);
    qn_status status = qn_adapter_file_open(path, a->config, notes, &file);
    if (status == QN_OK) status = take_file(a, &file, at, name, path, scale);
    qn_adapter_file_close(&file);
    if (status != QN_OK) return qn_fail_prefix(status, "adapter %s", name);
    *id = at;
    return QN_OK;
}

void qn_adapters_show(qn_adapters *a, int32_t id, int is_default)
{
    pthread_mutex_lock(&a->lock);
    a->adapters[id].state = SHOWN;
    if (is_default) a->default_id = id;
    pthread_mutex_unlock(&a->lock);
}

void qn_adapters_drop(qn_adapters *a, int32_t id)
{
    pthread_mutex_lock(&a->lock);
    adapter old = a->adapters[id];
    a->adapters[id] = (adapter){0};
    pthread_mutex_unlock(&a->lock);
    for (int64_t i = 0; i < a->n_places; i++)
        for (int k = 0; a->places[i] && k < a->places[i]->n_steps; k++)
            a->places[i]->pairs[k * QN_ADAPTERS_MAX + id] = (qn_lora_pair){0};
    release_data(&old);
    qn_free(old.about.path);
}

qn_status qn_adapters_unload(qn_adapters *a, const char *name)
{
    qn_status status = QN_OK;
    pthread_mutex_lock(&a->lock);
    int32_t id = find(a, name);
    if (id < 0) {
        status = fail_unknown(a, name);
    } else if (a->adapters[id].n_holds > 0) {
        status =
            qn_fail(QN_E_ARG, "adapter %s is in use by %lld rows; it can be unloaded when these have ended",
                    name, (long long)a->adapters[id].n_holds);
    } else {
        a->adapters[id].state = LOADED;
        if (a->default_id == id) a->default_id = -1;
    }
    pthread_mutex_unlock(&a->lock);
    if (status == QN_OK) qn_adapters_drop(a, id);
    return status;
}

/* ---- programs ----------------------------------------------------------------------------------------- */

static int is_needed(const place *p)
{
    for (int i = 0; p && i < p->n_steps * QN_ADAPTERS_MAX; i++)
        if (p->pairs[i].data) return 1;
    return 0;
}

int qn_adapters_want_programs(const qn_adapters *a)
{
    int any_built = 0, any_needed = 0;
    for (int64_t i = 0; i < a->n_places; i++) {
        const place *p = a->places[i];
        int needed = is_needed(p), built = p && p->built == a->building;
        if (needed && !built) return 1;
        any_built |= built;
        any_needed |= needed;
    }
    return any_built && !any_needed;
}

void qn_adapters_begin_programs(qn_adapters *a)
{
    a->building++;
}

const qn_lora_pair *qn_adapters_pairs(qn_adapters *a, qn_weight_role role, int64_t layer)
{
    place *p = *place_of(a, 0, role, layer);
    if (!is_needed(p)) return NULL;
    p->built = a->building;
    return p->pairs;
}

const qn_lora_pair *qn_adapters_changes(qn_adapters *a, qn_weight_role role, int64_t layer, int *n_steps)
{
    place *p = *place_of(a, 1, role, layer);
    if (!is_needed(p)) return NULL;
    p->built = a->building;
    *n_steps = p->n_steps;
    return p->pairs;
}

qn_status qn_adapters_check_programs(const qn_adapters *a)
{
    for (int64_t i = 0; i < a->n_places; i++) {
        const place *p = a->places[i];
        if (!is_needed(p) || p->built == a->building) continue;
        char name[QN_TENSOR_NAME_MAX];
        qn_weight_role role = (qn_weight_role)(i % QN_WEIGHT_ROLE_COUNT);
        int64_t row = i % (a->n_places / 2) / QN_WEIGHT_ROLE_COUNT;
        if (!qn_family_weight_name(a->config->family, QN_SOURCE_SAFETENSORS, "", role, row ? row - 1 : 0,
                                   name) &&
            !qn_family_expert_module(a->config->family, QN_EXPERTS_PARAMETER, "", role, row - 1, name, NULL))
            name[0] = '\0';
        return qn_fail(QN_E_UNSUPPORTED, "%s is of a kind that cannot have an adapter", name);
    }
    return QN_OK;
}
