/* What adapter_config.json says of a LoRA adapter: PEFT's file, or mlx_lm's. A file that asks for what is not
 * computed here (starts that change the base, tokens that switch it on) is refused by the field's name; a
 * field of PEFT's that quern does not know is refused unless it is off, for it may change the numbers. Fields
 * about the making of the adapter are skipped. Immutable after reading: any thread. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_CONFIG_H
#define QN_MODEL_ADAPTER_ADAPTER_CONFIG_H

#include <quern/adapter.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/status.h"
#include "model/adapter/adapter_targets.h"
#include "model/adapter/name_pattern.h"

enum { QN_ADAPTER_PATTERNS_MAX = 4096 };

typedef struct {
    qn_name_pattern *pattern;
    double value;
} qn_adapter_pattern;

/* In the order of the file: the first that matches counts. */
typedef struct {
    qn_adapter_pattern *rows;
    size_t n;
} qn_adapter_patterns;

typedef struct {
    qn_adapter_layout layout;
    const char *file; /* for messages; borrowed */
    json_t *json;     /* the whole of it; owned */
    int64_t rank;     /* of modules that no pattern names */
    double alpha;     /* PEFT: the factor is alpha / rank, or alpha / sqrt(rank) for rsLoRA */
    double scale;     /* MLX: the factor itself */
    int rslora;
    int dora;                          /* each matrix has a vector of magnitudes, too */
    int lora_bias;                     /* PEFT: what B gives has a bias */
    int ties_weights;                  /* PEFT's ensure_weight_tying */
    qn_adapter_targets *targets;       /* PEFT; NULL: all modules. Owned */
    qn_adapter_patterns ranks, alphas; /* owned */
} qn_adapter_config;

/* Reads text[0..n). file names it in messages and must outlive *out; notes get a line for what is skipped and
 * might surprise. QN_E_FORMAT: a field is missing, of the wrong type or out of range; QN_E_UNSUPPORTED: a
 * field asks for what is not computed. Untouched on failure. */
qn_status qn_adapter_config_read(const char *file, const char *text, size_t n, qn_buf *notes,
                                 qn_adapter_config *out);
void qn_adapter_config_free(qn_adapter_config *c);

/* Rank and factor of a module ("model.layers.3.self_attn.q_proj"). QN_E_FORMAT: a rank that is no whole
 * number. */
qn_status qn_adapter_config_module(const qn_adapter_config *c, const char *module, int64_t *rank,
                                   double *factor);
/* *field: qn_adapter_targets_check. */
qn_status qn_adapter_config_check_target(const qn_adapter_config *c, const char *module, int is_linear,
                                         const char **field);
/* The ids that trainable_token_indices gives for a module, a list of whole numbers in [0, 2^31); NULL: none. is_embed 1:
 * the module is the embedding, which a list without names is for. Borrowed. */
const json_t *qn_adapter_config_tokens(const qn_adapter_config *c, const char *module, int is_embed);
/* The i-th name of PEFT's target_modules; NULL: no more, or it is no list of names. Borrowed. */
const char *qn_adapter_config_target(const qn_adapter_config *c, size_t i);
/* The same of target_parameters. */
const char *qn_adapter_config_parameter(const qn_adapter_config *c, size_t i);
/* 1: target_parameters names the parameter ("model.layers.3.mlp.experts.down_proj") or the end of its path. */
int qn_adapter_config_has_parameter(const qn_adapter_config *c, const char *parameter);

#endif
