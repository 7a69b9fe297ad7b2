#include "engine/machine/images.h"

#include <string.h>

#include "base/bytes/digest.h"
#include "base/checked.h"
#include "base/mem.h"

typedef struct {
    qn_image_plan plan;
    int64_t first, n_tokens; /* index of its first token; the others follow, be it with text between them */
    int64_t end;             /* index behind the last one */
    uint8_t *rgb;            /* the views, resized */
    float *vectors;          /* [n_tokens, width] */
    int is_seen;             /* they are computed */
} placed_image;

struct qn_images {
    int64_t n, width;     /* width: floats of a vector */
    int is_whole;         /* tokens of a picture see those behind them */
    int is_spread;        /* the prompt has marks between the tokens of a picture */
    placed_image *images; /* [n], in the order of their places */
    int32_t *ids;         /* [n_ids] */
    int32_t *vector;      /* [n_ids]: of each image token how many vectors stand before its own; -1: text */
    int64_t n_ids;
    qn_tree_content *contents; /* [n_contents], by qn_images_identify; NULL: not computed */
    int64_t n_contents;
};

/* ---- places ------------------------------------------------------------------------------------------- */

/* Image tokens in a row from ids[i] on. */
static int64_t run_at(const int32_t *ids, int64_t n_ids, int64_t i, int32_t token)
{
    int64_t n = 0;
    while (i + n < n_ids && ids[i + n] == token) n++;
    return n;
}

/* Pictures whose tokens have marks between them: the prompt must have them all. */
static qn_status check_spread(const qn_images *im, const int32_t *ids, int64_t n_ids, int32_t token)
{
    int64_t wanted = 0, n = 0;
    for (int64_t i = 0; i < im->n; i++) wanted += im->images[i].n_tokens;
    for (int64_t i = 0; i < n_ids; i++) n += ids[i] == token;
    if (n == wanted) return QN_OK;
    return qn_fail(QN_E_ARG, "%lld image(s) have %lld tokens, but the prompt has %lld image tokens",
                   (long long)im->n, (long long)wanted, (long long)n);
}

static qn_status check_places(const qn_images *im, const int32_t *ids, int64_t n_ids, int32_t token)
{
    int64_t places = 0;
    if (im->is_spread) return check_spread(im, ids, n_ids, token);
    for (int64_t i = 0; i < n_ids; i++) {
        int64_t run = run_at(ids, n_ids, i, token);
        places += run > 0;
        if (run > 1 && places <= im->n && run != im->images[places - 1].n_tokens)
            return qn_fail(QN_E_ARG,
                           "image %lld has %lld tokens (%lld rows of %lld), but the prompt has %lld image "
                           "tokens in its place",
                           (long long)places, (long long)im->images[places - 1].n_tokens,
                           (long long)im->images[places - 1].plan.tile.token_rows,
                           (long long)im->images[places - 1].plan.tile.token_columns, (long long)run);
        if (run) i += run - 1;
    }
    if (places == im->n) return QN_OK;
    return qn_fail(QN_E_ARG, "%lld image(s) were given, but the prompt has places for %lld", (long long)im->n,
                   (long long)places);
}

/* Places each image and writes the prompt with all its tokens. */
static qn_status expand(qn_images *im, const int32_t *ids, int64_t n_ids, int32_t token)
{
    int64_t k = -1, at = 0, left = 0; /* left: tokens of image k that were not written yet */
    int32_t n_vectors = 0;
    im->ids = qn_alloc_array((size_t)im->n_ids, sizeof *im->ids);
    im->vector = qn_alloc_array((size_t)im->n_ids, sizeof *im->vector);
    if (!im->ids || !im->vector) return QN_E_NOMEM;
    for (int64_t i = 0; i < n_ids; i++) {
        const int64_t run = run_at(ids, n_ids, i, token);
        if (!run) {
            im->vector[at] = -1;
            im->ids[at++] = ids[i];
            continue;
        }
        if (!left) {
            left = im->images[++k].n_tokens;
            im->images[k].first = at;
        }
        /* A picture that has no marks is written as a whole, be it one token in the prompt. */
        const int64_t n = im->is_spread && run < left ? run : left;
        for (int64_t j = 0; j < n; j++) {
            im->vector[at] = n_vectors++;
            im->ids[at++] = token;
        }
        left -= n;
        im->images[k].end = at;
        i += (im->is_spread ? n : run) - 1;
    }
    return QN_OK;
}

/* ---- making ------------------------------------------------------------------------------------------- */

