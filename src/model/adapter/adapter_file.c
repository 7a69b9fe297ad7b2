#include "model/adapter/adapter_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/files/mmap.h"
#include "model/adapter/modules.h"
#include "model/config/families.h"

enum { CONFIG_BYTES_MAX = 1 << 20, MODULE_MAX = QN_TENSOR_NAME_MAX - 8, ROLES_OF_ONE_MAX = 3 };

const qn_adapter_names qn_adapter_layouts[QN_ADAPTER_LAYOUTS] = {
    [QN_ADAPTER_PEFT] = {"adapter_model.safetensors",
                         "base_model.model.",
                         {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"}},
    [QN_ADAPTER_MLX] = {"adapters.safetensors", "", {".lora_a", ".lora_b", ".m"}},
};

typedef struct {
    qn_adapter_file *f;
    const qn_model_config *model;
    qn_adapter_target *table; /* [1 + num_hidden_layers][QN_WEIGHT_ROLE_COUNT]; the model's own roles first */
    qn_buf *notes;
} reading;

static qn_adapter_target *target_at(const reading *r, qn_weight_role role, int64_t layer)
{
    int64_t row = role < QN_WEIGHT_MODEL_COUNT ? 0 : 1 + layer;
    return &r->table[row * QN_WEIGHT_ROLE_COUNT + role];
}

static qn_status fail_tensor(qn_status status, const qn_tensor_view *v, const char *why)
{
    return qn_fail(status, "%s: tensor %s: %s", v->file, v->name, why);
}

/* ---- names -------------------------------------------------------------------------------------------- */

/* The module's name, less what the layout puts around it, and which part the tensor is. */
static qn_status read_name(const reading *r, const qn_tensor_view *v, char module[MODULE_MAX],
                           qn_adapter_tensor *out)
{
    const qn_adapter_config *config = &r->f->config;
    const char *name = v->name, *prefix = qn_adapter_layouts[config->layout].prefix;
    const char *const *endings = qn_adapter_layouts[config->layout].ending;
    if (strncmp(name, prefix, strlen(prefix)) == 0) name += strlen(prefix);
    size_t n = strlen(name);
    for (int i = 0; i < QN_ADAPTER_PARTS; i++) {
        size_t m = strlen(endings[i]);
        if (n <= m || strcmp(name + n - m, endings[i]) != 0) continue;
        if (n - m >= MODULE_MAX) return fail_tensor(QN_E_FORMAT, v, "the name is too long");
        if (i == QN_ADAPTER_M && !config->dora)
            return fail_tensor(QN_E_FORMAT, v,
                               "it holds magnitudes of DoRA, but the configuration does not name DoRA");
        snprintf(module, MODULE_MAX, "%.*s", (int)(n - m), name);
        *out = (qn_adapter_tensor)i;
        return QN_OK;
    }
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: tensor %s: it is not a matrix of an adapter (names must end in %s or %s)", v->file,
                   v->name, endings[QN_ADAPTER_A], endings[QN_ADAPTER_B]);
}

/* The number behind "layers." that follows the decoder's prefix; -1: there is none. */
static int64_t layer_of(const char *rest)
{
    int64_t layer = 0;
    int digits = 0;
    if (strncmp(rest, "layers.", 7) != 0) return -1;
    for (rest += 7; *rest >= '0' && *rest <= '9' && digits < 18; rest++, digits++)
        layer = 10 * layer + (*rest - '0');
    return digits && *rest == '.' ? layer : -1;
}

/* The roles whose matrix is called `full` where the decoder lies at prefix: one, or all that share it, from
 * the top; returns how many. */
static int roles_called(const qn_model_config *c, const char *full, const char *prefix, int64_t layer,
                        int in_layer, qn_weight_role roles[ROLES_OF_ONE_MAX])
{
    char name[QN_TENSOR_NAME_MAX];
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    const qn_shared_tensor *shared;
    int begin = in_layer ? QN_WEIGHT_MODEL_COUNT : 0, n = 0;
    int end = in_layer ? QN_WEIGHT_ROLE_COUNT : QN_WEIGHT_MODEL_COUNT;
    for (int i = begin; i < end; i++) {
        qn_weight_role role = (qn_weight_role)i;
        if (!qn_module_has_role(c, role, layer, shape)) continue;
        if (qn_family_weight_name(c->family, QN_SOURCE_SAFETENSORS, prefix, role, layer, name) &&
            strcmp(name, full) == 0) {
            roles[0] = role;
            return 1;
        }
        if (!qn_family_shared_name(c->family, QN_SOURCE_SAFETENSORS, prefix, role, layer, name, &shared) ||
            strcmp(name, full) != 0)
            continue;
        while (n < ROLES_OF_ONE_MAX && shared->roles[n] != QN_WEIGHT_ROLE_COUNT) {
            roles[n] = shared->roles[n];
            n++;
        }
        return n;
    }
    return 0;
}

/* The roles whose matrix is the module's weight, of *layer; returns how many. The head alone lies outside the
 * layers. *beyond: the module is of this layer, which the model does not have. */
static int find_roles(const qn_model_config *c, const char *module, qn_weight_role roles[ROLES_OF_ONE_MAX],
                      int64_t *layer, int64_t *beyond)
{
    char full[QN_TENSOR_NAME_MAX];
    snprintf(full, sizeof full, "%s.weight", module);
    *beyond = -1;
    for (const char *const *p = qn_decoder_prefixes; *p; p++) {
        if (strncmp(module, *p, strlen(*p)) != 0) continue;
        int64_t own = layer_of(module + strlen(*p));
        if (own >= c->num_hidden_layers) {
            *beyond = own;
            continue;
        }
        *layer = own < 0 ? 0 : own;
        int n = roles_called(c, full, *p, *layer, own >= 0, roles);
        if (n) return n;
    }
    return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

/* Sizes that all parts must agree with. */
typedef struct {
    int64_t rank, n_in, n_rows;
} sizes;

static qn_status check_shape(const reading *r, const qn_tensor_view *v, qn_adapter_tensor p, const sizes *s)
{
    int64_t want[2] = {p == QN_ADAPTER_A ? s->rank : s->n_rows, p == QN_ADAPTER_A ? s->n_in : s->rank};
    char actual[128];
    if (p == QN_ADAPTER_M) {
        if (v->n_dims == 1 && v->shape[0] == s->n_rows) return QN_OK;
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld]", v->file, v->name,
                       qn_view_shape_text(v, actual, sizeof actual), (long long)s->n_rows);
    }
    if (r->f->config.layout == QN_ADAPTER_MLX) {
        int64_t first = want[0];
        want[0] = want[1];
        want[1] = first;
    }
    if (v->n_dims == 2 && v->shape[0] == want[0] && v->shape[1] == want[1]) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld, %lld] (rank %lld)", v->file,
                   v->name, qn_view_shape_text(v, actual, sizeof actual), (long long)want[0],
                   (long long)want[1], (long long)s->rank);
}

