#include "model/config/blocks/image_config.h"

#include <string.h>

#include "quant/types.h"

static const int64_t pixels_max = (int64_t)1 << 26;
static const int64_t tokens_max = (int64_t)1 << 20;

/* ---- classes ------------------------------------------------------------------------------------------ */

/* Means and deviations that published models share. */
typedef enum { CLIP, HALF, IMAGENET, NONE } statistics;

/* What transformers' class of this name does, and takes absent fields for. */
typedef struct {
    const char *name;
    statistics statistics;
    qn_image_processor p;
} image_class;

static const image_class classes[] = {
    {"Qwen2VLImageProcessor",
     CLIP,
     {.rule = QN_IMAGE_ROUNDED,
      .order = QN_IMAGE_MERGED,
      .filter = QN_IMAGE_BICUBIC,
      .min_pixels = 56 * 56,
      .max_pixels = 28 * 28 * 1280}},
    {"Glm5NextImageProcessor",
     CLIP,
     {.rule = QN_IMAGE_PADDED,
      .order = QN_IMAGE_MERGED,
      .filter = QN_IMAGE_BICUBIC,
      .min_tokens = 16,
      .max_tokens = 8000}},
    {"MuseGlimmerImageProcessor",
     HALF,
     {.rule = QN_IMAGE_CLOSEST,
      .order = QN_IMAGE_TIMES,
      .filter = QN_IMAGE_LANCZOS,
      .prompt = QN_IMAGE_PROMPT_ENCLOSED,
      .max_tokens = 4096}},
    {"Gemma3ImageProcessor",
     HALF,
     {.rule = QN_IMAGE_FIXED,
      .order = QN_IMAGE_PLANES,
      .filter = QN_IMAGE_BILINEAR,
      .prompt = QN_IMAGE_PROMPT_PARAGRAPH,
      .width = 224,
      .height = 224}},
    {"Gemma4ImageProcessor",
     NONE,
     {.rule = QN_IMAGE_BUDGET,
      .order = QN_IMAGE_PIXELS,
      .filter = QN_IMAGE_BICUBIC,
      .prompt = QN_IMAGE_PROMPT_ENCLOSED,
      .max_tokens = 280}},
    {"Gemma4UnifiedImageProcessor",
     NONE,
     {.rule = QN_IMAGE_BUDGET,
      .order = QN_IMAGE_PIXELS,
      .filter = QN_IMAGE_BICUBIC,
      .prompt = QN_IMAGE_PROMPT_ENCLOSED,
      .joins_patches = 1,
      .max_tokens = 280}},
    {"PixtralImageProcessor",
     CLIP,
     {.rule = QN_IMAGE_LONGEST,
      .order = QN_IMAGE_PLANES,
      .filter = QN_IMAGE_BICUBIC,
      .prompt = QN_IMAGE_PROMPT_ROWS,
      .width = 1024,
      .height = 1024}},
    {"Idefics3ImageProcessor",
     HALF,
     {.rule = QN_IMAGE_GRID,
      .order = QN_IMAGE_PLANES,
      .filter = QN_IMAGE_LANCZOS,
      .prompt = QN_IMAGE_PROMPT_TILES,
      .width = 364,
      .height = 364,
      .longest_edge = 4 * 364,
      .do_split = 1}},
    {"GotOcr2ImageProcessor",
     CLIP,
     {.rule = QN_IMAGE_ASPECT,
      .order = QN_IMAGE_PLANES,
      .filter = QN_IMAGE_BICUBIC,
      .prompt = QN_IMAGE_PROMPT_ENCLOSED,
      .width = 384,
      .height = 384,
      .do_split = 1,
      .min_tiles = 1,
      .max_tiles = 12,
      .has_thumbnail = 1}},
    {"Llama4ImageProcessor",
     HALF,
     {.rule = QN_IMAGE_CANVAS,
      .order = QN_IMAGE_PLANES,
      .filter = QN_IMAGE_BILINEAR,
      .prompt = QN_IMAGE_PROMPT_GRID,
      .rounds_values = 1,
      .width = 336,
      .height = 336,
      .do_split = 1,
      .max_tiles = 16,
      .has_thumbnail = 1}},
    {"Lfm2VlImageProcessor",
     HALF,
     {.rule = QN_IMAGE_LARGE,
      .order = QN_IMAGE_PIXELS,
      .filter = QN_IMAGE_BILINEAR,
      .prompt = QN_IMAGE_PROMPT_MARKED,
      .width = 512,
      .height = 512,
      .do_split = 1,
      .min_tiles = 2,
      .max_tiles = 10,
      .has_thumbnail = 1,
      .min_tokens = 64,
      .max_tokens = 256,
      .tolerance = 2}},
};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };

