/* What the tensors of experts are called in each kind of file, in the order in which they are looked for. '#'
 * is the layer, '@' the expert. */
#include <stddef.h>

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

const qn_expert_name qn_expert_mixtral_names[] = {
    {QN_WEIGHT_EXPERT_GATE, "layers.#.block_sparse_moe.experts.@.w1.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.block_sparse_moe.experts.@.w3.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.block_sparse_moe.experts.@.w2.weight", 0},
    {QN_WEIGHT_EXPERT_GATE, "layers.#.block_sparse_moe.switch_mlp.gate_proj.weight", 0},
    {QN_WEIGHT_EXPERT_UP, "layers.#.block_sparse_moe.switch_mlp.up_proj.weight", 0},
    {QN_WEIGHT_EXPERT_DOWN, "layers.#.block_sparse_moe.switch_mlp.down_proj.weight", 0},
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