static qn_status add_tensor(const reading *r, const qn_tensor_view *v)
{
    const qn_adapter_config *config = &r->f->config;
    char module[MODULE_MAX];
    qn_adapter_tensor p = QN_ADAPTER_A;
    qn_weight_role roles[ROLES_OF_ONE_MAX];
    int64_t layer = 0, beyond, shape[QN_WEIGHT_DIMS_MAX];
    double factor;
    sizes s = {0};
    QN_TRY(read_name(r, v, module, &p));
    if (v->supported && v->dtype != QN_DTYPE_F32 && v->dtype != QN_DTYPE_F16 && v->dtype != QN_DTYPE_BF16)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: an adapter of type %s is not supported", v->file,
                       v->name, v->type_name);
    QN_TRY(qn_view_check(v));
    int n = find_roles(r->model, module, roles, &layer, &beyond);
    if (!n && beyond >= 0)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: it is for layer %lld, but the model has %lld layers",
                       v->file, v->name, (long long)beyond, (long long)r->model->num_hidden_layers);
    if (!n)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: %s is not a linear layer of this model (%s)",
                       v->file, v->name, module, r->model->architecture);
    if (roles[0] >= QN_WEIGHT_MODEL_COUNT && !qn_adapter_config_has_layer(config, layer))
        return fail_tensor(QN_E_FORMAT, v, "layers_to_transform does not name its layer");
    QN_TRY(qn_adapter_config_module(config, module, &s.rank, &factor));
    if (!isfinite((float)factor)) return fail_tensor(QN_E_FORMAT, v, "its scale is too large");
    for (int i = 0; i < n; i++) {
        qn_weight_shape(r->model, layer, roles[i], shape);
        s.n_rows += shape[0];
        s.n_in = shape[1];
    }
    QN_TRY(check_shape(r, v, p, &s));
    int64_t row = 0;
    for (int i = 0; i < n; i++) {
        qn_adapter_target *t = target_at(r, roles[i], layer);
        const qn_tensor_view **mine = p == QN_ADAPTER_A ? &t->a : p == QN_ADAPTER_B ? &t->b : &t->m;
        if (*mine)
            return qn_fail(QN_E_FORMAT, "%s: tensors %s and %s are for the same matrix", v->file,
                           (*mine)->name, v->name);
        *mine = v;
        qn_weight_shape(r->model, layer, roles[i], shape);
        t->role = roles[i];
        t->layer = layer;
        t->n_in = shape[1];
        t->n_out = shape[0];
        t->row = row;
        t->n_rows = s.n_rows;
        t->rank = (int32_t)s.rank;
        t->factor = (float)factor;
        row += shape[0];
    }
    return QN_OK;
}