/* Other names of the same: of models, whose files may name no class, and of classes. */
static const struct {
    const char *name, *of;
} names[] = {
    {"qwen2_vl", "Qwen2VLImageProcessor"},
    {"qwen2_5_vl", "Qwen2VLImageProcessor"},
    {"qwen3_vl", "Qwen2VLImageProcessor"},
    {"qwen3_vl_moe", "Qwen2VLImageProcessor"},
    {"qwen3_5", "Qwen2VLImageProcessor"},
    {"qwen3_5_moe", "Qwen2VLImageProcessor"},
    {"qwen4_exp", "Qwen2VLImageProcessor"},
    {"glm5_next", "Glm5NextImageProcessor"},
    {"muse_glimmer", "MuseGlimmerImageProcessor"},
    {"gemma3", "Gemma3ImageProcessor"},
    {"gemma4", "Gemma4ImageProcessor"},
    {"gemma4_unified", "Gemma4UnifiedImageProcessor"},
    {"mistral3", "PixtralImageProcessor"},
    {"pixtral", "PixtralImageProcessor"},
    {"llava", "PixtralImageProcessor"},
    {"idefics3", "Idefics3ImageProcessor"},
    {"smolvlm", "Idefics3ImageProcessor"},
    {"internvl", "GotOcr2ImageProcessor"},
    {"llama4", "Llama4ImageProcessor"},
    {"lfm2_vl", "Lfm2VlImageProcessor"},
    {"Qwen2_5_VLImageProcessor", "Qwen2VLImageProcessor"},
    {"Qwen3VLImageProcessor", "Qwen2VLImageProcessor"},
    {"SmolVLMImageProcessor", "Idefics3ImageProcessor"},
    {"InternVLImageProcessor", "GotOcr2ImageProcessor"},
};

static const image_class *class_named(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncmp(names[i].name, name, n) == 0 && !names[i].name[n])
            return class_named(names[i].of, strlen(names[i].of));
    for (int i = 0; i < N_CLASSES; i++)
        if (strncmp(classes[i].name, name, n) == 0 && !classes[i].name[n]) return &classes[i];
    return NULL;
}

/* The file's own class, else the model's. "Fast" classes compute the same. */
static qn_status find_class(const qn_fields *f, const char *model_type, const image_class **out)
{
    static const char fast[] = "Fast";
    const char *name = NULL;
    if (f->object) QN_TRY(qn_fields_string(f, "image_processor_type", &name, NULL));
    size_t n = strlen(name ? name : model_type), n_fast = strlen(fast);
    if (name && n > n_fast && strcmp(name + n - n_fast, fast) == 0) n -= n_fast;
    *out = class_named(name ? name : model_type, n);
    if (*out) return QN_OK;
    if (name)
        return qn_fail(QN_E_UNSUPPORTED, "%s: image_processor_type is \"%.60s\", which is not supported",
                       f->file, name);
    return qn_fail(QN_E_UNSUPPORTED,
                   "the images of models of the type %.60s are not supported: no preprocessor_config.json "
                   "names an image_processor_type",
                   model_type);
}

/* ---- files -------------------------------------------------------------------------------------------- */

