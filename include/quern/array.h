/* Arrays: n-dimensional numbers with lazy operations, gradients and compiled programs.
 *
 * A qn_array is an immutable, counted handle: an element type, a shape, and either data or the operation that
 * will make it. Nothing is computed until somebody asks: qn_eval, or reading the data.
 *
 * Arrays are made inside a qn_scope, which owns every temporary, so that nothing has to be freed one by one,
 * and which keeps the first error: a function that gets NULL for an array returns NULL, so that code which
 * builds needs no check per line. What went wrong is told by qn_eval, by whatever reads data, and by
 * qn_scope_status. A scope and the arrays made in it belong to one thread at a time.
 *
 *     qn_scope *s;
 *     if (qn_scope_open(0, 0, &s) != QN_OK) return 1;
 *     qn_array *x = qn_arange(s, QN_DTYPE_F32, 0, 6, 1);
 *     printf("%s\n", qn_array_text(s, x));
 *     qn_scope_close(s);
 *
 * Shapes are written slowest dimension first, as in NumPy; no dimensions is a number. Where two arrays meet,
 * shapes are broadcast as NumPy does: aligned at the last dimension, and a dimension of size 1, or one that
 * is missing, is repeated. More, with programs that run: docs/arrays.md. */
#ifndef QUERN_ARRAY_H
#define QUERN_ARRAY_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_array qn_array;
typedef struct qn_scope qn_scope;

/* The most dimensions of an array. */
enum { QN_ARRAY_DIMS_MAX = 6 };

/* Opens a scope with a CPU device of its own. n_threads 0: one for each physical core that the process may
 * use. memory_limit_bytes 0: none; else what would pass it is refused with QN_E_NOMEM. */
QN_API qn_status qn_scope_open(int n_threads, size_t memory_limit_bytes, qn_scope **out);
/* The same with another device: "cpu", "cuda", "mlx" or "auto", NULL: "auto", as for qn_model_open.
 * QN_E_NOT_FOUND: there is none of this name; QN_E_UNSUPPORTED: it cannot be used here (message: why). */
QN_API qn_status qn_scope_open_on(const char *device, int n_threads, size_t memory_limit_bytes,
                                  qn_scope **out);

/* Zero or NULL: the default, in brackets. */
typedef struct {
    const char *device;               /* as for qn_scope_open_on ["auto"] */
    int n_threads;                    /* [one for each physical core that the process may use] */
    size_t memory_limit_bytes;        /* hard limit of arrays and programs in the host's memory [none] */
    size_t device_memory_limit_bytes; /* the same in a card's memory, where arrays are then [none] */
    size_t cache_limit_bytes; /* of freed memory that the device keeps for reuse [its own]; QN_KEEP_NOTHING */
    size_t wired_limit_bytes; /* of memory that the system keeps resident; devices with memory of their own */
} qn_scope_options;
/* The same with limits. QN_E_UNSUPPORTED: a wired limit on a device that has none (message: which). */
QN_API qn_status qn_scope_open_with(const qn_scope_options *options, qn_scope **out);
/* The limits of the scope's device from here on, as for qn_scope_options but that 0 keeps nothing and limits
 * nothing; the limit before goes into *old_bytes (may be NULL). All scopes of the device share them. */
QN_API void qn_scope_set_memory_limit(qn_scope *s, size_t limit_bytes, size_t *old_bytes);
/* The same for a card's memory, where its arrays and programs are. Other devices ignore it; *old_bytes is 0. */
QN_API void qn_scope_set_device_memory_limit(qn_scope *s, size_t limit_bytes, size_t *old_bytes);
QN_API void qn_scope_set_cache_limit(qn_scope *s, size_t limit_bytes, size_t *old_bytes);
/* Gives memory that is kept for reuse back to the system. */
QN_API void qn_scope_clear_cache(qn_scope *s);
/* The peak of qn_scope_memory begins again with what lives now. */
QN_API void qn_scope_reset_peak_memory(qn_scope *s);
/* A scope over the device of another one, whose arrays may be used here: for temporaries that go earlier.
 * NULL: out of memory. */