/* Targets with all their parts, in the order of the table. */
static qn_status gather(const reading *r)
{
    qn_adapter_file *f = r->f;
    int64_t rows = 1 + r->model->num_hidden_layers, n = 0;
    for (int64_t i = 0; i < rows * QN_WEIGHT_ROLE_COUNT; i++) {
        const qn_adapter_target *t = &r->table[i];
        const qn_tensor_view *v = t->a ? t->a : t->b ? t->b : t->m;
        if (!v) continue;
        if (f->config.dora && !t->m)
            return fail_tensor(QN_E_FORMAT, v, "its matrix has no magnitudes, which DoRA needs");
        if (!t->a || !t->b)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: the other tensor of its pair is missing", v->file,
                           v->name);
        r->table[n++] = *t;
    }
    if (!n) return qn_fail(QN_E_FORMAT, "%s: it has no tensors", qn_safetensors_path(f->tensors));
    f->targets = qn_alloc_array((size_t)n, sizeof *f->targets);
    if (!f->targets) return QN_E_NOMEM;
    memcpy(f->targets, r->table, (size_t)n * sizeof *f->targets);
    f->n_targets = n;
    return QN_OK;
}

/* Lists of targets may be made for several families, so a name that no tensor has is no error. */
static qn_status note_targets(const reading *r)
{
    const char *name, *prefix = qn_adapter_layouts[r->f->config.layout].prefix;
    for (size_t i = 0; (name = qn_adapter_config_target(&r->f->config, i)); i++) {
        char part[MODULE_MAX];
        int found = 0;
        snprintf(part, sizeof part, "%.90s.lora_", name);
        for (int64_t j = 0; j < qn_safetensors_count(r->f->tensors) && !found; j++) {
            const char *tensor = qn_safetensors_get(r->f->tensors, j)->name, *at;
            if (strncmp(tensor, prefix, strlen(prefix)) == 0) tensor += strlen(prefix);
            at = strstr(tensor, part);
            found = at && (at == tensor || at[-1] == '.');
        }
        if (!found)
            qn_buf_printf(r->notes, "%s: target_modules names %.90s, but no tensor belongs to it\n",
                          r->f->config_path, name);
    }
    return r->notes->status;
}

static qn_status read_tensors(const reading *r)
{
    for (int64_t i = 0; i < qn_safetensors_count(r->f->tensors); i++)
        QN_TRY(add_tensor(r, qn_safetensors_get(r->f->tensors, i)));
    QN_TRY(gather(r));
    return note_targets(r);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static qn_status join(const char *folder, const char *between, const char *name, char **out)
{
    qn_buf b = {0};
    qn_buf_printf(&b, "%s%s%s", folder, between, name);
    *out = qn_buf_take(&b, NULL);
    return *out ? QN_OK : QN_E_NOMEM;
}

static qn_status no_tensors(const char *path, qn_adapter_layout layout)
{
    char *bin = NULL;
    QN_TRY(join(path, "/", "adapter_model.bin", &bin));
    int is_pickle = access(bin, F_OK) == 0;
    qn_free(bin);
    if (is_pickle)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: adapter_model.bin is a Python pickle, which may run code; save the adapter as "
                       "safetensors",
                       path);
    return qn_fail(QN_E_NOT_FOUND, "%s: there is no %s beside adapter_config.json", path,
                   qn_adapter_layouts[layout].file);
}

