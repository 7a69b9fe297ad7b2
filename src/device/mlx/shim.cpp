/* The library's table: arrays, evaluation, memory, and the way from a step to its primitive. */
#include "device/mlx/shim.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <limits>
#include <new>

#include <mlx/backend/gpu/device_info.h>

#include "device/mlx/shim_parts.hpp"

/* Argument lists change between minor versions of MLX: this is the range that the tests have seen. */
#if MLX_VERSION_NUMERIC < 31002 || MLX_VERSION_NUMERIC >= 33000
#ifndef QN_MLX_ANY_VERSION
#error "quern-mlx is tested with MLX 0.31.2 to 0.32.x; make MLX=1 CPPFLAGS=-DQN_MLX_ANY_VERSION tries another"
#endif
#endif

namespace qn
{

bool compiles = false;

static thread_local char error_text[1024];

void keep_error(const char *text)
{
    std::snprintf(error_text, sizeof error_text, "%s", text);
}

bool on_gpu()
{
    static const bool is = mx::is_available(mx::Device(mx::Device::gpu));
    return is;
}

bool on_cuda()
{
    return on_gpu() && !mx::metal::is_available();
}

/* The driver's copy, if there is one. MLX's own way to the host moves the whole buffer into managed memory, from where the host
 * takes it page by page: milliseconds for rows of logits. */
using copying = int (*)(uint64_t to, uint64_t from, size_t size_bytes);

static copying driver_copy()
{
    static void *const found = [] {
        void *driver = on_cuda() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : nullptr;
        return driver ? dlsym(driver, "cuMemcpy") : nullptr;
    }();
    return reinterpret_cast<copying>(found);
}

void copy_to_host(const mx::array &a, void *to, size_t size_bytes)
{
    const auto copy = driver_copy();
    const void *buffer = a.buffer().ptr(); /* its first member is the address */
    if (copy && buffer && a.offset() == 0 && size_bytes) {
        const void *from = *static_cast<const void *const *>(buffer);
        if (from && copy(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), size_bytes) == 0)
            return;
    }
    if (size_bytes) std::memcpy(to, a.data<char>(), size_bytes);
}

mx::Dtype dtype_of(qn_dtype d)
{
    switch (d) {
    case QN_DTYPE_BOOL:
        return mx::bool_;
    case QN_DTYPE_U8:
        return mx::uint8;
    case QN_DTYPE_U16:
        return mx::uint16;
    case QN_DTYPE_U32:
        return mx::uint32;
    case QN_DTYPE_U64:
        return mx::uint64;
    case QN_DTYPE_I8:
        return mx::int8;
    case QN_DTYPE_I16:
        return mx::int16;
    case QN_DTYPE_I32:
        return mx::int32;
    case QN_DTYPE_I64:
        return mx::int64;
    case QN_DTYPE_F16:
        return mx::float16;
    case QN_DTYPE_BF16:
        return mx::bfloat16;
    case QN_DTYPE_F32:
        return mx::float32;
    case QN_DTYPE_F64:
        if (on_gpu()) throw failure(QN_E_UNSUPPORTED, "MLX's GPU has no f64");
        return mx::float64;
    default:
        throw failure(QN_E_UNSUPPORTED, "no array of a block type");
    }
}

mx::Shape shape_of(int n, const int64_t *dims)
{
    mx::Shape shape(n);
    for (int i = 0; i < n; i++) {
        if (dims[i] < 0 || dims[i] > std::numeric_limits<mx::ShapeElem>::max())
            throw failure(QN_E_UNSUPPORTED,
                          "a dimension of " + std::to_string(dims[i]) + ": MLX has at most 2147483647");
        shape[i] = static_cast<mx::ShapeElem>(dims[i]);
    }
    return shape;
}

/* What lies on the host already is read as it is: on a GPU every evaluation is waited for. */
std::vector<int32_t> call::ints(int i) const
{
    if (step.host && step.host[i])
        return std::vector<int32_t>(step.host[i], step.host[i] + step.host_size[i]);
    mx::array a = in(i);
    if (a.dtype() != mx::int32 || a.status() != mx::array::Status::available || !a.flags().row_contiguous) {
        a = mx::contiguous(mx::astype(a, mx::int32));
        a.eval();
    }
    return std::vector<int32_t>(a.data<int32_t>(), a.data<int32_t>() + a.size());
}

mx::array call::once(const mx::array &constant, const std::function<mx::array(const mx::array &)> &make) const
{
    qn_mlx_memo *&memo = *step.memo;
    if (!memo) memo = new qn_mlx_memo{};
    if (!memo->made || memo->source->id() != constant.id()) {
        memo->made = make(constant);
        memo->made->eval();
        memo->source = constant;
    }
    return *memo->made;
}