static qn_status measure(qn_images *im, const qn_vision_config *v, const qn_image *images)
{
    for (int64_t i = 0; i < im->n; i++) {
        placed_image *own = &im->images[i];
        qn_status status = qn_image_plan_of(&v->processor, images[i].width, images[i].height, &own->plan);
        if (status != QN_OK) return qn_fail_prefix(status, "image %lld", (long long)i + 1);
        own->n_tokens = qn_image_plan_tokens(&own->plan);
    }
    return QN_OK;
}

static qn_status count_tokens(qn_images *im, const int32_t *ids, int64_t n_ids, int32_t token,
                              int64_t max_tokens)
{
    int64_t of_images = 0;
    for (int64_t i = 0; i < im->n; i++)
        if (!qn_add_i64(of_images, im->images[i].n_tokens, &of_images)) of_images = INT32_MAX;
    im->n_ids = of_images;
    for (int64_t i = 0; i < n_ids; i++) im->n_ids += ids[i] != token;
    if (im->n_ids <= max_tokens) return QN_OK;
    return qn_fail(QN_E_ARG, "the prompt has %lld tokens (%lld of images); the context holds %lld",
                   (long long)im->n_ids, (long long)of_images, (long long)max_tokens);
}

static qn_status take_pixels(placed_image *own, const qn_image_processor *p, const qn_image *image,
                             int64_t width)
{
    own->rgb = qn_alloc((size_t)qn_image_plan_bytes(&own->plan));
    own->vectors = qn_alloc_array((size_t)own->n_tokens, (size_t)width * sizeof *own->vectors);
    if (!own->rgb || !own->vectors) return QN_E_NOMEM;
    return qn_image_fit(p, image, &own->plan, own->rgb);
}

static qn_status make(qn_images *im, const qn_vision_config *v, const qn_image *images, const int32_t *ids,
                      int64_t n_ids, int64_t max_tokens)
{
    QN_TRY(measure(im, v, images));
    QN_TRY(check_places(im, ids, n_ids, v->image_token_id));
    QN_TRY(count_tokens(im, ids, n_ids, v->image_token_id, max_tokens));
    QN_TRY(expand(im, ids, n_ids, v->image_token_id));
    for (int64_t i = 0; i < im->n; i++) {
        qn_status status = take_pixels(&im->images[i], &v->processor, &images[i], im->width);
        if (status != QN_OK && status != QN_E_NOMEM)
            return qn_fail_prefix(status, "image %lld", (long long)i + 1);
        QN_TRY(status);
    }
    return QN_OK;
}

qn_status qn_images_new(const qn_model_config *c, size_t n, const qn_image *images, const int32_t *ids,
                        int64_t n_ids, int64_t max_tokens, qn_images **out)
{
    if (!c->vision.family)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "the model takes no images: it is a %s without a known vision tower; a GGUF model has its "
            "tower in a second file, mmproj*.gguf",
            c->architecture);
    qn_images *im = qn_calloc(1, sizeof *im);
    if (!im) return QN_E_NOMEM;
    im->width = qn_vision_width(&c->vision, c->hidden_size);
    im->is_whole = c->vision.seen != QN_VISION_SEEN_BEFORE;
    im->is_spread = qn_image_prompt_is_spread(c->vision.processor.prompt);
    im->images = qn_calloc(n, sizeof *im->images);
    qn_status status = QN_E_NOMEM;
    if (im->images) {
        im->n = (int64_t)n;
        status = make(im, &c->vision, images, ids, n_ids, max_tokens);
    }
    if (status == QN_OK)
        *out = im;
    else
        qn_images_free(im);
    return status;
}

void qn_images_free(qn_images *im)
{
    if (!im) return;
    for (int64_t i = 0; i < im->n; i++) {
        qn_free(im->images[i].rgb);
        qn_free(im->images[i].vectors);
    }
    qn_free(im->images);
    qn_free(im->ids);
    qn_free(im->vector);
    qn_free(im->contents);
    qn_free(im);
}

qn_ids qn_images_prompt(const qn_images *im)
{
    return (qn_ids){im->ids, im->n_ids};
}

/* views [qn_image_plan_views], patches: of all of them. */
static qn_status see_views(const placed_image *own, qn_engine *e, qn_image_grid *views, float *patches)
{
    const qn_image_processor *p = &qn_engine_config(e)->vision.processor;
    const int64_t n_views = qn_image_plan_views(&own->plan), each = qn_image_patch_floats(p);
    const uint8_t *rgb = own->rgb;
    float *at = patches;
    for (int64_t i = 0; i < n_views; i++) {
        views[i] = *qn_image_plan_view(&own->plan, i);
        qn_image_patches(p, rgb, &views[i], at);
        rgb += qn_image_grid_bytes(&views[i]);
        at += views[i].rows * views[i].columns * each;
    }
    return qn_engine_see(e, n_views, views, patches, own->vectors);
}