static qn_status open_files(const char *path, qn_adapter_file *f, qn_buf *notes)
{
    struct stat about;
    char *text = NULL, *tensors = NULL;
    size_t n = 0;
    if (stat(path, &about) != 0)
        return qn_fail(errno == ENOENT || errno == ENOTDIR ? QN_E_NOT_FOUND : QN_E_IO, "%s: %s", path,
                       strerror(errno));
    int is_file = !S_ISDIR(about.st_mode);
    char *folder = qn_strdup(path), *slash;
    if (!folder) return QN_E_NOMEM;
    if (is_file && (slash = strrchr(folder, '/'))) *slash = '\0';
    qn_status status =
        join(is_file && !strchr(path, '/') ? "." : folder, "/", QN_ADAPTER_CONFIG_NAME, &f->config_path);
    qn_free(folder);
    if (status == QN_OK) status = qn_file_read(f->config_path, CONFIG_BYTES_MAX, &text, &n);
    if (status == QN_E_NOT_FOUND)
        status = qn_fail(status, "%s: there is no adapter_config.json, so it is not a LoRA adapter", path);
    if (status == QN_OK) status = qn_adapter_config_read(f->config_path, text, n, notes, &f->config);
    if (status == QN_OK && !is_file)
        status = join(path, "/", qn_adapter_layouts[f->config.layout].file, &tensors);
    if (status == QN_OK && !is_file && access(tensors, F_OK) != 0)
        status = no_tensors(path, f->config.layout);
    if (status == QN_OK) status = qn_safetensors_open(is_file ? path : tensors, &f->tensors);
    qn_free(text);
    qn_free(tensors);
    return status;
}

qn_status qn_adapter_file_open(const char *path, const qn_model_config *model, qn_buf *notes,
                               qn_adapter_file *out)
{
    qn_adapter_file f = {0};
    reading r = {.f = &f, .model = model, .notes = notes};
    qn_status status = open_files(path, &f, notes);
    if (status == QN_OK) {
        r.table = qn_calloc((size_t)model->num_hidden_layers + 1, QN_WEIGHT_ROLE_COUNT * sizeof *r.table);
        status = r.table ? read_tensors(&r) : QN_E_NOMEM;
    }
    qn_free(r.table);
    if (status == QN_OK)
        *out = f;
    else
        qn_adapter_file_close(&f);
    return status;
}

void qn_adapter_file_close(qn_adapter_file *f)
{
    qn_safetensors_close(f->tensors);
    qn_adapter_config_free(&f->config);
    qn_free(f->config_path);
    qn_free(f->targets);
    *f = (qn_adapter_file){0};
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static qn_status read_finite(const qn_tensor_view *v, float *out)
{
    QN_TRY(qn_weights_floats(v, out));
    for (int64_t i = 0; i < v->n_elements; i++)
        if (!isfinite(out[i]))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: element %lld is %s", v->file, v->name, (long long)i,
                           isnan(out[i]) ? "not a number" : "infinite");
    return QN_OK;
}

qn_status qn_adapter_file_read(const qn_adapter_file *f, const qn_adapter_target *t, float *a, float *b,
                               float *m)
{
    int is_mlx = f->config.layout == QN_ADAPTER_MLX;
    int64_t most = t->a->n_elements > t->b->n_elements ? t->a->n_elements : t->b->n_elements;
    float *values = qn_alloc_array((size_t)most, sizeof *values); /* of the magnitudes there are fewer */
    if (!values) return QN_E_NOMEM;
    qn_status status = read_finite(t->a, values);
    for (int64_t k = 0; status == QN_OK && k < t->rank; k++)
        for (int64_t i = 0; i < t->n_in; i++)
            a[k * t->n_in + i] = values[is_mlx ? i * t->rank + k : k * t->n_in + i];
    if (status == QN_OK) status = read_finite(t->b, values);
    for (int64_t k = 0; status == QN_OK && k < t->rank; k++)
        for (int64_t o = 0; o < t->n_out; o++)
            b[k * t->n_out + o] = values[is_mlx ? k * t->n_rows + t->row + o : (t->row + o) * t->rank + k];
    if (status == QN_OK && t->m) status = read_finite(t->m, values);
    if (status == QN_OK && t->m) memcpy(m, values + t->row, (size_t)t->n_out * sizeof *m);
    qn_free(values);
    return status;
}
