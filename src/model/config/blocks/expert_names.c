/* What the tensors of experts are called in each kind of file, in the order in which they are looked for. '#'
 * is the layer, '@' the expert. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/config/families.h"

enum {
    GATE_HALF = QN_EXPERTS_HALVES,
    UP_HALF = QN_EXPERTS_HALVES | QN_EXPERTS_SECOND,
    GATE_TURN = QN_EXPERTS_TURNS,
    UP_TURN = QN_EXPERTS_TURNS | QN_EXPERTS_SECOND
};

const qn_expert_name qn_expert_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.@.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.@.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.@.down_proj.weight", 0},
    /* MLX's converter stacks them */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.switch_mlp.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.switch_mlp.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.switch_mlp.down_proj.weight", 0},
    /* as transformers 5 holds them */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.gate_up_proj", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.gate_up_proj", UP_HALF},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.down_proj", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_joined_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.gate_up_proj", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.gate_up_proj", UP_HALF},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.down_proj", 0},
    /* MLX's converter takes them apart */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.switch_mlp.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.switch_mlp.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.switch_mlp.down_proj.weight", 0},
    /* as older transformers held them */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.@.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.@.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.@.down_proj.weight", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_transposed_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.gate_up_proj", GATE_HALF | QN_EXPERTS_TRANSPOSED},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.gate_up_proj", UP_HALF | QN_EXPERTS_TRANSPOSED},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.down_proj", QN_EXPERTS_TRANSPOSED},
    /* MLX's converter takes them apart */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.switch_mlp.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.switch_mlp.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.switch_mlp.down_proj.weight", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_llama4_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.feed_forward.experts.gate_up_proj", GATE_HALF | QN_EXPERTS_TRANSPOSED},
    {QN_WEIGHT_EXPERT_UP, "layers.#.feed_forward.experts.gate_up_proj", UP_HALF | QN_EXPERTS_TRANSPOSED},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.feed_forward.experts.down_proj", QN_EXPERTS_TRANSPOSED},
    /* MLX's converter takes them apart */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.feed_forward.experts.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.feed_forward.experts.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.feed_forward.experts.down_proj.weight", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_mixtral_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.block_sparse_moe.experts.@.w1.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.block_sparse_moe.experts.@.w3.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.block_sparse_moe.experts.@.w2.weight", 0},
    {QN_WEIGHT_EXPERT_GATE, "layers.#.block_sparse_moe.switch_mlp.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.block_sparse_moe.switch_mlp.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.block_sparse_moe.switch_mlp.down_proj.weight", 0},
    /* as transformers 5 holds them */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.gate_up_proj", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.gate_up_proj", UP_HALF},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.down_proj", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_granite_names[] = {
    /* MLX's converter takes them apart */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.block_sparse_moe.switch_mlp.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.block_sparse_moe.switch_mlp.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.block_sparse_moe.switch_mlp.down_proj.weight", 0},
    {QN_WEIGHT_EXPERT_GATE, "layers.#.block_sparse_moe.input_linear.weight", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "layers.#.block_sparse_moe.input_linear.weight", UP_HALF},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.block_sparse_moe.output_linear.weight", 0},
    /* as transformers 5 holds them */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.block_sparse_moe.experts.gate_up_proj", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "layers.#.block_sparse_moe.experts.gate_up_proj", UP_HALF},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.block_sparse_moe.experts.down_proj", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