static qn_status see(placed_image *own, qn_engine *e)
{
    const int64_t n_views = qn_image_plan_views(&own->plan),
                  each = qn_image_patch_floats(&qn_engine_config(e)->vision.processor);
    int64_t n_patches = 0;
    for (int64_t i = 0; i < n_views; i++) {
        const qn_image_grid *view = qn_image_plan_view(&own->plan, i);
        n_patches += view->rows * view->columns;
    }
    qn_image_grid *views = qn_alloc_array((size_t)n_views, sizeof *views);
    float *patches = qn_alloc_array((size_t)n_patches, (size_t)each * sizeof *patches);
    qn_status status = views && patches ? see_views(own, e, views, patches) : QN_E_NOMEM;
    qn_free(views);
    qn_free(patches);
    own->is_seen = status == QN_OK;
    return status;
}

/* The first image that has tokens at or behind this index, and no vectors; n: there is none. */
static int64_t next_unseen(const qn_images *im, int64_t from, int64_t index)
{
    while (from < im->n && (im->images[from].is_seen || im->images[from].end <= index)) from++;
    return from;
}

int64_t qn_images_unseen(const qn_images *im, int64_t index)
{
    int64_t n = 0;
    for (int64_t i = 0; im && (i = next_unseen(im, i, index)) < im->n; i++) n++;
    return n;
}

qn_status qn_images_see(qn_images *im, qn_engine *e, int64_t index, int64_t *left)
{
    const int64_t i = next_unseen(im, 0, index);
    if (i < im->n) QN_TRY(see(&im->images[i], e));
    *left = qn_images_unseen(im, index);
    return QN_OK;
}

int64_t qn_images_end(const qn_images *im)
{
    return im && im->n ? im->images[im->n - 1].end : 0;
}

/* ---- what tells them from others ---------------------------------------------------------------------- */

static void put_numbers(qn_digest *d, const int64_t *numbers, size_t n)
{
    qn_digest_put(d, numbers, n * sizeof *numbers);
}

/* All that decides the image's vectors and positions: the views' sizes and pixels. */
static void sum_image(const placed_image *own, unsigned char out[QN_TREE_DIGEST_BYTES])
{
    const qn_image_plan *plan = &own->plan;
    const int64_t n_views = qn_image_plan_views(plan),
                  sizes[] = {own->n_tokens, n_views, plan->tile_rows, plan->tile_columns};
    qn_digest d;
    qn_digest_begin(&d, QN_SUM_SHA256, 0);
    put_numbers(&d, sizes, sizeof sizes / sizeof *sizes);
    for (int64_t i = 0; i < n_views; i++) {
        const qn_image_grid *v = qn_image_plan_view(plan, i);
        const int64_t view[] = {v->height, v->width, v->rows, v->columns, v->token_rows, v->token_columns};
        put_numbers(&d, view, sizeof view / sizeof *view);
    }
    qn_digest_put(&d, own->rgb, (size_t)qn_image_plan_bytes(plan));
    qn_digest_end_bytes(&d, out);
}

/* Where contents begin; out NULL: they are counted. Where tokens see those behind them, a row of them is one. */
static int64_t find_contents(const qn_images *im, qn_tree_content *out)
{
    int64_t n = 0;
    for (int64_t i = 0; !im->is_whole && i < im->n; i++, n++)
        if (out) out[n].first = im->images[i].first;
    for (int64_t i = 0; im->is_whole && i < im->n_ids; i++) {
        if (im->vector[i] < 0 || (i && im->vector[i - 1] >= 0)) continue;
        if (out) out[n].first = i;
        n++;
    }
    return n;
}

/* The row's tokens see each other: each of them depends on all images in it. */
static void sum_row(const qn_images *im, const unsigned char *sums, qn_tree_content *out)
{
    const int64_t end = qn_images_extend(im, out->first + 1);
    int64_t before = 0;
    qn_digest d;
    qn_digest_begin(&d, QN_SUM_SHA256, 0);
    for (int64_t i = 0; i < im->n; before += im->images[i++].n_tokens) {
        const int64_t from = im->vector[out->first] - before, to = im->vector[end - 1] + 1 - before,
                      part[] = {from > 0 ? from : 0,
                                to < im->images[i].n_tokens ? to : im->images[i].n_tokens};
        if (part[0] >= part[1]) continue;
        put_numbers(&d, part, 2);
        qn_digest_put(&d, sums + i * QN_TREE_DIGEST_BYTES, QN_TREE_DIGEST_BYTES);
    }
    qn_digest_end_bytes(&d, out->digest);
}

