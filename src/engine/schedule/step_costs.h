/* What steps take, by what is in them: measured, told by who computes them (there is no clock in here), and
 * asked by who decides how many rows the next one has. Nothing but speed depends on it. One thread at a time
 * per table. */
#ifndef QN_ENGINE_SCHEDULE_STEP_COSTS_H
#define QN_ENGINE_SCHEDULE_STEP_COSTS_H

#include <stdint.h>

enum {
    QN_STEP_ROWS = 64,   /* steps of more rows are taken for this many */
    QN_PROMPT_TILE = 16, /* rows of prompts are counted by so many, */
    QN_PROMPT_TILES = 64 /* up to so many of these */
};

/* Nanoseconds of a step of n rows that all decode. Zeroed: nothing is known. */
typedef struct {
    double ns[QN_STEP_ROWS + 1], weight[QN_STEP_ROWS + 1];
} qn_step_costs;

/* A step of n_rows rows, decoding only, took so long. Old measurements fade. */
void qn_step_costs_note(qn_step_costs *c, int64_t n_rows, double ns);
/* Estimated from what is known of steps of fewer and of more rows; 0: nothing is known. Rows that were never
 * tried are taken for cheap, so that they will be. */
double qn_step_costs_get(const qn_step_costs *c, int64_t n_rows);
/* Was a step of about n_rows rows measured? Of more than QN_STEP_ROWS yes: waiting for that would be in vain.
 */
int qn_step_costs_known(const qn_step_costs *c, int64_t n_rows);

/* Nanoseconds that rows of prompts add to a step. What they take does not grow evenly with their number (a
 * tile that is not full takes as long as one that is, and some numbers of tiles have faster kernels than
 * others), but as a prompt grows they all take longer alike. Zeroed: nothing is known. */
typedef struct {
    double ns[QN_PROMPT_TILES + 1]; /* of so many tiles; 0: not known */
} qn_prompt_costs;

/* n_rows > 0, whole tiles or nearly so, added so much. */
void qn_prompt_costs_note(qn_prompt_costs *c, int64_t n_rows, double ns);
/* Estimated: that of unknown numbers lies between known ones, else in proportion. 0: nothing is known. */
double qn_prompt_costs_get(const qn_prompt_costs *c, int64_t n_rows);
/* The most rows, whole tiles and at least one, that add `ns` at most; two tiles where nothing is known. */
int64_t qn_prompt_costs_rows(const qn_prompt_costs *c, double ns);

#endif
