#include "cli/options/rope.h"

#include <stddef.h>

#define AT(field) offsetof(qn_rope_cli, field)
#define SCALINGS "own|none|linear|yarn"

const qn_arg qn_rope_args[] = {
    {"--rope-theta", 0, QN_ARG_REAL, AT(o.theta), 1e-3, 1e30, "F",
     "base of the rotary frequencies (default: the model's own)"},
    {"--rope-scaling", 0, QN_ARG_CHOICE, AT(scaling), 0, 0, SCALINGS,
     "how rotary positions are stretched for a longer context (default own: as the model's files say)"},
    {"--rope-scale", 0, QN_ARG_REAL, AT(o.factor), 1e-3, 1e6, "F",
     "factor of the stretch: with 4, positions reach 4 times as far. Without a scaling it is linear"},
    {"--rope-freq-scale", 0, QN_ARG_REAL, AT(freq_scale), 1e-6, 1e3, "F",
     "the same as --rope-scale 1/F: with 0.25, positions reach 4 times as far"},
    {"--yarn-orig-ctx", 0, QN_ARG_INT64, AT(o.yarn_original_context), 1, INT32_MAX, "N",
     "YaRN: tokens of the context before the stretch (default: the model's own)"},
    {"--yarn-ext-factor", 0, QN_ARG_RATIO, AT(ext_factor), 0, 1, "F",
     "YaRN: share of the unstretched frequencies in the blend, 0 to 1 (default 1; 0: stretch all)"},
    {"--yarn-attn-factor", 0, QN_ARG_REAL, AT(o.yarn_attention_factor), 1e-6, 1e6, "F",
     "YaRN: multiplies its own factor of attention, 0.1 ln(scale) + 1 (default 1)"},
    {"--yarn-beta-slow", 0, QN_ARG_REAL, AT(o.yarn_beta_slow), 1e-6, 1e6, "F",
     "YaRN: turns in the original context up to which frequencies are stretched (default 1)"},
    {"--yarn-beta-fast", 0, QN_ARG_REAL, AT(o.yarn_beta_fast), 1e-6, 1e6, "F",
     "YaRN: turns in the original context from which frequencies stay (default 32)"},
    {0},
};

const qn_arg_rule qn_rope_rules[] = {
    {"--rope-scale", .excludes = "--rope-freq-scale", .why = "one is 1 divided by the other"}, {0}};

qn_status qn_rope_finish(qn_rope_cli *r)
{
    static const char *const yarn[] = {"--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor",
                                       "--yarn-beta-slow", "--yarn-beta-fast"};
    qn_rope_options *o = &r->o;
    o->scaling = (qn_rope_scaling)r->scaling;
    if (r->freq_scale != 0) o->factor = 1 / r->freq_scale;
    if (r->ext_factor.given)
        o->yarn_ext_factor = r->ext_factor.value == 0 ? QN_ROPE_NO_EXTRAPOLATION : r->ext_factor.value;
    if (o->scaling == QN_ROPE_SCALING_NONE && o->factor != 0)
        return qn_fail(QN_E_ARG, "%s cannot be used with --rope-scaling none",
                       r->freq_scale != 0 ? "--rope-freq-scale" : "--rope-scale");
    const int is_given[] = {o->yarn_original_context != 0, o->yarn_ext_factor != 0,
                            o->yarn_attention_factor != 0, o->yarn_beta_slow != 0, o->yarn_beta_fast != 0};
    const int is_other = o->scaling == QN_ROPE_SCALING_NONE || o->scaling == QN_ROPE_SCALING_LINEAR;
    for (size_t i = 0; is_other && i < sizeof yarn / sizeof *yarn; i++)
        if (is_given[i]) return qn_fail(QN_E_ARG, "%s needs --rope-scaling yarn", yarn[i]);
    if (o->yarn_beta_slow != 0 && o->yarn_beta_fast != 0 && o->yarn_beta_slow >= o->yarn_beta_fast)
        return qn_fail(QN_E_ARG, "--yarn-beta-slow %.9g must be less than --yarn-beta-fast %.9g",
                       o->yarn_beta_slow, o->yarn_beta_fast);
    return QN_OK;
}

static void put_number(qn_buf *b, const char *name, double value)
{
    if (value != 0) qn_buf_printf(b, " %s %.17g", name, value);
}

void qn_rope_put(qn_buf *b, const qn_rope_options *o)
{
    static const char *const scalings[] = {"own", "none", "linear", "yarn"};
    put_number(b, "--rope-theta", o->theta);
    if (o->scaling != QN_ROPE_SCALING_OWN) qn_buf_printf(b, " --rope-scaling %s", scalings[o->scaling]);
    put_number(b, "--rope-scale", o->factor);
    put_number(b, "--yarn-orig-ctx", (double)o->yarn_original_context);
    if (o->yarn_ext_factor != 0)
        qn_buf_printf(b, " --yarn-ext-factor %.17g", o->yarn_ext_factor < 0 ? 0 : o->yarn_ext_factor);
    put_number(b, "--yarn-attn-factor", o->yarn_attention_factor);
    put_number(b, "--yarn-beta-slow", o->yarn_beta_slow);
    put_number(b, "--yarn-beta-fast", o->yarn_beta_fast);
}
