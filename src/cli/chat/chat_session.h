/* A conversation: its messages and its settings, and the file that holds both.
 *
 * The file is a request of OpenAI's chat completions, {"model": ..., "messages": [...], "temperature": ...},
 * so that what was saved can be sent to a server as it is; pictures are PNG files in base64. Saving and loading gives the same session again.
 * Invariants: contents are UTF-8 without NUL; whatever fails leaves the session as it was. One thread. */
#ifndef QN_CLI_CHAT_CHAT_SESSION_H
#define QN_CLI_CHAT_CHAT_SESSION_H

#include "cli/chat/chat_settings.h"
#include "media/picture.h"

typedef struct {
    qn_message *messages; /* roles have static storage, contents are owned */
    size_t *n_images;     /* of each message: how many of the pictures stand before it */
    size_t n_messages, capacity;
    qn_image *pictures; /* owned: those of the messages in order, then those that wait for the next one */
    size_t n_pictures;
    qn_chat_settings settings;
} qn_chat_session;

/* Frees the messages and pictures; settings stay. */
void qn_chat_session_end(qn_chat_session *s);
/* Takes the pixels over; the picture will stand before the text of the next message of the user. QN_E_FULL: there are
 * too many. */
qn_status qn_chat_session_attach(qn_chat_session *s, qn_picture *picture);
/* How many pictures the first n messages have. */
size_t qn_chat_session_pictures(const qn_chat_session *s, size_t n);
/* Drops the pictures that wait. */
void qn_chat_session_detach(qn_chat_session *s);
/* Adds content[0..n), copied, with the pictures that wait if it is the user's. role: "system", "user" or "assistant" (QN_E_ARG). QN_E_FORMAT: not UTF-8, or a
 * NUL. */
qn_status qn_chat_session_add(qn_chat_session *s, const char *role, const char *content, size_t n);
/* Drops the messages from keep on. */
void qn_chat_session_truncate(qn_chat_session *s, size_t keep);
/* Puts content[0..n) as the assistant's in place of all messages from keep on. A NUL, which a model may well
 * say but no message can hold, becomes U+FFFD. */
qn_status qn_chat_session_answer(qn_chat_session *s, size_t keep, const char *content, size_t n);
/* The system message: the first one, if it is one. NULL: there is none. */
const char *qn_chat_session_system(const qn_chat_session *s);
/* Puts, replaces or (text empty) takes away the system message. */
qn_status qn_chat_session_set_system(qn_chat_session *s, const char *text);
/* Forgets all messages but the system message. */
void qn_chat_session_clear(qn_chat_session *s);
/* How many messages there are up to the user's last one; 0: the user has said nothing. */
size_t qn_chat_session_asked(const qn_chat_session *s);

/* Appends the file's text. model: how the model is called there. */
void qn_chat_session_write(const qn_chat_session *s, const char *model, qn_buf *out);
/* Reads such a text; settings that it does not name stay. what names it in messages. QN_E_FORMAT or QN_E_ARG
 * name the field: "FILE: messages[3].role: ...". An unknown field is refused. */
qn_status qn_chat_session_parse(qn_chat_session *s, const char *what, const char *text, size_t n);
/* The file appears whole or not at all, readable by its owner alone. QN_E_IO. */
qn_status qn_chat_session_save(const qn_chat_session *s, const char *model, const char *path);
/* QN_E_IO: unreadable, or no regular file; QN_E_FULL: more than 64 MiB. */
qn_status qn_chat_session_load(qn_chat_session *s, const char *path);

#endif
