/* Attention of rows that lie as MLX wants them: for rows themselves (attention.cpp), and for pages (pages.cpp). */
#ifndef QN_DEVICE_MLX_ATTENTION_HPP
#define QN_DEVICE_MLX_ATTENTION_HPP

#include "device/mlx/state.hpp"

namespace qn
{

/* Scores that are computed at once, about: 64 MiB. */
constexpr int64_t SCORES_MAX = int64_t{1} << 24;

/* Rows [row, row + n) see keys [low, high) of those at hand, and of these what mask says. */
struct view {
    int64_t row, n, low, high;
    bool is_causal;
    std::optional<mx::array> mask; /* bool [n sequences, 1, n, high - low] */
    std::optional<mx::array>
        sees; /* bool [1, 1, n, 1]: of chosen blocks, a row may see nothing, and gives 0 */
};

/* The blocks that the rows of one sequence chose. first: the position of the first key that is at hand. */
struct choice {
    mx::array numbers; /* [n_rows, top] */
    int64_t block, first;
    bool no_tail;
};

/* Row i of sequence b of a batch is at position[b] + i, counted from the first key that is at hand. views: made
 * when the first layer needs them. */
struct sight {
    std::vector<int32_t> position, end; /* end: of the keys of the sequence, behind its last row */
    std::vector<int32_t> chunk_at;      /* of the first key in its chunk; 0 where there are none */
    int64_t n_rows, n_keys, window, chunk;
    bool whole;
    std::vector<view> views;
    std::optional<choice> chosen; /* of one layer; then the sequence is alone in its batch */
    /* Of each sequence if one is marked (prim/blocks.h); else both are empty. past: its rows see all keys before this
     * one; 0: it is not marked. back: its windows begin here at the latest; INT32_MAX: each at its row's own begin. */
    std::vector<int32_t> past = {}, back = {};
};

/* One batch in MLX's order: q [n, heads, n_rows, d], k [n, kv_heads, n_keys, d], v [n, kv_heads, n_keys, dv],
 * of one type, f32 or of 16 bits. */
struct operands {
    mx::array q, k, v;
    std::optional<mx::array> sinks;
};

/* [n, n_rows, heads, dv] of the operands' type */
mx::array attend_batch(const call &c, const operands &o, sight &s);

/* ATTEND over the pages of the call's state. */
mx::array attend_pages(const call &c);

/* Rows [row, row + n) of a sequence, from a position on, of which pages are at hand from position `before` on. */
struct indexed {
    int64_t sequence, row, n, position, before;
};
/* Writes the keys of INDEX_BLOCKS into the pages of the call's state, and says which rows there are. */
std::vector<indexed> index_pages(const call &c);
/* The keys [end - begin, d] of blocks [begin, end) of one of these. */
mx::array keys_in_pages(const call &c, const indexed &x, int64_t begin, int64_t end);

/* What a batch chose, of the call's last input; NULL of attention to all that rows see. */
std::optional<choice> choice_of(const call &c, const batch &b, int64_t first);

std::optional<mx::array> sinks_of(const call &c);
/* Elements [begin, end) of one axis. */
mx::array range_of(const mx::array &x, int axis, int64_t begin, int64_t end);
/* [n, rows, heads, d] to [n, heads, rows, d], and back. */
mx::array heads_first(const mx::array &x);

} // namespace qn
#endif
