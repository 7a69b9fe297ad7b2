/* The steps of `quern doctor`: each looks at one part of a model, says what it found, and leaves what later
 * steps need. A step that cannot go on says why and what to do; the others go on with what there is. Main
 * thread. */
#ifndef QN_CLI_DOCTOR_DOCTOR_H
#define QN_CLI_DOCTOR_DOCTOR_H

#include "base/buf.h"
#include "cli/options/options.h"
#include "engine/machine/engine.h"
#include "engine/machine/examine.h"
#include "format/source/source.h"

typedef enum { QN_FOUND_OK, QN_FOUND_WARNING, QN_FOUND_FAILURE, QN_FOUND_SKIPPED, QN_FOUND_COUNT } qn_found;

typedef struct {
    const char *path;
    qn_load_options *load;
    int32_t max_tokens; /* that the last step generates */
    int json;

    /* What was found. */
    const char *step; /* at work */
    int64_t n_found[QN_FOUND_COUNT];
    qn_buf findings;  /* as JSON, in an open list */
    qn_buf figures;   /* further members of the JSON object, in an open object */
    qn_status status; /* of writing; out of memory */

    /* What steps leave for others. */
    qn_source *source; /* NULL: it does not open at all */
    int has_weights;   /* the source's tensors can be read */
    qn_model_config config;
    int has_config;
    qn_examination weights;
    int has_checked_weights;
    int has_tokenizer;
    int has_device; /* the device of the options can be used */
    int fits;       /* weights and some context are expected to fit into memory */
} qn_doctor;

/* Reports a finding of the step at work. next: what to do about it; NULL where there is nothing to do. */
void qn_doctor_say(qn_doctor *d, qn_found found, const char *next, const char *fmt, ...) QN_PRINTF(4, 5);
/* The thread's message as a failure of the step. */
void qn_doctor_fail(qn_doctor *d, const char *next);

/* In the order in which they are run. */
void qn_doctor_files(qn_doctor *d);
void qn_doctor_config(qn_doctor *d);
void qn_doctor_weights(qn_doctor *d);
void qn_doctor_tokenizer(qn_doctor *d);
void qn_doctor_template(qn_doctor *d);
void qn_doctor_devices(qn_doctor *d);
void qn_doctor_memory(qn_doctor *d);
void qn_doctor_compute(qn_doctor *d);

#endif