/* The object that describes the processor; object NULL where no file does. *owned: json_decref. */
static qn_status open_fields(qn_source *src, json_t **owned, qn_fields *f)
{
    static const qn_side_file files[] = {QN_SIDE_PREPROCESSOR_CONFIG, QN_SIDE_PROCESSOR_CONFIG};
    for (int i = 0; i < 2; i++) {
        const char *text, *path = qn_source_side_path(src, files[i]);
        size_t n;
        if (!path) continue;
        json_decref(*owned);
        *owned = NULL;
        QN_TRY(qn_source_side_text(src, files[i], &text, &n));
        QN_TRY(qn_json_parse_python(path, text, n, owned));
        if (!json_is_object(*owned)) return qn_fail(QN_E_FORMAT, "%s: expected a JSON object", path);
        qn_fields whole = {.file = path, .object = *owned, .path = ""};
        int found = 1;
        *f = whole;
        if (files[i] == QN_SIDE_PROCESSOR_CONFIG)
            QN_TRY(qn_fields_object(&whole, "image_processor", "image_processor.", f, &found));
        if (found) return QN_OK;
        *f = (qn_fields){.path = ""};
    }
    return QN_OK;
}

/* The file's own spelling of a size that the tower has, too; times: or that multiple of it. */
static qn_status check_size(const qn_fields *f, const char *name, int64_t own, int64_t times)
{
    int64_t said = own;
    const json_t *value = qn_fields_get(f, name);
    qn_fields sides = *f;
    if (json_is_object(value)) {
        QN_TRY(qn_fields_object(f, name, "patch_size.", &sides, NULL));
        name = "height";
    }
    QN_TRY(qn_fields_int(&sides, name, 1, QN_IMAGE_SIDE_MAX, &said, NULL));
    if (said == own || said == own * times) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s%s is %lld, but the vision tower has %lld (vision_config)", f->file,
                   sides.path, name, (long long)said, (long long)own);
}

static qn_status check_sizes(const qn_fields *f, const qn_image_processor *p)
{
    QN_TRY(check_size(f, "patch_size", p->patch_size, p->rule == QN_IMAGE_LONGEST ? p->merge_size : 1));
    QN_TRY(check_size(f, "encoder_patch_size", p->patch_size, 1));
    QN_TRY(check_size(f, "merge_size", p->merge_size, 1));
    QN_TRY(check_size(f, "pooling_kernel_size", p->merge_size, 1));
    QN_TRY(check_size(f, "downsample_factor", p->merge_size, 1));
    if (p->temporal_patch_size > 1) QN_TRY(check_size(f, "temporal_patch_size", p->temporal_patch_size, 1));
    return QN_OK;
}

/* Older files say min_pixels and max_pixels, newer ones size.shortest_edge and size.longest_edge of the same.
 */
static qn_status read_pixels(const qn_fields *f, qn_image_processor *p)
{
    qn_fields size;
    int found = 0;
    QN_TRY(qn_fields_object(f, "size", "size.", &size, &found));
    if (found) {
        QN_TRY(qn_fields_int(&size, "shortest_edge", 1, pixels_max, &p->min_pixels, NULL));
        QN_TRY(qn_fields_int(&size, "longest_edge", 1, pixels_max, &p->max_pixels, NULL));
    }
    QN_TRY(qn_fields_int(f, "min_pixels", 1, pixels_max, &p->min_pixels, NULL));
    QN_TRY(qn_fields_int(f, "max_pixels", 1, pixels_max, &p->max_pixels, NULL));
    if (p->min_pixels <= p->max_pixels) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: min_pixels is %lld, more than max_pixels %lld", f->file,
                   (long long)p->min_pixels, (long long)p->max_pixels);
}

