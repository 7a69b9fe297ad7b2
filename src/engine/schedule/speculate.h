/* Speculation: a request that decodes is fed more than the one id that is certain, and keeps what comes true.
 *
 * Guessed ids are written behind the request's own and fed with them. Each row's token is drawn as if the
 * rows behind it were not there; the next row counts only if its id is the token that was drawn. So what
 * comes out is what comes without speculation, bit for bit, whatever is guessed. Guesses that a form forbids are
 * left out. Tokens that a form forces are fed in the same way, but they are certain: nothing is drawn from their
 * rows, and they are never taken back. The leader's thread, as all of a request's part that is the leader's. */
#ifndef QN_ENGINE_SCHEDULE_SPECULATE_H
#define QN_ENGINE_SCHEDULE_SPECULATE_H

#include "engine/schedule/request.h"

/* What a request needs to guess up to n_draft ids a step; its prompt is looked through. draft_engine: of a
 * smaller model with the same vocabulary, which guesses where the text repeats nothing; NULL: none. */
qn_status qn_request_speculate(qn_request *r, int64_t n_draft, qn_engine *draft_engine);
/* How many ids are fed behind the certain one in a step that has n_rows rows without them: they lie behind
 * the request's own, and pages are taken for them. 0: none. */
int64_t qn_request_look_ahead(qn_request *r, const qn_engine *e, const qn_step_costs *costs, int64_t n_rows);
/* How many ids of the form's queue are fed behind the request's own in such a step; they lie there, and no pages
 * are taken. Each becomes a token, and one more comes of the last row. */
int64_t qn_request_put_certain(qn_request *r, const qn_engine *e, int64_t n_rows);
/* May a token be drawn from row i of this step? */
int qn_request_wants_row(const qn_request *r, int64_t i);
/* The step is over: what was fed behind the last token drawn is taken back, and counted. */
void qn_request_take_back(qn_request *r);

#endif
