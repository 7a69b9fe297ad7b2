#include "model/config/rope_change.h"

#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

enum { POSITIONS_MAX = 2147483647 };

static const char original_name[] = "original_max_position_embeddings", full_name[] = "full_attention",
                  sliding_name[] = "sliding_attention";

/* ---- the options alone --------------------------------------------------------------------------------- */

int qn_rope_change_asked(const qn_rope_options *o)
{
    return o && (o->theta != 0 || o->scaling != QN_ROPE_SCALING_OWN || o->factor != 0 ||
                 o->yarn_original_context != 0 || o->yarn_ext_factor != 0 || o->yarn_attention_factor != 0 ||
                 o->yarn_beta_slow != 0 || o->yarn_beta_fast != 0);
}

/* The first field of YaRN that is set; NULL: none is. */
static const char *yarn_field(const qn_rope_options *o)
{
    if (o->yarn_original_context) return "yarn_original_context";
    if (o->yarn_ext_factor != 0) return "yarn_ext_factor";
    if (o->yarn_attention_factor != 0) return "yarn_attention_factor";
    if (o->yarn_beta_slow != 0) return "yarn_beta_slow";
    return o->yarn_beta_fast != 0 ? "yarn_beta_fast" : NULL;
}

static qn_status check_ranges(const qn_rope_options *o)
{
    const struct {
        const char *name;
        double value, least, most;
    } fields[] = {
        {"theta", o->theta, 1e-3, 1e30},
        {"factor", o->factor, 1e-3, 1e6},
        {"yarn_original_context", (double)o->yarn_original_context, 1, POSITIONS_MAX},
        {"yarn_ext_factor", o->yarn_ext_factor == QN_ROPE_NO_EXTRAPOLATION ? 0 : o->yarn_ext_factor, 1e-6, 1},
        {"yarn_attention_factor", o->yarn_attention_factor, 1e-6, 1e6},
        {"yarn_beta_slow", o->yarn_beta_slow, 1e-6, 1e6},
        {"yarn_beta_fast", o->yarn_beta_fast, 1e-6, 1e6}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value != 0 &&
            !(fields[i].value >= fields[i].least && fields[i].value <= fields[i].most))
            return qn_fail(QN_E_ARG, "rope.%s: %.9g is not in the range %.9g to %.9g", fields[i].name,
                           fields[i].value, fields[i].least, fields[i].most);
    if ((int)o->scaling < 0 || o->scaling > QN_ROPE_SCALING_YARN)
        return qn_fail(QN_E_ARG, "rope.scaling: there is no scaling %d", (int)o->scaling);
    return QN_OK;
}

qn_status qn_rope_change_check(const qn_rope_options *o)
{
    const char *of_yarn = yarn_field(o);
    QN_TRY(check_ranges(o));
    if (o->scaling == QN_ROPE_SCALING_NONE && o->factor != 0)
        return qn_fail(QN_E_ARG, "rope.factor cannot be used with the scaling none");
    if (o->scaling == QN_ROPE_SCALING_NONE || o->scaling == QN_ROPE_SCALING_LINEAR) {
        if (of_yarn) return qn_fail(QN_E_ARG, "rope.%s needs the scaling yarn", of_yarn);
    }
    if (o->yarn_beta_slow != 0 && o->yarn_beta_fast != 0 && o->yarn_beta_slow >= o->yarn_beta_fast)
        return qn_fail(QN_E_ARG, "rope.yarn_beta_slow is %.9g, expected less than rope.yarn_beta_fast (%.9g)",
                       o->yarn_beta_slow, o->yarn_beta_fast);
    return QN_OK;
}

/* ---- the description ----------------------------------------------------------------------------------- */

/* What a description says of the set that is changed. All but o and f is owned. */
typedef struct {
    const qn_rope_options *o;
    const qn_fields *f;
    const qn_source *src;
    json_t *params, *set; /* rope_parameters, NULL: none; and the set with the changes */
    int is_nested;        /* the set is one of two in params */
} change;

static json_t *object_in(const json_t *value)
{
    return json_is_object(value) ? (json_t *)value : NULL;
}

static qn_status read_params(change *x, const qn_family *family)
{
    const json_t *said = qn_fields_get(x->f, "rope_parameters");
    if (said && !json_is_null(said)) {
        x->params = object_in(said) ? qn_json_copy(said) : json_object();
    } else if (family->rope_parameters && !x->f->gguf_architecture) {
        const char *text = family->rope_parameters;
        QN_TRY(qn_json_parse(x->f->file, text, strlen(text), &x->params));
    } else {
        return QN_OK;
    }
    return x->params ? QN_OK : qn_fail_nomem(sizeof *x->params);
}

