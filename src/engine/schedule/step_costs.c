#include "engine/schedule/step_costs.h"

enum { NEW_ROW_PERCENT = 10 }; /* of a step, for a row more than was ever tried */

/* ---- of those that decode ---- */

static int64_t clamp_rows(int64_t n)
{
    return n < 1 ? 1 : n > QN_STEP_ROWS ? QN_STEP_ROWS : n;
}

void qn_step_costs_note(qn_step_costs *c, int64_t n_rows, double ns)
{
    const double rate = 0.15, fade = 0.998, forgotten = 0.05;
    if (!(ns > 0) || n_rows < 1 || n_rows > QN_STEP_ROWS) return;
    double *mean = &c->ns[n_rows];
    if (c->weight[n_rows] == 0)
        *mean = ns;
    else /* one that was disturbed counts as three times what is usual */
        *mean += rate * ((ns < 3 * *mean ? ns : 3 * *mean) - *mean);
    for (int i = 1; i <= QN_STEP_ROWS; i++) {
        c->weight[i] *= fade;
        if (c->weight[i] < forgotten) c->weight[i] = 0;
    }
    c->weight[n_rows] = 1;
}

double qn_step_costs_get(const qn_step_costs *c, int64_t n_rows)
{
    n_rows = clamp_rows(n_rows);
    int64_t low = n_rows, high = n_rows;
    while (low > 0 && c->weight[low] == 0) low--;
    while (high <= QN_STEP_ROWS && c->weight[high] == 0) high++;
    if (low == n_rows) return c->ns[low];
    if (low == 0) return high <= QN_STEP_ROWS ? c->ns[high] : 0;
    if (high > QN_STEP_ROWS)
        return c->ns[low] * (1 + (double)(n_rows - low) * NEW_ROW_PERCENT / 100 / (double)low);
    return c->ns[low] + (c->ns[high] - c->ns[low]) * (double)(n_rows - low) / (double)(high - low);
}

int qn_step_costs_known(const qn_step_costs *c, int64_t n_rows)
{
    if (n_rows > QN_STEP_ROWS) return 1;
    n_rows = clamp_rows(n_rows);
    for (int64_t n = n_rows - n_rows / 4; n <= n_rows + n_rows / 4 && n <= QN_STEP_ROWS; n++)
        if (c->weight[n] > 0) return 1;
    return 0;
}

/* ---- of prompts ---- */

static int64_t tiles_of(int64_t n_rows)
{
    const int64_t n = (n_rows + QN_PROMPT_TILE - 1) / QN_PROMPT_TILE;
    return n < 1 ? 1 : n > QN_PROMPT_TILES ? QN_PROMPT_TILES : n;
}

void qn_prompt_costs_note(qn_prompt_costs *c, int64_t n_rows, double ns)
{
    const double all = 0.3, own = 0.05, fade = 0.9995; /* what was dear once is tried again */
    const int64_t tiles = tiles_of(n_rows);
    if (n_rows < 1 || !(ns > 0)) return;
    if (n_rows > QN_PROMPT_TILES * QN_PROMPT_TILE)
        ns *= (double)(QN_PROMPT_TILES * QN_PROMPT_TILE) / (double)n_rows;
    double *mean = &c->ns[tiles];
    if (!(*mean > 0)) {
        *mean = ns;
        return;
    }
    if (ns > 3 * *mean) ns = 3 * *mean; /* it was disturbed */
    const double factor = 1 + all * (ns / *mean - 1);
    for (int64_t i = 1; i <= QN_PROMPT_TILES; i++) c->ns[i] *= i == tiles ? factor : factor * fade;
    *mean += own * (ns - *mean);
}

double qn_prompt_costs_get(const qn_prompt_costs *c, int64_t n_rows)
{
    const int64_t tiles = tiles_of(n_rows);
    int64_t low = tiles, high = tiles;
    while (low > 0 && !(c->ns[low] > 0)) low--;
    while (high <= QN_PROMPT_TILES && !(c->ns[high] > 0)) high++;
    if (low == 0 && high > QN_PROMPT_TILES) return 0;
    if (low == 0) return c->ns[high] * (double)tiles / (double)high;
    if (low == tiles || high > QN_PROMPT_TILES) return c->ns[low] * (double)tiles / (double)low;
    return c->ns[low] + (c->ns[high] - c->ns[low]) * (double)(tiles - low) / (double)(high - low);
}

int64_t qn_prompt_costs_rows(const qn_prompt_costs *c, double ns)
{
    int64_t most = 1;
    for (int64_t n = 1; n <= QN_PROMPT_TILES; n++) {
        const double cost = qn_prompt_costs_get(c, n * QN_PROMPT_TILE);
        if (!(cost > 0)) return 2 * QN_PROMPT_TILE;
        if (cost <= ns) most = n;
    }
    return most * QN_PROMPT_TILE;
}
