/* The figures of an engine and its scheduler (quern/figures.h). Any thread. */
#ifndef QN_ENGINE_CLIENTS_FIGURES_H
#define QN_ENGINE_CLIENTS_FIGURES_H

#include <quern/figures.h>

#include "engine/schedule/scheduler.h"

void qn_engine_get_figures(qn_engine *e, qn_scheduler *s, qn_figures *out);

#endif