QN_API qn_scope *qn_scope_inner(qn_scope *outer);
/* Lets go of all arrays of the scope but those that are kept (qn_keep); the device goes with the last of its
 * scopes and arrays. Waits for what qn_eval_async began. NULL is accepted. */
QN_API void qn_scope_close(qn_scope *s);
/* The first error of this scope, QN_OK when there was none; its text becomes qn_last_error. */
QN_API qn_status qn_scope_status(qn_scope *s);
/* Forgets the error, so that the scope can be used again. Returns what qn_scope_status would have. */
QN_API qn_status qn_scope_recover(qn_scope *s);
/* How products are computed from here on: QN_PRECISION_HIGH unless set. It matters to quantised weights
 * alone. */
QN_API void qn_scope_precision(qn_scope *s, qn_precision precision);
/* Bytes of arrays and programs of the scope's device that live now, and the most that lived at once. Any of
 * the two may be NULL. */
QN_API void qn_scope_memory(qn_scope *s, size_t *live_bytes, size_t *peak_bytes);
/* The same of a card's memory; qn_scope_memory tells then what lies in the host's. 0 and 0: the device has no memory
 * of its own. */
QN_API void qn_scope_device_memory(qn_scope *s, size_t *live_bytes, size_t *peak_bytes);

/* A place in the life of a scope; qn_scope_sweep lets go of the arrays that were made since, but for keep[0],
 * .., keep[n_keep - 1] (NULL among them is passed over), which stay as if they were made before the mark.
 *
 *     int64_t mark = qn_scope_mark(s);
 *     for (int i = 0; i < 10000; i++) {
 *         x = qn_detach(s, step(s, x));
 *         qn_scope_sweep(s, mark, 1, &x);
 *     }
 */
QN_API int64_t qn_scope_mark(const qn_scope *s);
QN_API void qn_scope_sweep(qn_scope *s, int64_t mark, int n_keep, qn_array *const *keep);

/* One more reference, so that an array outlives its scope; NULL in gives NULL out. */
QN_API qn_array *qn_keep(qn_array *a);
/* One reference less. NULL is accepted. */
QN_API void qn_release(qn_array *a);

/* ---- what an array is --------------------------------------------------------------------------------- */

/* Of NULL QN_DTYPE_COUNT; the functions below give -1 for it. */
QN_API qn_dtype qn_array_dtype(const qn_array *a);
QN_API int qn_array_n_dims(const qn_array *a);
/* Size of dimension i; negative i counts from the end. -1: not known before the program runs (the rows of a
 * function that qn_compile compiles for all of them), or there is no such dimension. */
QN_API int64_t qn_array_dim(const qn_array *a, int i);
/* Number of elements; -1 where it is not known before the program runs. */
QN_API int64_t qn_array_size(const qn_array *a);
/* Bytes of an element; of a block type 0. */
QN_API size_t qn_dtype_size(qn_dtype dtype);
/* Names an array in traces and error messages. Returns a. */
QN_API qn_array *qn_label(qn_scope *s, qn_array *a, const char *name);

/* ---- creation ----------------------------------------------------------------------------------------- */

/* Copies the elements, in row-major order, of any plain type. */
QN_API qn_array *qn_from_data(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims, const void *data);
/* A number, as f32. Beside an array of a floating type it takes that array's type: see qn_promote. */
QN_API qn_array *qn_scalar(qn_scope *s, float value);
/* value is cast as qn_astype says. All elements share one place in memory until somebody needs them apart. */
QN_API qn_array *qn_full(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims, double value);
QN_API qn_array *qn_zeros(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims);
QN_API qn_array *qn_ones(qn_scope *s, qn_dtype dtype, int n_dims, const int64_t *dims);
/* start, start + step, .. before stop: ceil((stop - start) / step) elements, each start + i * step computed
 * in f64 and then cast. QN_E_ARG: step is 0, or a bound is no number. */
