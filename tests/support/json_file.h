/* JSON files that tests read. What is missing or malformed fails the running test. */
#ifndef QUERN_TESTS_JSON_FILE_H
#define QUERN_TESTS_JSON_FILE_H

#include <jansson.h>

/* json_decref. */
json_t *qn_test_json(const char *path);
double qn_test_json_number(const json_t *from, const char *key);

#endif
