/* The LoRA adapters of a model on a device, by name. Each sequence uses one of them or none; a program has a
 * step for each matrix that some adapter changes, and finds each row's pair of factors by the adapter's id.
 *
 * Invariant: an id names one adapter from load to unload, and an adapter that is held is not unloaded. Names
 * and holds: any thread. Loading, unloading and everything about programs: the thread that owns the device.
 */
#ifndef QN_MODEL_ADAPTER_ADAPTERS_H
#define QN_MODEL_ADAPTER_ADAPTERS_H

#include "array/array.h"
#include "base/buf.h"
#include "model/adapter/adapter_config.h"
#include "model/config/config.h"
#include "model/weights/parameters.h"

enum { QN_ADAPTERS_MAX = 64, QN_ADAPTER_NAME_LENGTH = 64 };

typedef struct qn_adapters qn_adapters;

typedef struct {
    char name[QN_ADAPTER_NAME_LENGTH + 1];
    char *path; /* owned */
    qn_adapter_layout layout;
    float scale; /* the user's */
    int64_t n_matrices;
    int32_t rank; /* the largest */
    size_t size_bytes;
    uint64_t fingerprint; /* a hash of all factors, as they are used */
    int is_default;       /* qn_adapters_hold gives it to those who name none */
} qn_adapter_about;

/* All three must outlive *out. */
qn_status qn_adapters_new(qn_device *device, const qn_model_config *config, const qn_parameters *parameters,
                          qn_adapters **out);
/* Layers below border are computed on a second device, with these parameters: the factors of their matrices
 * lie there. Before the first adapter is loaded; both must outlive a. */
void qn_adapters_split(qn_adapters *a, int64_t border, qn_device *device, const qn_parameters *parameters);
/* No program that was built with it may live. NULL is accepted. */
void qn_adapters_free(qn_adapters *a);

/* Loads the adapter at path (adapter_file.h) as `name`; scale multiplies its own factor. Nobody can hold it
 * until it is shown, which is for when programs have its steps. notes get a line for what might surprise.
 * QN_E_ARG: the name is taken or none, or the scale; QN_E_FULL: QN_ADAPTERS_MAX are loaded; QN_E_NOMEM: the
 * ledger's limit. */
qn_status qn_adapters_load(qn_adapters *a, const char *name, const char *path, float scale, qn_buf *notes,
                           int32_t *id);
/* is_default: what qn_adapters_hold gives to those who name none. */
void qn_adapters_show(qn_adapters *a, int32_t id, int is_default);
/* Takes one away that was loaded and not shown. */
void qn_adapters_drop(qn_adapters *a, int32_t id);
/* QN_E_NOT_FOUND: no such name is shown; QN_E_ARG: it is held. */
qn_status qn_adapters_unload(qn_adapters *a, const char *name);

/* The id of a name, to be given back by qn_adapters_release; name NULL: the default one, or none (-1) where
 * there is none; "none": -1. QN_E_NOT_FOUND lists the names. */
qn_status qn_adapters_hold(qn_adapters *a, const char *name, int32_t *id);
/* Name (QN_ADAPTER_NAME_LENGTH + 1 bytes) and fingerprint of an id that is held. */
void qn_adapters_identify(qn_adapters *a, int32_t id, char *name, uint64_t *fingerprint);
/* One more hold of an id that is held; -1 is accepted. */
void qn_adapters_retain(qn_adapters *a, int32_t id);
/* -1 is accepted. */
void qn_adapters_release(qn_adapters *a, int32_t id);
/* The i-th of those that are shown, in the order of their ids; path is the caller's (qn_free).
 * QN_E_NOT_FOUND (without a message): there are not so many. */
qn_status qn_adapters_about(qn_adapters *a, int64_t i, qn_adapter_about *out);

/* 1: what is loaded needs steps that the programs built last lack, or they have some and nothing is loaded.
 */
int qn_adapters_want_programs(const qn_adapters *a);
/* Programs are built anew from here on. */
void qn_adapters_begin_programs(qn_adapters *a);
/* [QN_ADAPTERS_MAX], by id, for the step of a matrix; NULL: no adapter that is loaded changes it. */
const qn_lora_pair *qn_adapters_pairs(qn_adapters *a, qn_weight_role role, int64_t layer);
/* The same of a tensor that adapters change as a whole (adapter_changes.h): [*n_steps][QN_ADAPTERS_MAX]. */
const qn_lora_pair *qn_adapters_changes(qn_adapters *a, qn_weight_role role, int64_t layer, int *n_steps);
/* QN_E_UNSUPPORTED: the programs built since begin have no place for a matrix that an adapter changes
 * (message: which). */
qn_status qn_adapters_check_programs(const qn_adapters *a);

#endif