QN_API qn_array *qn_arange(qn_scope *s, qn_dtype dtype, double start, double stop, double step);
/* n numbers at equal distances from start to stop, which is the last one; n 1: start. */
QN_API qn_array *qn_linspace(qn_scope *s, qn_dtype dtype, double start, double stop, int64_t n);
/* [rows, columns] with ones where column - row == diagonal, zeros elsewhere. */
QN_API qn_array *qn_eye(qn_scope *s, qn_dtype dtype, int64_t rows, int64_t columns, int64_t diagonal);

/* ---- element types ------------------------------------------------------------------------------------ */

/* The type in which two types meet: every operation on two arrays casts both to it first. It is MLX's table:
 * bool gives way to all; of two types of one kind the wider; signed and unsigned integers meet in the signed
 * type that holds both (u8 and i8: i16), and u64 with a signed type in f32; an integer beside a float takes
 * the float's type (unlike in NumPy, where i32 and f32 give f64); f16 and bf16 meet in f32; f64 wins. A
 * number made by qn_scalar is weak: it takes the other's type where that is a float, and makes an f32 of
 * integers. A block type counts as f32. */
QN_API qn_dtype qn_promote(qn_dtype a, qn_dtype b);
/* Another plain type. To an integer from a float: cut toward zero, then the nearest that the type holds; NaN
 * gives 0. Between integers: the low bits, in two's complement. To a float: the nearest, ties to even; what
 * is too large becomes infinity. To bool: 1 where the element is not 0 (NaN: 1). A quantised array can only
 * be cast to f32: qn_dequantise is what to call. */
QN_API qn_array *qn_astype(qn_scope *s, qn_array *a, qn_dtype dtype);

/* ---- computing ---------------------------------------------------------------------------------------- */

/* Computes n arrays (NULL among them: the scope's error is returned); afterwards they hold data and no longer
 * remember what they were made of, so gradients through them end there. What both need is computed once. */
QN_API qn_status qn_eval(qn_scope *s, int n, qn_array *const *arrays);

/* Begins to compute n arrays and returns before they are there; a thread of the scope goes on. They may be
 * used at once: whoever needs their data waits. A device has one stream, the default one: the work of all its
 * scopes is done in the order in which it was begun. An error in planning it is returned at once; one of the
 * work itself is told by the next qn_eval, or whatever else wants data, and what was begun behind it is not
 * computed. */
QN_API qn_status qn_eval_async(qn_scope *s, int n, qn_array *const *arrays);
/* a, computed, and so without the memory of what it was made of: the memory of a loop of x = f(x) stays flat
 * with it (and qn_scope_sweep). No gradient goes through it. */
QN_API qn_array *qn_detach(qn_scope *s, qn_array *a);
/* The same numbers without computing anything: gradients and tangents take them for constants. */
QN_API qn_array *qn_stop_gradient(qn_scope *s, qn_array *a);

/* ---- data --------------------------------------------------------------------------------------------- */

/* The elements of an array: element [i0, i1, ..] lies at data + i0 * strides[0] + i1 * strides[1] + .., in
 * elements. Strides may be 0 (repeated) or negative. */
typedef struct {
    const void *data;
    qn_dtype dtype;
    int n_dims;
    int64_t dims[QN_ARRAY_DIMS_MAX], strides[QN_ARRAY_DIMS_MAX];
} qn_view;

/* Shows an array's data, computed first if need be. Views of data (a transpose, a slice, a broadcast, ..) are
 * shown in place: nothing is copied. Valid while the array lives. */
QN_API qn_status qn_array_view(qn_scope *s, qn_array *a, qn_view *out);
/* Row-major data, valid while the array lives. NULL: the array is not computed yet, or computing it failed
 * (then the scope has the error), or it is quantised. */
QN_API const void *qn_array_data(const qn_array *a);
/* Writes all elements into out[0..n) in row-major order, cast to dtype. Computes the array if need be.
 * QN_E_ARG: n is not the number of elements. */