/* The set before the change, as the reader finds it: that of full layers where there are two. */
static qn_status find_set(change *x, const qn_family *family)
{
    QN_TRY(read_params(x, family));
    const json_t *full = object_in(json_object_get(x->params, full_name)),
                 *scaling = object_in(qn_fields_get(x->f, "rope_scaling"));
    int has_local = 0;
    double local;
    QN_TRY(qn_fields_number(x->f, "rope_local_base_freq", 1e-3, 1e30, &local, &has_local));
    const int has_scaling = scaling && json_object_size(scaling);
    x->is_nested = full || object_in(json_object_get(x->params, sliding_name));
    const json_t *from = x->params;
    if (x->is_nested || has_scaling)
        from = x->is_nested ? full : scaling;
    else if (has_local && !x->f->gguf_architecture) /* of two sets, a flat one says nothing */
        from = NULL;
    x->set = from ? qn_json_copy(from) : json_object();
    if (!x->set || (x->is_nested && has_scaling && json_object_update(x->set, (json_t *)scaling)))
        return qn_fail_nomem(sizeof *x->set);
    return QN_OK;
}

/* Type of the set by its first name. */
static const char *type_of(const json_t *set)
{
    const char *name = json_string_value(json_object_get(set, "rope_type"));
    if (!name) name = json_string_value(json_object_get(set, "type"));
    if (!name || strcmp(name, "none") == 0 || strcmp(name, "mrope") == 0) return "default";
    if (strcmp(name, "su") == 0) return "longrope";
    return strcmp(name, "yarn") == 0 && json_object_get(set, "short_factor") ? "longrope" : name;
}

static qn_status put(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0 ? QN_OK : qn_fail_nomem(sizeof *value);
}

static qn_status put_number(json_t *object, const char *name, double value)
{
    return value == 0 ? QN_OK : put(object, name, json_real(value));
}

/* Where a GGUF file has LongRoPE's tables and names no type, they are its type (rope_long.c). */
static const char *own_type(const change *x)
{
    const char *type = type_of(x->set);
    const int is_long = x->f->gguf_architecture && strcmp(type, "default") == 0 &&
                        qn_source_find(x->src, "rope_factors_long.weight");
    return is_long ? "longrope" : type;
}

static qn_status change_type(change *x)
{
    /* What belongs to one type alone. */
    static const char *const keys[] = {"attention_factor",
                                       "mscale",
                                       "mscale_all_dim",
                                       "beta_fast",
                                       "beta_slow",
                                       "truncate",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "short_factor",
                                       "long_factor",
                                       "alpha",
                                       "yarn_attn_factor",
                                       "yarn_ext_factor",
                                       "yarn_log_multiplier"};
    static const char *const names[] = {NULL, "default", "linear", "yarn"};
    const char *own = own_type(x), *wanted = names[x->o->scaling];
    if (!wanted) wanted = x->o->factor != 0 && strcmp(own, "default") == 0 ? "linear" : own;
    if (strcmp(own, wanted) == 0) return QN_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) json_object_del(x->set, keys[i]);
    json_object_del(x->set, "type");
    /* LongRoPE's tables apply where the type is default. They do not apply to a linear factor of 1, which changes
     * no bit. */
    if (strcmp(wanted, "default") == 0 && x->f->gguf_architecture) {
        QN_TRY(put(x->set, "factor", json_integer(1)));
        wanted = "linear";
    }
    return put(x->set, "rope_type", json_string(wanted));
}

/* A factor where the type needs one and takes one. */
static qn_status check_factor(const change *x, const qn_model_config *c)
{
    const qn_rope_options *o = x->o;
    const char *type = own_type(x);
    const json_t *factor = json_object_get(x->set, "factor");
    double original = (double)c->max_position_embeddings;
    if (o->factor != 0 && (strcmp(type, "longrope") == 0 || strcmp(type, "dynamic") == 0))
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: rope.factor (--rope-scale) has no effect on the model's own scaling, %s; with "
                       "rope.scaling (--rope-scaling) linear or yarn it has",
                       x->f->file, type);
    const int is_yarn = strcmp(type, "yarn") == 0;
    if (yarn_field(o) && !is_yarn)
        return qn_fail(QN_E_ARG, "rope.%s needs the scaling yarn (--rope-scaling yarn); that of %s is %s",
                       yarn_field(o), x->f->file, strcmp(type, "default") == 0 ? "none" : type);
    if ((!is_yarn && strcmp(type, "linear") != 0) || o->factor != 0 || (factor && !json_is_null(factor)))
        return QN_OK;
    const qn_fields set = {.file = x->f->file, .object = x->set, .path = ""};
    QN_TRY(qn_fields_number(&set, original_name, 1, POSITIONS_MAX, &original, NULL));
    QN_TRY(qn_fields_number(x->f, original_name, 1, POSITIONS_MAX, &original, NULL));
    if (o->yarn_original_context) original = (double)o->yarn_original_context;
    if (is_yarn && original < (double)c->max_position_embeddings) return QN_OK;
    return qn_fail(QN_E_ARG, "the scaling %s needs rope.factor (--rope-scale): %s names no factor", type,
                   x->f->file);
}

static qn_status put_numbers(change *x)
{
    const qn_rope_options *o = x->o;
    QN_TRY(put_number(x->set, "rope_theta", o->theta));
    QN_TRY(put_number(x->set, "factor", o->factor));
    QN_TRY(put_number(x->set, "yarn_attn_factor", o->yarn_attention_factor));
    QN_TRY(put_number(x->set, "beta_slow", o->yarn_beta_slow));
    QN_TRY(put_number(x->set, "beta_fast", o->yarn_beta_fast));
    if (o->yarn_ext_factor != 0)
        QN_TRY(put(x->set, "yarn_ext_factor", json_real(fmax(o->yarn_ext_factor, 0))));
    return o->yarn_original_context ? put(x->set, original_name, json_integer(o->yarn_original_context))
                                    : QN_OK;
}

