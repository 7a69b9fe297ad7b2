/* What tests of answers share: an answer taken apart, written as one text, at every cut. A failure ends the
 * running test. */
#ifndef QUERN_TESTS_ANSWER_TEXT_H
#define QUERN_TESTS_ANSWER_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "text/tools/tool_calls.h"

/* Tools "look" (city, zip, days) and "see" (a to e, whose types are written in several ways). Freed when the
 * program ends. */
const json_t *qn_test_tools(void);
/* Options with these tools; prompt may be NULL. */
qn_answer_options qn_test_answer_options(qn_answer_format format, const char *prompt);
/* What a template with this text writes. */
qn_answer_format qn_test_format_of(const char *evidence);
/* Events as one text, neighbours joined: "text|think:...|bad:...|call INDEX NAME ID {...}"; "..." stands behind
 * arguments that break off. seed 0: fed whole; else in pieces of random size. Freed with qn_free. */
char *qn_test_answer(const qn_answer_options *o, const char *text, size_t n, uint64_t seed);
/* The answer is `want`, however it is cut. */
void qn_test_expect_answer(const qn_answer_options *o, const char *text, const char *want);

#endif
