/* One client's connection: requests are read one after the other, each becomes an exchange, its answer goes
 * out before the next is looked at.
 *
 * While an answer is made the socket is still watched, so that a client that goes is noticed in every phase;
 * closing the sending half counts as going. Loop thread only. */
#ifndef QN_SERVER_HTTP_CONNECTION_H
#define QN_SERVER_HTTP_CONNECTION_H

#include "server/http/exchange.h"

/* Takes the socket over. */
void qn_connection_open(qn_http_server *s, int file);
/* Closes those that are between two requests (a draining server), or all. One that is new may have sent its
 * first request already, which is owed an answer. */
void qn_connections_close(qn_http_server *s, int all);
/* Closes one that waits between two requests, or whose request has not arrived, so that a new client gets its place:
 * those who showed no key before those who did, idle ones before others, oldest first. 0: there is none. */
int qn_connections_give_way(qn_http_server *s);
/* 1 when all that was answered is on its way. */
int qn_connections_are_flushed(const qn_http_server *s);

#endif
