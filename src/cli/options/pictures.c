#include "cli/options/pictures.h"

#include "cli/term/input.h"

qn_status qn_pictures_read(const qn_arg_list *paths, qn_pictures *out)
{
    for (; out->n < paths->n; out->n++) {
        qn_picture *p = &out->decoded[out->n];
        QN_TRY(qn_input_picture(paths->items[out->n], p));
        out->images[out->n] = (qn_image){.rgb = p->rgb, .width = p->width, .height = p->height};
    }
    return QN_OK;
}

void qn_pictures_free(qn_pictures *p)
{
    for (size_t i = 0; i < p->n; i++) qn_picture_free(&p->decoded[i]);
}