/* {"height": .., "width": ..}, or one number for both. */
static qn_status read_sides(const qn_fields *f, qn_image_processor *p)
{
    qn_fields size;
    int found = 0;
    if (json_is_integer(qn_fields_get(f, "size"))) {
        QN_TRY(qn_fields_int(f, "size", 1, QN_IMAGE_SIDE_MAX, &p->width, NULL));
        p->height = p->width;
        return QN_OK;
    }
    QN_TRY(qn_fields_object(f, "size", "size.", &size, &found));
    if (!found) return QN_OK;
    if (p->rule == QN_IMAGE_LONGEST) {
        QN_TRY(qn_fields_int(&size, "longest_edge", 1, QN_IMAGE_SIDE_MAX, &p->width, &found));
        if (found) p->height = p->width;
        if (found) return QN_OK;
    }
    QN_TRY(qn_fields_required_int(&size, "height", 1, QN_IMAGE_SIDE_MAX, &p->height));
    return qn_fields_required_int(&size, "width", 1, QN_IMAGE_SIDE_MAX, &p->width);
}

/* The picture's longest edge, and a tile's. */
static qn_status read_grid(const qn_fields *f, qn_image_processor *p)
{
    qn_fields size;
    int found = 0;
    QN_TRY(qn_fields_object(f, "size", "size.", &size, &found));
    if (found) QN_TRY(qn_fields_required_int(&size, "longest_edge", 1, QN_IMAGE_SIDE_MAX, &p->longest_edge));
    if (!p->do_resize) p->longest_edge = 0;
    QN_TRY(qn_fields_bool(f, "do_image_splitting", &p->do_split, NULL));
    QN_TRY(qn_fields_object(f, "max_image_size", "max_image_size.", &size, &found));
    if (found) QN_TRY(qn_fields_required_int(&size, "longest_edge", 1, QN_IMAGE_SIDE_MAX, &p->width));
    p->height = p->width;
    return QN_OK;
}

static qn_status read_tiles(const qn_fields *f, const char *least, const char *most, qn_image_processor *p)
{
    if (least) QN_TRY(qn_fields_int(f, least, 1, QN_IMAGE_TILES_MAX, &p->min_tiles, NULL));
    QN_TRY(qn_fields_int(f, most, 1, QN_IMAGE_TILES_MAX, &p->max_tiles, NULL));
    if (!least || p->min_tiles <= p->max_tiles) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, more than %s %lld", f->file, least, (long long)p->min_tiles,
                   most, (long long)p->max_tiles);
}

static qn_status read_tokens(const qn_fields *f, const char *least, const char *most, qn_image_processor *p)
{
    if (least) QN_TRY(qn_fields_int(f, least, 1, tokens_max, &p->min_tokens, NULL));
    QN_TRY(qn_fields_int(f, most, 1, tokens_max, &p->max_tokens, NULL));
    if (!least || p->min_tokens <= p->max_tokens) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, more than %s %lld", f->file, least, (long long)p->min_tokens,
                   most, (long long)p->max_tokens);
}

static qn_status read_large(const qn_fields *f, qn_image_processor *p)
{
    QN_TRY(qn_fields_int(f, "tile_size", 1, QN_IMAGE_SIDE_MAX, &p->width, NULL));
    p->height = p->width;
    QN_TRY(qn_fields_bool(f, "do_image_splitting", &p->do_split, NULL));
    QN_TRY(qn_fields_bool(f, "use_thumbnail", &p->has_thumbnail, NULL));
    QN_TRY(qn_fields_number(f, "max_pixels_tolerance", 0, 1e6, &p->tolerance, NULL));
    QN_TRY(read_tiles(f, "min_tiles", "max_tiles", p));
    if (p->max_tiles == 1) p->do_split = 0;
    return read_tokens(f, "min_image_tokens", "max_image_tokens", p);
}

/* Only the one value is known. */
static qn_status check_off(const qn_fields *f, const char *name)
{
    int on = 0;
    QN_TRY(qn_fields_bool(f, name, &on, NULL));
    if (!on) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s is true, which is not supported (known: false)", f->file, name);
}