/* The reader prefers rope_scaling to a single set, and a context beside the set to the one in it. */
static qn_status put_set(const change *x, json_t *root)
{
    QN_TRY(put(root, "rope_scaling", json_incref(x->set)));
    if (x->o->yarn_original_context && qn_fields_get(x->f, original_name))
        QN_TRY(put(root, original_name, json_integer(x->o->yarn_original_context)));
    if (!x->is_nested) return QN_OK;
    QN_TRY(put(x->params, full_name, json_incref(x->set)));
    return put(root, "rope_parameters", json_incref(x->params));
}

static int has_rope(const qn_model_config *c)
{
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        if (qn_layer_attends(&c->layers[i]) && c->layers[i].rope != QN_ROPE_NONE) return 1;
    return 0;
}

qn_status qn_rope_change_apply(const qn_rope_options *o, const qn_source *src, const qn_family *family,
                               const qn_model_config *c, qn_fields *f, json_t **edited)
{
    const qn_fields before = *f;
    change x = {.o = o, .f = &before, .src = src};
    if (!has_rope(c))
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: %s has no rotary positions (RoPE), so the options rope cannot change them",
                       f->file, c->architecture);
    qn_status status = find_set(&x, family);
    if (status == QN_OK) status = change_type(&x);
    if (status == QN_OK) status = check_factor(&x, c);
    if (status == QN_OK) status = put_numbers(&x);
    if (status == QN_OK && !(*edited = qn_json_copy(f->object))) status = qn_fail_nomem(sizeof **edited);
    if (status == QN_OK) status = put_set(&x, *edited);
    if (status == QN_OK) f->object = *edited;
    json_decref(x.params);
    json_decref(x.set);
    return status;
}

/* ---- what is said -------------------------------------------------------------------------------------- */

qn_status qn_rope_change_note(const qn_rope_options *o, const qn_source *src, const qn_fields *f,
                              const qn_model_config *c, qn_buf *notes)
{
    static const char table[] = "rope_freqs.weight";
    const qn_rope_config *r = &c->rope[0];
    qn_buf_printf(notes, "rotary positions differ from %s: base %.9g, ", f->file, r->theta);
    if (r->type == QN_ROPE_DEFAULT || (r->type == QN_ROPE_LINEAR && r->factor == 1))
        qn_buf_puts(notes, "no scaling");
    else
        qn_buf_printf(notes, "scaling %s by %.9g", qn_rope_type_name(r->type), r->factor);
    if (r->type == QN_ROPE_YARN)
        qn_buf_printf(notes, " of %.0f tokens (attention %.7g, beta %.9g to %.9g)", r->original_positions,
                      (double)r->attention_factor, r->beta_slow, r->beta_fast);
    const qn_rope_config *other = &c->rope[c->n_rope - 1];
    if (other->theta != r->theta || other->type != r->type || other->factor != r->factor)
        qn_buf_printf(notes, "; sliding layers keep theirs (base %.9g)", other->theta);
    if (o->scaling != QN_ROPE_SCALING_OWN && f->gguf_architecture && qn_source_find(src, table))
        qn_buf_printf(notes, "; the factors in the tensor %s still apply", table);
    qn_buf_printf(notes, "; the model's context is %lld tokens\n", (long long)c->max_position_embeddings);
    return notes->status;
}

/* ---- whose states ---------------------------------------------------------------------------------------- */

static uint64_t hash_rope(const qn_rope_config *r, uint64_t hash)
{
    const size_t n_bytes = (size_t)(r->rotary_dim / 2) * sizeof *r->inv_freq;
    const int64_t numbers[] = {r->rotary_dim, r->short_positions, r->mrope_interleaved};
    hash = qn_hash_bytes(numbers, sizeof numbers, hash);
    hash = qn_hash_bytes(r->mrope_section, sizeof r->mrope_section, hash);
    const float scales[] = {r->attention_factor, r->score_mscale};
    hash = qn_hash_bytes(scales, sizeof scales, hash);
    hash = qn_hash_bytes(r->inv_freq, n_bytes, hash);
    return r->long_inv_freq ? qn_hash_bytes(r->long_inv_freq, n_bytes, hash) : hash;
}

uint64_t qn_rope_change_hash(const qn_model_config *c)
{
    const float scales[] = {c->attention_scale, c->query_scale_beta, c->query_scale_positions};
    uint64_t hash = qn_hash_bytes(scales, sizeof scales, 1);
    for (int i = 0; i < c->n_rope; i++) hash = hash_rope(&c->rope[i], hash);
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        hash = qn_hash_bytes(&c->layers[i].rope, sizeof c->layers[i].rope, hash);
    return qn_hash_bytes(&c->rope_interleaved, sizeof c->rope_interleaved, hash);
}