QN_API qn_status qn_array_read(qn_scope *s, qn_array *a, qn_dtype dtype, void *out, int64_t n);
/* The only element of an array of one. */
QN_API qn_status qn_array_item(qn_scope *s, qn_array *a, double *out);
/* The same for integers, which f64 may not hold; a float is cast as by qn_astype. */
QN_API qn_status qn_array_item_i64(qn_scope *s, qn_array *a, int64_t *out);
/* Element [index[0], index[1], ..]; negative indices count from the end. */
QN_API qn_status qn_array_at(qn_scope *s, qn_array *a, const int64_t *index, double *out);

/* Walks over the elements of a view in row-major order.
 *
 *     qn_iterator it;
 *     qn_iterator_begin(&it, &view);
 *     for (const float *x; (x = qn_iterator_next(&it));) sum += *x;
 */
typedef struct {
    const qn_view *view;
    int64_t left, index[QN_ARRAY_DIMS_MAX]; /* elements still to come; where the next one is */
    const char *at;
} qn_iterator;
QN_API void qn_iterator_begin(qn_iterator *it, const qn_view *view);
/* The next element, NULL behind the last one. */
QN_API const void *qn_iterator_next(qn_iterator *it);

/* The array as text, as NumPy would show it, with shape and type: "array([[1, 2],\n       [3, 4]], shape=[2,
 * 2], dtype=f32)". Of more than 1,000 elements only the first and last three along each dimension are shown.
 * Computes the array if need be. The text belongs to the scope and goes with it, or with the next
 * qn_scope_sweep. NULL in, or an error: "null". */
QN_API const char *qn_array_text(qn_scope *s, qn_array *a);

/* ---- differentiation: builds more of the graph -------------------------------------------------------- */

/* Of arrays. wrt are taken as independent: what they were made of is not looked at. Arrays that were computed
 * are constants: differentiate first, evaluate then. QN_E_UNSUPPORTED names an operation without a
 * derivative, or a quantised weight among wrt.
 *
 * Gradients of sum(of * cotangent) with respect to n arrays: out[i] has the shape of wrt[i]; NULL where `of`
 * does not depend on it. cotangent NULL: ones, and then `of` must have one element. */
QN_API qn_status qn_vjp(qn_scope *s, qn_array *of, qn_array *cotangent, int n, qn_array *const *wrt,
                        qn_array **out);
/* The change of `of` when wrt[i] changes by tangents[i] (NULL: not at all); *out is NULL when it is zero. */
QN_API qn_status qn_jvp(qn_scope *s, qn_array *of, int n, qn_array *const *wrt, qn_array *const *tangents,
                        qn_array **out);

/* A function of arrays, for what follows: makes out[0..n_out) of in[0..n_in) in the scope s and returns
 * qn_scope_status(s), or a failure of its own. */
typedef qn_status qn_function(void *user, qn_scope *s, int n_in, qn_array *const *in, int n_out,
                              qn_array **out);

/* Calls fn, and gives the gradients of out[0], which must have one element, with respect to the inputs number
 * argnums[0..n_argnums): grads[i] is of in[argnums[i]], zeros where out[0] does not depend on it. */
QN_API qn_status qn_value_and_grad(qn_scope *s, qn_function *fn, void *user, int n_in, qn_array *const *in,
                                   int n_argnums, const int *argnums, int n_out, qn_array **out,
                                   qn_array **grads);
/* Calls fn, but what it makes on its way is not kept for a gradient: it is computed once more when the
 * gradient comes to it. Gradients keep their bits and need less memory. */
QN_API qn_status qn_checkpoint(qn_scope *s, qn_function *fn, void *user, int n_in, qn_array *const *in,
                               int n_out, qn_array **out);

/* Makes grads[i], the gradient with respect to in[i] (NULL: zero), of the cotangent of out. */
typedef qn_status qn_gradient_function(void *user, qn_scope *s, int n_in, qn_array *const *in, qn_array *out,
                                       qn_array *cotangent, qn_array **grads);
