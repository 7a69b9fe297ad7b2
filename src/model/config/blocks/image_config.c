#include "model/config/blocks/image_config.h"

#include "model/config/fields.h"

static const int64_t pixels_max = (int64_t)1 << 26;
static const double resample_bicubic = 3;

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

/* own: as vision_config.field of config.json has it. */
static qn_status check_size(const qn_fields *f, const char *name, const char *field, int64_t own)
{
    int64_t said = own;
    QN_TRY(qn_fields_int(f, name, 1, QN_IMAGE_SIDE_MAX, &said, NULL));
    if (said == own) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s is %lld, but the vision tower has %lld (vision_config.%s)", f->file,
                   name, (long long)said, (long long)own, field);
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

/* One number for all channels, or one for each. */
static qn_status read_channels(const qn_fields *f, const char *name, double min,
                               double out[QN_IMAGE_CHANNELS])
{
    const json_t *value = qn_fields_get(f, name);
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

static qn_status read_values(const qn_fields *f, qn_image_processor *p)
{
    /* Of CLIP's pictures. */
    double mean[] = {0.48145466, 0.4578275, 0.40821073}, std[] = {0.26862954, 0.26130258, 0.27577711};
    double rescale = 1.0 / 255;
    int do_rescale = 1, do_normalize = 1;
    if (f->object) {
        QN_TRY(qn_fields_bool(f, "do_rescale", &do_rescale, NULL));
        QN_TRY(qn_fields_bool(f, "do_normalize", &do_normalize, NULL));
        QN_TRY(qn_fields_number(f, "rescale_factor", 1e-9, 1e6, &rescale, NULL));
        QN_TRY(read_channels(f, "image_mean", -1e6, mean));
        QN_TRY(read_channels(f, "image_std", 1e-6, std));
    }
    for (int c = 0; c < QN_IMAGE_CHANNELS; c++) {
        double factor = do_rescale ? rescale : 1;
        p->factor[c] = (float)(do_normalize ? factor / std[c] : factor);
        p->offset[c] = (float)(do_normalize ? -mean[c] / std[c] : 0);
    }
    return QN_OK;
}

static qn_status read_all(const qn_fields *f, qn_image_processor *p)
{
    double resample = resample_bicubic;
    if (f->object) {
        QN_TRY(check_size(f, "patch_size", "patch_size", p->patch_size));
        QN_TRY(check_size(f, "merge_size", "spatial_merge_size", p->merge_size));
        QN_TRY(check_size(f, "temporal_patch_size", "temporal_patch_size", p->temporal_patch_size));
        QN_TRY(read_pixels(f, p));
        QN_TRY(qn_fields_bool(f, "do_resize", &p->do_resize, NULL));
        QN_TRY(qn_fields_number(f, "resample", 0, 100, &resample, NULL));
        if (resample != resample_bicubic)
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: resample is %g, which is not supported (known: %g, bicubic)", f->file,
                           resample, resample_bicubic);
    }
    return read_values(f, p);
}

qn_status qn_image_processor_read(qn_source *src, int64_t patch_size, int64_t merge_size,
                                  int64_t temporal_patch_size, qn_image_processor *out)
{
    json_t *owned = NULL;
    qn_fields f = {.path = ""};
    qn_image_processor p = {.patch_size = patch_size,
                            .merge_size = merge_size,
                            .temporal_patch_size = temporal_patch_size,
                            .min_pixels = 56 * 56,
                            .max_pixels = 28 * 28 * 1280,
                            .do_resize = 1};
    qn_status status = open_fields(src, &owned, &f);
    if (status == QN_OK) status = read_all(&f, &p);
    if (status == QN_OK) *out = p;
    json_decref(owned);
    return status;
}
