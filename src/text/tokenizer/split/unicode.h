/* Classes of code points as tokenizers' regexes mean them: \p{L}, \p{N}, \s (White_Space), \w. Any thread. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_UNICODE_H
#define QN_TEXT_TOKENIZER_SPLIT_UNICODE_H

#include <stdint.h>
#include <utf8proc.h>

static inline int qn_cp_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static inline int qn_cp_is_letter(uint32_t cp)
{
    if (cp < 0x80) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static inline int qn_cp_is_number(uint32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

static inline int qn_cp_is_mark(uint32_t cp)
{
    if (cp < 0x300) return 0;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

/* ASCII punctuation (which includes symbols such as '+') or general category P. */
static inline int qn_cp_is_punctuation(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= 33 && cp <= 47) || (cp >= 58 && cp <= 64) || (cp >= 91 && cp <= 96) ||
               (cp >= 123 && cp <= 126);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

/* \w of UTS 18: Alphabetic, marks, decimal digits, connector punctuation, joiners. */
static inline int qn_cp_is_word(uint32_t cp)
{
    if (cp < 0x80) return qn_cp_is_letter(cp) || (cp >= '0' && cp <= '9') || cp == '_';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC ||
           cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
           (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
           (cp >= 0x1f170 && cp <= 0x1f189);
}

#endif
