/* Where tests find their files: golden fixtures and real models. All return paths in a static buffer per
 * thread that the eighth next call reuses. Tests run from the root of the repository. */
#ifndef QUERN_TESTS_FIXTURES_H
#define QUERN_TESTS_FIXTURES_H

/* The path of a fixture ("models/llama/config.json", "models/llama"), or NULL when it is absent. It is
 * looked for in QUERN_FIXTURES, when that is not set in ../shared/fixtures, then in the small set of
 * tests/golden. "models/NAME" is also found as families2/NAME, where the further families lie. */
const char *qn_test_fixture(const char *relative);
/* As above; when it is absent the running test ends as skipped, saying which file was missing. */
const char *qn_test_need_fixture(const char *relative);

/* A real model, "smollm2" or "gemma3-270m", as tools/fetch-models leaves it in the cache folder
 * ($QUERN_CACHE, else $XDG_CACHE_HOME/quern, else ~/.cache/quern), or NULL. */
const char *qn_test_model(const char *name);
/* As above; ends the test as skipped when the model is absent. */
const char *qn_test_need_model(const char *name);

/* Ends the running test as skipped, with one line that says why. */
void qn_test_leave_out(const char *why);

#endif