/* What the rule asks for. */
static qn_status read_rule(const qn_fields *f, qn_image_processor *p)
{
    int64_t factor = 1;
    switch (p->rule) {
    case QN_IMAGE_ROUNDED:
        return read_pixels(f, p);
    case QN_IMAGE_PADDED:
        QN_TRY(qn_fields_int(f, "patch_expand_factor", 1, 64, &factor, NULL));
        if (factor != 1)
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: patch_expand_factor is %lld, which is not supported (known: 1)", f->file,
                           (long long)factor);
        return read_tokens(f, "min_image_tokens", "max_image_tokens", p);
    case QN_IMAGE_CLOSEST:
        return read_tokens(f, NULL, "max_image_tokens", p);
    case QN_IMAGE_BUDGET:
        return read_tokens(f, NULL, "max_soft_tokens", p);
    case QN_IMAGE_LONGEST:
        QN_TRY(check_off(f, "do_center_crop"));
        return read_sides(f, p);
    case QN_IMAGE_FIXED:
        QN_TRY(check_off(f, "do_pan_and_scan"));
        return read_sides(f, p);
    case QN_IMAGE_GRID:
        return read_grid(f, p);
    case QN_IMAGE_ASPECT:
        QN_TRY(read_tiles(f, "min_patches", "max_patches", p));
        return read_sides(f, p);
    case QN_IMAGE_CANVAS:
        QN_TRY(qn_fields_bool(f, "resize_to_max_canvas", &p->fills_canvas, NULL));
        QN_TRY(read_tiles(f, NULL, "max_patches", p));
        QN_TRY(read_sides(f, p));
        if (p->width == p->height) return QN_OK;
        return qn_fail(QN_E_FORMAT, "%s: size is %lld x %lld, but a tile must be square", f->file,
                       (long long)p->width, (long long)p->height);
    default:
        return read_large(f, p);
    }
}

/* Pillow's numbers of filters. */
static qn_status read_filter(const qn_fields *f, qn_image_processor *p)
{
    static const struct {
        int number;
        qn_image_filter filter;
    } filters[] = {{1, QN_IMAGE_LANCZOS}, {2, QN_IMAGE_BILINEAR}, {3, QN_IMAGE_BICUBIC}};
    double number = 0;
    int found = 0;
    QN_TRY(qn_fields_number(f, "resample", 0, 100, &number, &found));
    if (!found) return QN_OK;
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
        if (filters[i].number == number) {
            p->filter = filters[i].filter;
            return QN_OK;
        }
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: resample is %g, which is not supported (known: 1, lanczos; 2, bilinear; 3, bicubic)",
                   f->file, number);
}

/* ---- values ------------------------------------------------------------------------------------------- */

/* One number for all channels, or one for each. */
static qn_status read_channels(const qn_fields *f, const char *name, double min, const double *otherwise,
                               double out[QN_IMAGE_CHANNELS])
{
    const json_t *value = f->object ? qn_fields_get(f, name) : NULL;
    memcpy(out, otherwise, QN_IMAGE_CHANNELS * sizeof *out);
    if (!value || json_is_null(value)) return QN_OK;
    if (json_is_array(value) && json_array_size(value) != QN_IMAGE_CHANNELS)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected %d numbers", f->file, name, (int)QN_IMAGE_CHANNELS);
    for (int c = 0; c < QN_IMAGE_CHANNELS; c++) {
        const json_t *one = json_is_array(value) ? json_array_get(value, (size_t)c) : value;
        if (!json_is_number(one) || !(json_number_value(one) >= min && json_number_value(one) <= 1e6))
            return qn_fail(QN_E_FORMAT, "%s: %s: expected numbers from %g to 1e6", f->file, name, min);
        out[c] = json_number_value(one);
    }
    return QN_OK;
}

/* To bfloat16 and back. */
static float rounded(float v)
{
    return qn_bf16_to_f32(qn_f32_to_bf16(v));
}

