#include "text/jinja/case.h"

#include <string.h>
#include <utf8proc.h>

static uint32_t to_upper(uint32_t c)
{
    if (c < 128) return c >= 'a' && c <= 'z' ? c - 32 : c;
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
}

static uint32_t to_lower(uint32_t c)
{
    if (c < 128) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

static int is_letter(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT;
}

/* Does c start a new word for what comes after it? */
static int starts_word(uint32_t c, qn_jcase what)
{
    if (what == QN_JCASE_TITLE) return !is_letter(c);
    return what == QN_JCASE_HEADLINE && (qn_jspace(c) || (c < 128 && c && strchr("-({[<", (int)c)));
}

static void put_folded(qn_jbuild *b, uint32_t c, int user)
{
    utf8proc_int32_t folded[4];
    const utf8proc_ssize_t n =
        c < 128 ? 0 : utf8proc_decompose_char((utf8proc_int32_t)c, folded, 4, UTF8PROC_CASEFOLD, NULL);
    if (n < 1 || n > 4) qn_jbuild_char(b, to_lower(c), user);
    for (utf8proc_ssize_t i = 0; n <= 4 && i < n; i++) qn_jbuild_char(b, (uint32_t)folded[i], user);
}

qn_status qn_jcase_change(qn_jrun *r, const qn_jstring *s, qn_jcase what, qn_jvalue *out)
{
    qn_jbuild b;
    int up = what != QN_JCASE_LOWER;
    QN_TRY(qn_jheap_walk(&r->heap, s->n));
    qn_jbuild_init(&b, &r->heap);
    for (size_t i = 0, n; i < s->n && b.status == QN_OK; i += n) {
        uint32_t c;
        n = qn_jdecode(s->data + i, s->n - i, &c);
        int user = qn_jstring_user_at(s, i);
        if (what == QN_JCASE_FOLD) {
            put_folded(&b, c, user);
            continue;
        }
        if (what == QN_JCASE_SWAP) up = to_upper(c) != c;
        if (up && c == 0xDF)
            qn_jbuild_text(&b, what == QN_JCASE_UPPER || what == QN_JCASE_SWAP ? "SS" : "Ss", user);
        else
            qn_jbuild_char(&b, up ? to_upper(c) : to_lower(c), user);
        if (what != QN_JCASE_UPPER) up = starts_word(c, what);
    }
    return qn_jbuild_take(&b, out);
}

int qn_jcase_is(const qn_jstring *s, int upper)
{
    int cased = 0;
    for (size_t i = 0, n; i < s->n; i += n) {
        uint32_t c;
        n = qn_jdecode(s->data + i, s->n - i, &c);
        if (!is_letter(c)) continue;
        if (upper ? to_upper(c) != c : to_lower(c) != c) return 0;
        cased = 1;
    }
    return cased;
}
