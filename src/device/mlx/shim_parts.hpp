/* What the library's files give to its table, and how their failures become statuses. */
#ifndef QN_DEVICE_MLX_SHIM_PARTS_HPP
#define QN_DEVICE_MLX_SHIM_PARTS_HPP

#include <new>

#include "device/mlx/shim.hpp"

namespace qn
{

void keep_error(const char *text);

/* Calls f: nothing is thrown out of the library. */
template <typename F> qn_status guarded(F f) noexcept
{
    try {
        f();
        return QN_OK;
    } catch (const failure &e) {
        keep_error(e.what());
        return e.status;
    } catch (const std::bad_alloc &) {
        keep_error("MLX: out of memory");
        return QN_E_NOMEM;
    } catch (const std::exception &e) {
        keep_error((std::string("MLX: ") + e.what()).c_str());
        return QN_E_DEVICE;
    } catch (...) {
        keep_error("MLX: an unknown exception");
        return QN_E_DEVICE;
    }
}

/* weights.cpp, state.cpp: as in shim.h */
qn_status weight_new(const qn_mlx_weight_spec *spec, qn_mlx_weight **out);
size_t weight_bytes(const qn_mlx_weight *w);
qn_dtype weight_type(const qn_mlx_weight *w);
int weight_is_quantised(const qn_mlx_weight *w);
void weight_free(qn_mlx_weight *w);
qn_status state_new(int is_pages, int64_t n_layers, int64_t n_units, int64_t page_tokens, int64_t kv_heads,
                    int64_t head_dim, int64_t v_dim, qn_dtype dtype, int64_t slot_floats, qn_mlx_state **out);
void state_free(qn_mlx_state *s);
size_t state_bytes(const qn_mlx_state *s);
size_t state_spare(const qn_mlx_state *s);
qn_status state_drop(qn_mlx_state *s, int32_t unit, int poison);
qn_status state_shrink(qn_mlx_state *s);
qn_status state_copy(qn_mlx_state *s, int32_t from, int32_t to, size_t budget_bytes);
qn_status state_read(const qn_mlx_state *s, int32_t unit, void *bytes, size_t size_bytes);
qn_status state_write(qn_mlx_state *s, int32_t unit, const void *bytes, size_t size_bytes,
                      size_t budget_bytes);

} // namespace qn

extern const char *const qn_prim_names[QN_PRIM_COUNT];
#endif