void call::room(int64_t elements, size_t element_bytes) const
{
    if (elements < 0 || static_cast<uint64_t>(elements) > step.budget_bytes / element_bytes)
        throw failure(QN_E_NOMEM, std::string(qn_prim_names[step.prim]) + ": an array of " +
                                      std::to_string(elements) + " elements of " +
                                      std::to_string(element_bytes) + " bytes, at most " +
                                      std::to_string(step.budget_bytes) + " bytes are left");
}

} // namespace qn

using qn::guarded;

/* ---- arrays ------------------------------------------------------------------------------------------- */

template <typename T> static mx::array copied(const void *data, mx::Shape shape, mx::Dtype dtype)
{
    return mx::array(static_cast<const T *>(data), std::move(shape), dtype);
}

static mx::array copy_of(const void *data, mx::Shape shape, mx::Dtype dtype)
{
    switch (mx::size_of(dtype)) {
    case 1: /* the bits alone matter */
        return mx::view(copied<uint8_t>(data, std::move(shape), mx::uint8), dtype);
    case 2:
        return mx::view(copied<uint16_t>(data, std::move(shape), mx::uint16), dtype);
    case 4:
        if (dtype == mx::int32) return copied<int32_t>(data, std::move(shape), dtype);
        return mx::view(copied<uint32_t>(data, std::move(shape), mx::uint32), dtype);
    default:
        return mx::view(copied<uint64_t>(data, std::move(shape), mx::uint64), dtype);
    }
}

static qn_status array_new(const void *data, int n_dims, const int64_t *dims, qn_dtype type, int borrow,
                           qn_mlx_array **out)
{
    return guarded([&] {
        const mx::Dtype dtype = qn::dtype_of(type);
        mx::Shape shape = qn::shape_of(n_dims, dims);
        for (int i = 0; i < n_dims; i++)
            if (dims[i] == 0) {
                *out = new qn_mlx_array{mx::zeros(shape, dtype), nullptr};
                return;
            }
        /* the bits of a scalar cannot be viewed as another type's */
        if (borrow)
            *out =
                new qn_mlx_array{mx::array(const_cast<void *>(data), shape, dtype, [](void *) {}), nullptr};
        else
            *out = new qn_mlx_array{mx::reshape(copy_of(data, n_dims ? shape : mx::Shape{1}, dtype), shape),
                                    nullptr};
    });
}

static qn_status array_view(const qn_mlx_array *a, int64_t offset, int n_dims, const int64_t *dims,
                            const int64_t *strides, qn_mlx_array **out)
{
    return guarded([&] {
        mx::Shape shape = qn::shape_of(n_dims, dims);
        int64_t elements = 1, contiguous = offset == 0;
        for (int i = n_dims - 1; i >= 0; i--) {
            contiguous = contiguous && (strides[i] == elements || dims[i] == 1);
            elements *= dims[i];
        }
        if (elements == 0)
            *out = new qn_mlx_array{mx::zeros(shape, a->a.dtype()), nullptr};
        else if (contiguous && static_cast<size_t>(elements) == a->a.size())
            *out = new qn_mlx_array{mx::reshape(a->a, std::move(shape)), a->turns};
        else /* of what repeats in memory there is no view but of a copy */
            *out = new qn_mlx_array{mx::as_strided(mx::contiguous(a->a), std::move(shape),
                                                   mx::Strides(strides, strides + n_dims),
                                                   static_cast<size_t>(offset)),
                                    nullptr};
    });
}

static qn_status array_largest(const qn_mlx_array *a, qn_mlx_array **out)
{
    return guarded([&] { *out = new qn_mlx_array{mx::astype(mx::argmax(a->a, 1), mx::int32), nullptr}; });
}

static qn_status array_cast(const qn_mlx_array *a, qn_dtype dtype, qn_mlx_array **out)
{
    return guarded([&] { *out = new qn_mlx_array{mx::astype(a->a, qn::dtype_of(dtype)), nullptr}; });
}

static int array_is_narrow(const qn_mlx_array *a)
{
    return a->a.dtype() == mx::float16 || a->a.dtype() == mx::bfloat16;
}

static qn_status array_read(const qn_mlx_array *a, qn_dtype dtype, void *data, size_t size_bytes)
{
    return guarded([&] {
        mx::array whole = mx::astype(a->a, qn::dtype_of(dtype));
        whole.eval(); /* a copy would wait for all that was begun since */
        if (!whole.flags().row_contiguous) {
            whole = mx::contiguous(whole);
            whole.eval();
        }
        if (whole.nbytes() < size_bytes)
            throw qn::failure(QN_E_INTERNAL, "an array of " + std::to_string(whole.nbytes()) +
                                                 " bytes where " + std::to_string(size_bytes) +
                                                 " are wanted");
        qn::copy_to_host(whole, data, size_bytes);
    });
}

static void array_free(qn_mlx_array *a)
{
    delete a;
}