enum { QN_CUSTOM_INPUTS_MAX = 32 };
/* Calls fn, which makes one array; its gradient is what `gradient` says, whatever it was made of. user is
 * handed to both and must live as long as gradients are asked for. Tangents still come from what fn does. */
QN_API qn_array *qn_custom_gradient(qn_scope *s, qn_function *fn, qn_gradient_function *gradient, void *user,
                                    int n_in, qn_array *const *in);

/* ---- compiled functions ------------------------------------------------------------------------------- */

typedef struct qn_compiled qn_compiled;

typedef struct {
    /* 1: one program for all sizes of the first dimension of those inputs that have one, all of which must
     * agree in it; else a program for each combination of shapes and types. */
    int shapeless;
    /* shapeless: bit i set for an input whose shape never changes (input 32 and above always may) */
    uint32_t fixed_inputs;
    /* shapeless: the most rows; a call with more is QN_E_ARG. 0: the program is planned anew, for twice as
     * many, when more come. */
    int64_t max_rows;
    int max_programs; /* kept at most; the one that was not called for longest goes. 0: 32 */
} qn_compile_options;

/* A function that is traced once for inputs of some shapes, and replayed as one program from then on: steps
 * are fused, and memory is planned once. fn may make the whole of a training step, gradients included. Where
 * it reads other arrays than its inputs, their values at that time are part of the program. While it is
 * traced its inputs have no values: asking for data is an error, and with shapeless their first dimension is
 * -1. fn and user
 * must live as long as the compiled function, which may outlive the scope. options NULL: all zero. */
QN_API qn_status qn_compile(qn_scope *s, qn_function *fn, void *user, int n_out,
                            const qn_compile_options *options, qn_compiled **out);
/* Computes out[0..n_out), which are data of the scope s from then on. Inside a function that is being
 * compiled, fn becomes part of that. */
QN_API qn_status qn_compiled_call(qn_compiled *c, qn_scope *s, int n_in, qn_array *const *in, qn_array **out);
QN_API void qn_compiled_free(qn_compiled *c);

/* Since qn_compile: how often it was called, fn was traced, programs were planned; how many are kept. */
typedef struct {
    int64_t n_calls, n_traces, n_plans, n_kept;
} qn_compiled_figures;
QN_API qn_compiled_figures qn_compiled_get_figures(const qn_compiled *c);

/* ---- files -------------------------------------------------------------------------------------------- */

/* A safetensors file of arrays by name. The file is mapped: an array's bytes are read when they are used,
 * from the page cache, and are not copied. It must not change while arrays of it live. */
typedef struct qn_array_file qn_array_file;

/* QN_E_IO, QN_E_FORMAT, QN_E_NOMEM; the message begins with the path. */
QN_API qn_status qn_array_file_open(const char *path, qn_array_file **out);
/* Arrays that were made of it live on. NULL is accepted. */
QN_API void qn_array_file_close(qn_array_file *f);
QN_API int64_t qn_array_file_count(const qn_array_file *f);
/* Of array i in [0, count), in the file's order; lives as long as the file is open. */
QN_API const char *qn_array_file_name(const qn_array_file *f, int64_t i);
/* What the file says of itself under a key; NULL: nothing. */
QN_API const char *qn_array_file_metadata(const qn_array_file *f, const char *key);
/* QN_E_NOT_FOUND: no such array; QN_E_UNSUPPORTED: of a type (f8 and such) or with more dimensions than
 * arrays have. */
QN_API qn_array *qn_array_file_get(qn_scope *s, const qn_array_file *f, const char *name);
/* Writes n arrays, computed if need be, of any plain type, to a file, which appears under its name when it is
 * complete. metadata: n_metadata pairs of key and value, one behind the other; NULL with 0. */
QN_API qn_status qn_save_safetensors(qn_scope *s, const char *path, int64_t n, const char *const *names,
                                     qn_array *const *arrays, int64_t n_metadata,
                                     const char *const *metadata);

#ifdef __cplusplus
}
#endif

#include <quern/array_ops.h>

#endif
