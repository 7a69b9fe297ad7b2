/* Files whose tensors are numbers of a formula, which tools/adapter_forms_golden.py has too: golden files hold names and
 * shapes alone. Failures end the running test. */
#ifndef QUERN_TESTS_FORMULA_H
#define QUERN_TESTS_FORMULA_H

#include <jansson.h>
#include <stdint.h>

/* Writes a safetensors file of a list of [name, shape, add, amplitude]; prefix goes before the names, and the formula
 * counts tensors from `first` on. */
void qn_test_formula_tensors(const char *path, const char *prefix, const json_t *tensors, int64_t first);
/* Writes folder/name. */
void qn_test_formula_json(const char *folder, const char *name, const json_t *value);
/* A new folder with an adapter in PEFT's layout, of the fields "config" and "tensors". */
const char *qn_test_formula_adapter(const json_t *form);

#endif