static qn_status eval(int64_t n, qn_mlx_array *const *arrays, int64_t n_states, qn_mlx_state *const *states,
                      int async)
{
    return guarded([&] {
        std::vector<mx::array> all;
        for (int64_t i = 0; i < n; i++) all.push_back(arrays[i]->a);
        for (int64_t i = 0; i < n_states; i++)
            for (const auto *of : {&states[i]->keys, &states[i]->values, &states[i]->slots})
                all.insert(all.end(), of->begin(), of->end());
        if (async)
            mx::async_eval(std::move(all));
        else
            mx::eval(std::move(all));
    });
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static mx::array prim_none(const qn::call &)
{
    throw qn::failure(QN_E_INTERNAL, "a view is no step");
}

static mx::array prim_element(const qn::call &c)
{
    const std::vector<mx::array> in = qn::together(c);
    return qn::elementwise(c.step.prim, in[0], in.size() > 1 ? &in[1] : nullptr);
}

static qn::prim_fn *const table[QN_PRIM_COUNT] = {
#define S(name) prim_none,
#define E(name, inputs) prim_element,
#define P(name, rows) qn::prim_##name,
#include "prim/primitives.def"
};

const char *const qn_prim_names[QN_PRIM_COUNT] = {
#define S(name) #name,
#define E(name, inputs) #name,
#define P(name, rows) #name,
#include "prim/primitives.def"
};

/* Primitives that take narrow inputs as they are; others get them in f32. */
static bool takes_narrow(qn_prim prim)
{
    switch (prim) {
    case QN_PRIM_FUSED:
    case QN_PRIM_COPY:
    case QN_PRIM_SELECT:
    case QN_PRIM_CONCAT:
    case QN_PRIM_TAKE:
    case QN_PRIM_RMS_NORM:
    case QN_PRIM_LAYER_NORM:
    case QN_PRIM_ROPE_TABLE:
    case QN_PRIM_ROPE:
    case QN_PRIM_MATMUL:
    case QN_PRIM_ATTEND:
    case QN_PRIM_EXPERTS:
    case QN_PRIM_EXPERTS_SUM:
        return true;
    default:
        return table[prim] == prim_element;
    }
}

/* Additions to a narrow array give a narrow one. */
static bool stays_narrow(const qn_mlx_step *step)
{
    return step->prim == QN_PRIM_LORA || step->prim == QN_PRIM_EXPERTS_LORA;
}

/* The inputs of a step in f32, where they are narrow. */
struct widened {
    std::vector<qn_mlx_array> arrays;
    std::vector<qn_mlx_array *> in;

    widened(const qn_mlx_step *step, mx::Dtype narrow)
    {
        arrays.reserve(static_cast<size_t>(step->n_in)); /* pointers to them stay */
        for (int i = 0; i < step->n_in; i++) {
            qn_mlx_array *a = step->in[i];
            if (a && a->a.dtype() == narrow) {
                arrays.push_back({mx::astype(a->a, mx::float32), nullptr});
                a = &arrays.back();
            }
            in.push_back(a);
        }
    }
};

static qn_status apply(const qn_mlx_step *given, qn_mlx_array **out)
{
    return guarded([&] {
        qn_mlx_step step = *given;
        qn::call c{step, qn::shape_of(step.n_dims, step.shape), qn::dtype_of(step.dtype), std::nullopt};
        std::optional<mx::Dtype> narrow;
        if (step.narrow == QN_DTYPE_F16 || step.narrow == QN_DTYPE_BF16) narrow = qn::dtype_of(step.narrow);
        std::optional<widened> wide;
        bool was_narrow = false;
        if (narrow && takes_narrow(step.prim)) {
            c.narrow = narrow;
        } else if (narrow) {
            was_narrow = stays_narrow(given) && given->in[1] && given->in[1]->a.dtype() == *narrow;
            wide.emplace(given, *narrow);
            step.in = wide->in.data();
        }
        int64_t elements = 1;
        for (int i = 0; i < step.n_dims; i++) elements *= step.shape[i];
        c.room(elements, mx::size_of(c.dtype));
        std::unique_ptr<qn_mlx_array> made(new qn_mlx_array{table[step.prim](c), nullptr});
        mx::array &result = made->a;
        if (result.shape() != c.shape || (result.dtype() != c.dtype && !(c.narrow && c.dtype == mx::float32 &&
                                                                         result.dtype() == *c.narrow)))
            throw qn::failure(QN_E_INTERNAL,
                              std::string(qn_prim_names[step.prim]) + " gave another shape or type");
        if (was_narrow) result = mx::astype(result, *narrow);
        if (c.narrow && step.prim == QN_PRIM_ROPE_TABLE) made->turns = qn::turns_of(c);
        *out = made.release();
    });
}

static void memo_free(qn_mlx_memo *m)
{
    delete m;
}

/* ---- the process's MLX -------------------------------------------------------------------------------- */

/* Metal's key. A GPU of another back end says what it has in all, of which nine tenths are taken. */
static size_t recommended_bytes()
{
    size_t bytes = 0;
    guarded([&] {
        if (!qn::on_gpu()) return;
        const auto &info = mx::gpu::device_info(0);
        const auto find = [&](const char *key) -> size_t {
            const auto at = info.find(key);
            if (at == info.end()) return 0;
            const size_t *n = std::get_if<size_t>(&at->second);
            return n ? *n : 0;
        };
        bytes = find("max_recommended_working_set_size");
        if (!bytes) bytes = find("total_memory") / 10 * 9;
    });
    return bytes;
}

static qn_mlx_about about()
{
    int major = 0, minor = 0, patch = 0;
    std::sscanf(mx::version(), "%d.%d.%d", &major, &minor, &patch);
    static const std::string name = std::string("MLX ") + mx::version();
    const char *set = !qn::on_gpu() ? "mlx_cpu" : qn::on_cuda() ? "cuda" : "metal";
    return {MLX_VERSION_NUMERIC, 100000 * major + 1000 * minor + patch, qn::on_gpu(), set, name.c_str(),
            recommended_bytes()};
}

static const char *error()
{
    return qn::error_text;
}

/* MLX asks for the folder of its kernels whenever it makes one, so the variable is this until the end. */
static std::optional<std::string> folder_before;
static bool has_folder;

static void take_folder(const char *folder)
{
    const char *before = std::getenv("TMPDIR");
    folder_before = before ? std::optional<std::string>(before) : std::nullopt;
    has_folder = true;
    setenv("TMPDIR", folder, 1);
}

static void give_folder_back()
{
    if (has_folder && folder_before)
        setenv("TMPDIR", folder_before->c_str(), 1);
    else if (has_folder)
        unsetenv("TMPDIR");
    has_folder = false;
}

/* One for the process, for whatever thread calls: MLX starts a thread for each stream on the CPU, and ends
 * none. */
static mx::Stream the_stream()
{
    const mx::Device device(qn::on_gpu() ? mx::Device::gpu : mx::Device::cpu);
#if MLX_VERSION_NUMERIC < 32000
    static const mx::Stream stream = mx::new_stream(device);
#else
    static const mx::Stream stream = mx::new_thread_unsafe_stream(device);
#endif
    return stream;
}

static qn_status begin(int compile, const char *folder)
{
    return guarded([&] {
        setenv("MLX_ENABLE_TF32", "0", 0); /* or the newest GPUs round f32 to 10 bits to multiply it */
        /* or the CUDA back end fails for ever once it has seen some hundred shapes */
        setenv("MLX_ENABLE_CACHE_THRASHING_CHECK", "0", 0);
        mx::set_default_device(the_stream().device);
        mx::set_default_stream(the_stream());
        qn::compiles = compile != 0;
        if (compile && folder) take_folder(folder);
    });
}

static void end()
{
    guarded([] {
        mx::synchronize();
        mx::clear_cache();
    });
    give_folder_back();
}

static qn_mlx_memory memory()
{
    return {mx::get_active_memory(), mx::get_peak_memory(), mx::get_cache_memory()};
}

static void set_limits(size_t memory_bytes, size_t cache_bytes, size_t wired_bytes)
{
    guarded([&] {
        if (memory_bytes != SIZE_MAX) mx::set_memory_limit(memory_bytes);
        if (cache_bytes != SIZE_MAX) mx::set_cache_limit(cache_bytes);
        if (wired_bytes != SIZE_MAX && qn::on_gpu()) mx::set_wired_limit(wired_bytes);
    });
}

/* wait: for what is computed, whose memory comes to the cache behind it. */
static void clear_cache(int wait)
{
    guarded([&] {
        if (wait) mx::synchronize();
        mx::clear_cache();
    });
}

extern "C" __attribute__((visibility("default"))) const qn_mlx_shim *qn_mlx_shim_get(void)
{
    static const qn_mlx_shim shim = {
        QN_MLX_SHIM_VERSION,
        about,
        error,
        begin,
        end,
        memory,
        set_limits,
        clear_cache,
        array_new,
        array_view,
        array_read,
        array_largest,
        array_cast,
        array_is_narrow,
        array_free,
        eval,
        apply,
        memo_free,
        qn::weight_new,
        qn::weight_bytes,
        qn::weight_type,
        qn::weight_is_quantised,
        qn::weight_free,
        qn::state_new,
        qn::state_free,
        qn::state_bytes,
        qn::state_spare,
        qn::state_drop,
        qn::state_shrink,
        qn::state_copy,
        qn::state_read,
        qn::state_write,
    };
    return &shim;
}
