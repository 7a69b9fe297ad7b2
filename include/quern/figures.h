/* Figures of a model's engine: running and waiting rows, use of pages, gains of prefixes.
 *
 * Counts are since the model was opened, except where "now" stands. Any thread; the call does not wait for a
 * step. */
#ifndef QUERN_FIGURES_H
#define QUERN_FIGURES_H

#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { QN_STEP_BUCKETS = 16 };

typedef struct {
    int64_t n_slots;              /* most sequences computed together */
    int64_t n_active, n_queued;   /* now: rows that have a slot; that have none */
    int64_t n_finished, n_failed; /* rows that ended; of them, with an error */
    int64_t n_preemptions;        /* rows preempted to give their slot or pages to others */
    int64_t n_restarts;           /* rows computed again because some of their state was invalid */
    int64_t n_prompt_tokens, n_cached_tokens, n_generated_tokens; /* cached: of the prompts' */
    int64_t n_drafted, n_accepted;  /* tokens guessed and computed; those accepted */
    int64_t n_drafts;               /* times that a row was given guesses */
    int64_t n_steps, n_step_rows;   /* n_step_rows: rows of all steps */
    int64_t step_ns, scheduling_ns; /* of all steps: computing and drawing; around it */
    /* Steps by their time: bucket i counts those below 0.25 ms * 2^i that no earlier bucket counts, and the
     * last bucket counts all others. */
    int64_t step_buckets[QN_STEP_BUCKETS];
    /* Pages of keys and values, and slots of recurrent state, now: the total; those in use by sequences and
     * handles; those that only the prefix tree keeps. */
    int64_t pages_total, pages_used, pages_kept;
    /* The prefix tree: lookups with and without a hit; evicted and poisoned nodes. */
    int64_t prefix_hits, prefix_misses, prefix_tokens_reused;
    int64_t prefix_nodes, prefix_evicted_nodes, prefix_evicted_tokens, prefix_poisoned_nodes;
    size_t prefix_evicted_bytes;
} qn_figures;

/* QN_E_UNSUPPORTED: the backend has none. */
QN_API qn_status qn_model_get_figures(const qn_model *model, qn_figures *out);

#ifdef __cplusplus
}
#endif
#endif
