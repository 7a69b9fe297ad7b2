#include "engine/clients/figures.h"

#include "engine/machine/engine_parts.h"

static void add_pages(const qn_pages *p, qn_figures *out)
{
    int64_t total = qn_pages_total(p), kept = qn_pages_kept_count(p);
    out->pages_total += total;
    out->pages_kept += kept;
    out->pages_used += total - kept - qn_pages_free_count(p);
}

void qn_engine_get_figures(qn_engine *e, qn_scheduler *s, qn_figures *out)
{
    qn_tree_counters tree = {0};
    qn_scheduler_get_figures(s, out);
    out->n_slots = e->info.max_sequences;
    for (int i = 0; i < e->groups.n; i++) add_pages(e->pages[i], out);
    if (e->slots) add_pages(e->slots, out);
    if (!e->tree) return;
    qn_tree_get_counters(e->tree, &tree);
    out->prefix_hits = tree.hits;
    out->prefix_misses = tree.misses;
    out->prefix_tokens_reused = tree.tokens_reused;
    out->prefix_nodes = tree.nodes;
    out->prefix_evicted_nodes = tree.evicted_nodes;
    out->prefix_evicted_tokens = tree.evicted_tokens;
    out->prefix_poisoned_nodes = tree.poisoned_nodes;
    out->prefix_evicted_bytes = tree.evicted_bytes;
}