qn_status qn_images_identify(qn_images *im)
{
    const int64_t n = find_contents(im, NULL);
    if (im->contents) return QN_OK;
    unsigned char *sums = qn_alloc_array((size_t)im->n, QN_TREE_DIGEST_BYTES);
    qn_tree_content *contents = qn_alloc_array((size_t)n, sizeof *contents);
    if (!sums || !contents) {
        qn_free(sums);
        qn_free(contents);
        return QN_E_NOMEM;
    }
    find_contents(im, contents);
    for (int64_t i = 0; i < im->n; i++) sum_image(&im->images[i], sums + i * QN_TREE_DIGEST_BYTES);
    for (int64_t i = 0; i < n; i++)
        if (im->is_whole)
            sum_row(im, sums, &contents[i]);
        else
            memcpy(contents[i].digest, sums + i * QN_TREE_DIGEST_BYTES, QN_TREE_DIGEST_BYTES);
    qn_free(sums);
    im->contents = contents;
    im->n_contents = n;
    return QN_OK;
}

const qn_tree_content *qn_images_contents(const qn_images *im, int64_t *n)
{
    *n = im->n_contents;
    return im->contents;
}

int64_t qn_images_common(const qn_images *im, const qn_images *other, int64_t n)
{
    const int64_t n_own = im ? im->n_contents : 0, n_others = other ? other->n_contents : 0;
    int64_t i = 0, end = n;
    while (i < n_own && i < n_others && im->contents[i].first == other->contents[i].first &&
           !memcmp(im->contents[i].digest, other->contents[i].digest, QN_TREE_DIGEST_BYTES))
        i++;
    if (i < n_own && im->contents[i].first < end) end = im->contents[i].first;
    if (i < n_others && other->contents[i].first < end) end = other->contents[i].first;
    return end;
}

/* ---- tokens ------------------------------------------------------------------------------------------- */

void qn_images_positions(const qn_images *im, int64_t index, int32_t out[QN_ROPE_SECTIONS])
{
    int64_t behind = 0; /* how far positions lag behind indices, for the images so far */
    for (int64_t i = 0; im && i < im->n && index >= im->images[i].first; i++) {
        const placed_image *own = &im->images[i];
        const int64_t place = index - own->first, rows = own->plan.tile.token_rows,
                      columns = own->plan.tile.token_columns;
        if (place < own->n_tokens) {
            int64_t start = own->first - behind;
            out[0] = (int32_t)start;
            out[1] = (int32_t)(start + place / columns);
            out[2] = (int32_t)(start + place % columns);
            return;
        }
        behind += own->n_tokens - (rows > columns ? rows : columns);
    }
    for (int k = 0; k < QN_ROPE_SECTIONS; k++) out[k] = (int32_t)(index - behind);
}

const float *qn_images_vector(const qn_images *im, int64_t index)
{
    if (!im || index >= im->n_ids || im->vector[index] < 0) return NULL;
    int64_t i = im->vector[index];
    const placed_image *own = im->images;
    for (; i >= own->n_tokens; own++) i -= own->n_tokens;
    return own->vectors + i * im->width;
}

/* ---- rows of tokens that see each other ---------------------------------------------------------------- */

int qn_images_is_whole(const qn_images *im, int64_t index)
{
    return im && im->is_whole && index >= 0 && index < im->n_ids && im->vector[index] >= 0;
}

int64_t qn_images_extend(const qn_images *im, int64_t end)
{
    if (!qn_images_is_whole(im, end - 1)) return end;
    while (qn_images_is_whole(im, end)) end++;
    return end;
}

int64_t qn_images_shrink(const qn_images *im, int64_t end)
{
    if (!qn_images_is_whole(im, end)) return end;
    while (qn_images_is_whole(im, end - 1)) end--;
    return end;
}

int64_t qn_images_part(const qn_images *im, int64_t index, int64_t n)
{
    const int whole = qn_images_is_whole(im, index);
    int64_t part = 1;
    if (!im || !im->is_whole) return n;
    if (whole) part = qn_images_extend(im, index + 1) - index;
    while (!whole && part < n && !qn_images_is_whole(im, index + part)) part++;
    return part > n ? 0 : part;
}
