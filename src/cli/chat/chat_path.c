#include "cli/chat/chat_path.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

qn_status qn_chat_path(const char *name, qn_buf *out)
{
    const char *home = getenv("HOME");
    if (!name[0]) return qn_fail(QN_E_ARG, "the name of a file is missing");
    if (name[0] == '~' && name[1] == '/' && home) {
        qn_buf_puts(out, home);
        name++;
    }
    qn_buf_printf(out, "%s%s", strcmp(name, "-") == 0 ? "./" : "", name);
    return out->status;
}

/* As a shell reads one word. */
static void unquote(const char *name, qn_buf *out)
{
    char quote = 0;
    for (const char *c = name; *c; c++) {
        if (quote && *c == quote)
            quote = 0;
        else if (!quote && (*c == '\'' || *c == '"'))
            quote = *c;
        else if (*c == '\\' && quote != '\'' && c[1])
            qn_buf_putc(out, *++c);
        else
            qn_buf_putc(out, *c);
    }
}

qn_status qn_chat_path_of_input(const char *name, qn_buf *out)
{
    const size_t before = out->length;
    QN_TRY(qn_chat_path(name, out));
    if (access(out->data + before, F_OK) == 0 || !strpbrk(name, "'\"\\")) return QN_OK;
    qn_buf plain = {0}, path = {0};
    unquote(name, &plain);
    qn_status status = plain.status;
    if (status == QN_OK && plain.length) status = qn_chat_path(plain.data, &path);
    if (status == QN_OK && path.length && access(path.data, F_OK) == 0) {
        out->length = before;
        qn_buf_append(out, path.data, path.length);
        status = out->status;
    }
    qn_buf_free(&plain);
    qn_buf_free(&path);
    return status;
}
