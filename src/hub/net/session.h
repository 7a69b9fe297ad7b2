/* What all steps of one fetch share: the settings, the network, and whom to tell. One thread. */
#ifndef QN_HUB_NET_SESSION_H
#define QN_HUB_NET_SESSION_H

#include <stdint.h>

#include "hub/names/settings.h"
#include "hub/net/net.h"

typedef struct {
    int64_t done_bytes, total_bytes; /* of all files that are fetched; those that were there count in both */
    int64_t here_bytes;              /* of done_bytes: they were there before */
    int is_checking;                 /* bytes that were there are hashed, or the last ones of a file */
    int wait_s;                      /* the server asked to wait for so long; 0: not */
} qn_hub_progress;

typedef struct {
    const qn_hub_settings *settings;
    qn_net *net;
    int (*is_cancelled)(void *user);
    void (*note)(void *user, const char *text);
    void (*progress)(void *user, const qn_hub_progress *p);
    void *user;
} qn_hub_session;

/* Tells a note. */
void qn_hub_note(const qn_hub_session *s, const char *fmt, ...) QN_PRINTF(2, 3);
/* QN_E_CANCELLED after Ctrl-C. */
qn_status qn_hub_check_cancel(const qn_hub_session *s);

#endif