/* In float32 and in the order of the reference, so that values are the same to the bit. */
static float value_of(const qn_image_processor *p, int byte, double mean, double std, const double *rescale,
                      int do_normalize)
{
    const float v = (float)byte;
    if (!do_normalize) return rescale ? v * (float)*rescale : v;
    if (!rescale) return (v - (float)mean) / (float)std;
    if (p->rounds_values)
        return rounded(rounded(rounded(v * (float)*rescale) - rounded((float)mean)) / rounded((float)std));
    const float inverse = (float)(1.0 / *rescale);
    return (v - (float)mean * inverse) / ((float)std * inverse);
}

static qn_status read_values(const qn_fields *f, statistics which, qn_image_processor *p)
{
    static const double means[][QN_IMAGE_CHANNELS] = {
        [CLIP] = {0.48145466, 0.4578275, 0.40821073},
        [HALF] = {0.5, 0.5, 0.5},
        [IMAGENET] = {0.485, 0.456, 0.406},
        [NONE] = {0, 0, 0},
    };
    static const double deviations[][QN_IMAGE_CHANNELS] = {
        [CLIP] = {0.26862954, 0.26130258, 0.27577711},
        [HALF] = {0.5, 0.5, 0.5},
        [IMAGENET] = {0.229, 0.224, 0.225},
        [NONE] = {1, 1, 1},
    };
    double mean[QN_IMAGE_CHANNELS], std[QN_IMAGE_CHANNELS], rescale = 1.0 / 255;
    int do_rescale = 1, do_normalize = which != NONE;
    if (f->object) {
        QN_TRY(qn_fields_bool(f, "do_rescale", &do_rescale, NULL));
        QN_TRY(qn_fields_bool(f, "do_normalize", &do_normalize, NULL));
        QN_TRY(qn_fields_number(f, "rescale_factor", 1e-9, 1e6, &rescale, NULL));
    }
    QN_TRY(read_channels(f, "image_mean", -1e6, means[which], mean));
    QN_TRY(read_channels(f, "image_std", 1e-6, deviations[which], std));
    for (int c = 0; c < QN_IMAGE_CHANNELS; c++)
        for (int i = 0; i < 256; i++)
            p->value[c][i] = value_of(p, i, mean[c], std[c], do_rescale ? &rescale : NULL, do_normalize);
    return QN_OK;
}

/* ---- all ---------------------------------------------------------------------------------------------- */

static qn_status read_all(const qn_fields *f, const qn_image_tower *tower, qn_image_processor *p)
{
    const image_class *class;
    QN_TRY(find_class(f, tower->model_type, &class));
    *p = class->p;
    p->patch_size = tower->patch_size;
    p->merge_size = tower->merge_size;
    p->temporal_patch_size = tower->temporal_patch_size;
    p->do_resize = 1;
    if (f->object) {
        QN_TRY(check_sizes(f, p));
        QN_TRY(qn_fields_bool(f, "do_resize", &p->do_resize, NULL));
        QN_TRY(read_rule(f, p));
        QN_TRY(read_filter(f, p));
    }
    QN_TRY(read_values(f, class->statistics, p));
    if (!p->joins_patches) return QN_OK;
    p->patch_size *= p->merge_size;
    p->merge_size = 1;
    return QN_OK;
}

int qn_image_prompt_is_spread(qn_image_prompt_form form)
{
    return form == QN_IMAGE_PROMPT_ROWS || form == QN_IMAGE_PROMPT_TILES || form == QN_IMAGE_PROMPT_GRID ||
           form == QN_IMAGE_PROMPT_MARKED;
}

qn_status qn_image_processor_read(qn_source *src, const qn_image_tower *tower, const qn_fields *otherwise,
                                  qn_image_processor *out)
{
    json_t *owned = NULL;
    qn_fields f = {.path = ""};
    qn_image_processor p;
    qn_status status = open_fields(src, &owned, &f);
    if (!f.object && otherwise) f = *otherwise;
    if (status == QN_OK) status = read_all(&f, tower, &p);
    if (status == QN_OK) *out = p;
    json_decref(owned);
    return status;
}
