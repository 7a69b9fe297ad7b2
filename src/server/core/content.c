#include "server/core/content.h"

#include <string.h>
#include <strings.h>

#include "base/bytes/base64.h"
#include "base/mem.h"
#include "media/picture.h"
#include "server/core/message.h"

/* ---- texts --------------------------------------------------------------------------------------------- */

void qn_content_add_text(qn_content *c, const char *text, size_t n)
{
    if (c->n_texts++) qn_buf_putc(&c->text, '\n');
    qn_buf_append(&c->text, text, n);
}

/* The text since the last picture becomes a part. */
static void end_text(qn_content *c)
{
    json_t *part = NULL;
    if (!c->parts && !(c->parts = json_array())) c->has_failed = 1;
    if (c->n_texts) {
        part = json_object();
        c->has_failed |= qn_message_set(part, "type", json_string("text")) != 0;
        c->has_failed |= qn_message_set(part, "text", qn_message_text(c->text.data, c->text.length)) != 0;
        c->has_failed |= json_array_append_new(c->parts, part) != 0;
    }
    c->has_failed |= c->text.status != QN_OK;
    qn_buf_free(&c->text);
    c->n_texts = 0;
}

json_t *qn_content_take(qn_content *c)
{
    json_t *made = NULL;
    if (c->parts) {
        end_text(c);
        if (!c->has_failed) made = json_incref(c->parts);
    } else if (c->text.status == QN_OK) {
        made = qn_message_text(c->text.data, c->text.length);
    }
    qn_content_free(c);
    return made;
}

void qn_content_free(qn_content *c)
{
    qn_buf_free(&c->text);
    json_decref(c->parts);
    *c = (qn_content){0};
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

int qn_content_refuse_picture(const char *param, qn_api_error *error)
{
    return qn_api_fail(error, 400, "unsupported_content", param,
                       "%s: images are not supported: the model takes only text", param);
}

/* Takes the pixels over, also if it fails. */
static qn_status keep_picture(qn_api_request *r, qn_picture *picture)
{
    if (r->n_pictures % 8 == 0) {
        qn_image *pictures = qn_realloc(r->pictures, (r->n_pictures + 8) * sizeof *pictures);
        if (!pictures) {
            qn_picture_free(picture);
            return qn_fail_nomem((r->n_pictures + 8) * sizeof *pictures);
        }
        r->pictures = pictures;
    }
    r->pictures[r->n_pictures++] = (qn_image){picture->rgb, picture->width, picture->height, 0};
    r->n_pixels += picture->width * picture->height;
    return QN_OK;
}

static int fail_picture(const char *param, qn_status status, qn_api_error *error)
{
    char why[512];
    if (status == QN_E_NOMEM) return qn_api_fail_status(error, status);
    snprintf(why, sizeof why, "%s", qn_last_error());
    return qn_api_fail(error, 400, "invalid_image", param, "%s: %s", param, why);
}

static int add_picture(qn_content *c, qn_api_request *r, const char *param, const char *text, size_t n,
                       qn_api_error *error)
{
    qn_picture_limits limits = {.max_pixels = QN_REQUEST_PIXELS_MAX - r->n_pixels};
    qn_picture picture = {0};
    qn_buf file = {0};
    json_t *part;
    if (!r->takes_pictures) return qn_content_refuse_picture(param, error);
    if (r->n_pictures == QN_REQUEST_PICTURES_MAX || limits.max_pixels < 1)
        return qn_api_fail(error, 400, "invalid_value", param,
                           "%s: a request may have at most %d images of %lld pixels in all", param,
                           (int)QN_REQUEST_PICTURES_MAX, (long long)QN_REQUEST_PIXELS_MAX);
    qn_status status = qn_base64_decode(text, n, &file);
    if (status == QN_OK)
        status = qn_picture_decode(file.data ? file.data : "", file.length, &limits, &picture);
    if (status == QN_OK) status = keep_picture(r, &picture);
    qn_buf_free(&file);
    if (status != QN_OK) return fail_picture(param, status, error);
    const qn_image *last = &r->pictures[r->n_pictures - 1];
    const int refused = qn_api_request_hold(r, (size_t)(3 * last->width * last->height), error);
    if (refused) return refused;
    end_text(c);
    part = json_object();
    c->has_failed |= qn_message_set(part, "type", json_string("image")) != 0;
    c->has_failed |= json_array_append_new(c->parts, part) != 0;
    return 0;
}

int qn_content_add_base64(qn_content *c, qn_api_request *r, const char *param, const json_t *data,
                          qn_api_error *error)
{
    if (!json_is_string(data))
        return qn_api_fail(error, 400, "invalid_value", param, "%s must be an image in base64", param);
    return add_picture(c, r, param, json_string_value(data), json_string_length(data), error);
}

int qn_content_add_url(qn_content *c, qn_api_request *r, const char *param, const json_t *url,
                       qn_api_error *error)
{
    static const char mark[] = ";base64,";
    const char *text = json_string_value(url), *comma;
    if (!text) return qn_api_fail(error, 400, "invalid_value", param, "%s must be a data URL", param);
    if (strncasecmp(text, "data:", 5) != 0)
        return qn_api_fail(
            error, 400, "unsupported_content", param,
            "%s: the server fetches nothing; send the image as a data URL, data:image/png;base64,...", param);
    comma = strchr(text, ',');
    if (!comma || comma - text < (long)sizeof mark - 2 ||
        strncasecmp(comma + 1 - (sizeof mark - 1), mark, sizeof mark - 1) != 0)
        return qn_api_fail(error, 400, "invalid_image", param,
                           "%s: a data URL must have ;base64, and the image", param);
    return add_picture(c, r, param, comma + 1, json_string_length(url) - (size_t)(comma + 1 - text), error);
}

void qn_content_free_pictures(qn_api_request *r)
{
    for (size_t i = 0; i < r->n_pictures; i++) qn_free((void *)r->pictures[i].rgb);
    qn_free(r->pictures);
    r->pictures = NULL;
    r->n_pictures = 0;
}
