/* Status codes and the message of the last failure.
 *
 * What can fail returns a qn_status. The sentence that explains a failure is kept per thread until the next
 * failure on that thread; it names the file, field, tensor or value at fault and is fit to be shown to a
 * user. */
#ifndef QUERN_STATUS_H
#define QUERN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define QN_API __attribute__((visibility("default")))
#define QN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define QN_API
#define QN_PRINTF(fmt, args)
#endif

/* The one list of codes: X(name, text). */
#define QN_STATUS_LIST(X)             \
    X(OK, "success")                  \
    X(E_ARG, "invalid argument")      \
    X(E_NOMEM, "out of memory")       \
    X(E_IO, "input/output error")     \
    X(E_FORMAT, "malformed input")    \
    X(E_UNSUPPORTED, "not supported") \
    X(E_DEVICE, "device error")       \
    X(E_FULL, "no room left")         \
    X(E_CANCELLED, "cancelled")       \
    X(E_DEADLINE, "deadline passed")  \
    X(E_NOT_FOUND, "not found")       \
    X(E_CLOSED, "already closed")     \
    X(E_INTERNAL, "internal error")

typedef enum {
#define QN_STATUS_ENUM(name, text) QN_##name,
    QN_STATUS_LIST(QN_STATUS_ENUM)
#undef QN_STATUS_ENUM
} qn_status;

/* "QN_E_FORMAT". Static storage. */
QN_API const char *qn_status_name(qn_status status);
/* "malformed input". Static storage. */
QN_API const char *qn_status_text(qn_status status);
/* The sentence for the last failure on this thread; "" when there was none. Valid until the next failure on
 * this thread. */
QN_API const char *qn_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
