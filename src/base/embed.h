/* Files that are part of the binary. The assembler copies them into constants; the Makefile says which object
 * depends on which file. */
#ifndef QN_BASE_EMBED_H
#define QN_BASE_EMBED_H

#ifdef __APPLE__
#define QN_EMBED_SECTION ".section __DATA,__const\n"
#define QN_EMBED_NAME(name) "_" name
#define QN_EMBED_END ".text\n"
#else
#define QN_EMBED_SECTION ".pushsection .rodata.qn_embed, \"a\", %progbits\n"
#define QN_EMBED_NAME(name) name
#define QN_EMBED_END ".popsection\n"
#endif

/* Declares symbol[] and symbol_end[]: the bytes of the file at a multiple of 64, and a NUL behind them. The
 * path is from the root of the tree, where make runs. At file scope. */
// clang-format off
#define QN_EMBED(symbol, path)                                                 \
    __asm__(QN_EMBED_SECTION                                                   \
            ".balign 64\n"                                                     \
            QN_EMBED_NAME(#symbol) ":\n"                                       \
            ".incbin \"" path "\"\n"                                           \
            QN_EMBED_NAME(#symbol "_end") ":\n"                                \
            ".byte 0\n"                                                        \
            QN_EMBED_END);                                                     \
    extern const char symbol[] __attribute__((visibility("hidden"))),          \
        symbol##_end[] __attribute__((visibility("hidden")))
// clang-format on

#endif
