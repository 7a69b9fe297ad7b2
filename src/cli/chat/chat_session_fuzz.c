/* Saved conversations: what is read is written and read again, with the same result. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/chat_session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_chat_session s = {0}, again = {0};
    qn_buf first = {0}, second = {0};
    if (qn_chat_session_parse(&s, "fuzz", (const char *)data, size) == QN_OK) {
        qn_chat_session_write(&s, "m", &first);
        if (qn_chat_session_parse(&again, "fuzz", first.data, first.length) != QN_OK) abort();
        qn_chat_session_write(&again, "m", &second);
        if (first.length != second.length || memcmp(first.data, second.data, first.length) != 0) abort();
    }
    qn_chat_session_end(&s);
    qn_chat_session_end(&again);
    qn_buf_free(&first);
    qn_buf_free(&second);
    return 0;
}