/* Without a gate. */
const qn_expert_name qn_expert_nemotron_names[] = {
    {QN_WEIGHT_EXPERT_UP, "layers.#.mixer.experts.@.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mixer.experts.@.down_proj.weight", 0},
    /* MLX's converter stacks them */
    {QN_WEIGHT_EXPERT_UP, "layers.#.mixer.switch_mlp.fc1.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mixer.switch_mlp.fc2.weight", 0},
    /* as transformers 5 holds them */
    {QN_WEIGHT_EXPERT_UP, "layers.#.mixer.experts.up_proj", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mixer.experts.down_proj", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_lfm2_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.feed_forward.experts.@.w1.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.feed_forward.experts.@.w3.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.feed_forward.experts.@.w2.weight", 0},
    {QN_WEIGHT_EXPERT_GATE, "layers.#.feed_forward.switch_mlp.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.feed_forward.switch_mlp.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.feed_forward.switch_mlp.down_proj.weight", 0},
    /* as transformers 5 holds them */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.feed_forward.experts.gate_up_proj", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "layers.#.feed_forward.experts.gate_up_proj", UP_HALF},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.feed_forward.experts.down_proj", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_gpt_oss_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.gate_up_proj", GATE_TURN | QN_EXPERTS_TRANSPOSED},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.gate_up_proj", UP_TURN | QN_EXPERTS_TRANSPOSED},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.down_proj", QN_EXPERTS_TRANSPOSED},
    {QN_WEIGHT_EXPERT_GATE_BIAS, "layers.#.mlp.experts.gate_up_proj_bias", GATE_TURN},
    {QN_WEIGHT_EXPERT_UP_BIAS, "layers.#.mlp.experts.gate_up_proj_bias", UP_TURN},
    {QN_WEIGHT_EXPERT_DOWN_BIAS, "layers.#.mlp.experts.down_proj_bias", 0},
    /* as published */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.gate_up_proj_blocks", GATE_TURN | QN_EXPERTS_BLOCKS},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.gate_up_proj_blocks", UP_TURN | QN_EXPERTS_BLOCKS},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.down_proj_blocks", QN_EXPERTS_BLOCKS},
    /* MLX's converter takes them apart */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.mlp.experts.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.mlp.experts.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.mlp.experts.down_proj.weight", 0},
    {QN_WEIGHT_EXPERT_GATE_BIAS, "layers.#.mlp.experts.gate_proj.bias", 0},
    {QN_WEIGHT_EXPERT_UP_BIAS, "layers.#.mlp.experts.up_proj.bias", 0},
    {QN_WEIGHT_EXPERT_DOWN_BIAS, "layers.#.mlp.experts.down_proj.bias", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_gemma4_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.experts.gate_up_proj", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "layers.#.experts.gate_up_proj", UP_HALF},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.experts.down_proj", 0},
    /* MLX's converter takes them apart */
    {QN_WEIGHT_EXPERT_GATE, "layers.#.experts.switch_glu.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.experts.switch_glu.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.experts.switch_glu.down_proj.weight", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

const qn_expert_name qn_expert_gguf_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "blk.#.ffn_gate_exps.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "blk.#.ffn_up_exps.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "blk.#.ffn_down_exps.weight", 0},
    {QN_WEIGHT_EXPERT_GATE_BIAS, "blk.#.ffn_gate_exps.bias", 0},
    {QN_WEIGHT_EXPERT_UP_BIAS, "blk.#.ffn_up_exps.bias", 0},
    {QN_WEIGHT_EXPERT_DOWN_BIAS, "blk.#.ffn_down_exps.bias", 0},
    /* Gemma 4's */
    {QN_WEIGHT_EXPERT_GATE, "blk.#.ffn_gate_up_exps.weight", GATE_HALF},
    {QN_WEIGHT_EXPERT_UP, "blk.#.ffn_gate_up_exps.weight", UP_HALF},
    /* files of Mixtral from before 2024-04 */
    {QN_WEIGHT_EXPERT_GATE, "blk.#.ffn_gate.@.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "blk.#.ffn_up.@.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "blk.#.ffn_down.@.weight", 0},
    {QN_WEIGHT_ROLE_COUNT, NULL, 0}};

/* ---- modules ------------------------------------------------------------------------------------------ */

static const char weight_ending[] = ".weight";

/* Length of a name without ".weight"; *has_ending: whether it had it. */
static size_t module_length(const char *name, int *has_ending)
{
    const size_t n = strlen(name), m = sizeof weight_ending - 1;
    *has_ending = n > m && strcmp(name + n - m, weight_ending) == 0;
    return *has_ending ? n - m : n;
}

static int has_form(const qn_expert_name *e, qn_expert_form form)
{
    int has_ending;
    (void)module_length(e->name, &has_ending);
    if (e->role > QN_WEIGHT_EXPERT_DOWN || e->layout & QN_EXPERTS_BLOCKS) return 0;
    if (form == QN_EXPERTS_PARAMETER) return !has_ending;
    if (form == QN_EXPERTS_STACKED && e->layout & (QN_EXPERTS_HALVES | QN_EXPERTS_TURNS)) return 0;
    return has_ending && (strchr(e->name, '@') != NULL) == (form == QN_EXPERTS_EACH);
}

int qn_family_expert_module(const qn_family *family, qn_expert_form form, const char *prefix,
                            qn_weight_role role, int64_t layer, char *text, unsigned *layout)
{
    const qn_expert_name *e = family->experts ? family->experts->names : NULL;
    for (; e && e->name; e++) {
        int has_ending;
        const char *hash = strchr(e->name, '#');
        if (e->role != role || !hash || !has_form(e, form)) continue;
        const int rest = (int)(e->name + module_length(e->name, &has_ending) - (hash + 1));
        const int n = snprintf(text, QN_TENSOR_NAME_MAX, "%s%.*s%lld%.*s", prefix, (int)(hash - e->name),
                               e->name, (long long)layer, rest, hash + 1);
        if (layout) *layout = e->layout;
        return n < QN_TENSOR_NAME_MAX;
    }
    return 0;
}

/* A decimal number without needless zeros at *text, which moves behind it; -1: there is none. */
static int64_t read_number(const char **text)
{
    int64_t n = 0;
    const char *begin = *text, *at = begin;
    for (; *at >= '0' && *at <= '9' && at - begin < 18; at++) n = 10 * n + (*at - '0');
    if (at == begin || (*begin == '0' && at - begin > 1)) return -1;
    *text = at;
    return n;
}

int qn_family_expert_find(const qn_family *family, qn_expert_form form, const char *module,
                          qn_weight_role *role, int64_t *expert)
{
    const qn_expert_name *e = family->experts ? family->experts->names : NULL;
    for (; e && e->name; e++) {
        int has_ending;
        if (!has_form(e, form)) continue;
        const char *p = e->name, *end = p + module_length(p, &has_ending), *at = module;
        int64_t number = 0, found = -1;
        for (; p < end && number >= 0; p++) {
            if (*p != '#' && *p != '@') {
                if (*at++ != *p) number = -1;
                continue;
            }
            number = read_number(&at);
            if (*p == '@') found = number;
        }
        if (number < 0 || *at) continue;
        *role = e->role;
        *expert = found;
        return 1;
    }
    return 0;
}
