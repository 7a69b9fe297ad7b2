/* The kinds of models among the fixtures, by the names of their folders. */
#ifndef QUERN_TESTS_KINDS_H
#define QUERN_TESTS_KINDS_H

enum { QN_TEST_KINDS_MAX = 256, QN_TEST_KIND_BYTES = 64 };

typedef struct {
    char names[QN_TEST_KINDS_MAX][QN_TEST_KIND_BYTES];
    int n;
} qn_test_kind_list;

/* Those that must be known, whether they are there or not, then others that lie in models/ and that the
 * library takes, then all of families2/ that give logits, but for those that are listed as not supported. More
 * than fit end the program. */
void qn_test_kinds(qn_test_kind_list *l);

/* All of families2/ that are encoders, but for those that are listed as not supported. */
void qn_test_encoder_kinds(qn_test_kind_list *l);

/* A kind of families2/ that the library does not run yet, and why. */
typedef struct {
    const char *name, *missing;
} qn_test_waiting_kind;
extern const qn_test_waiting_kind qn_test_waiting_kinds[]; /* name NULL at the end */

/* What is tested of every kind: the test "LABELKIND" has the kind's name as its state. */
typedef struct {
    const char *label; /* "golden_" */
    void (*test)(void **state);
} qn_test_kind_row;
/* All rows of all kinds, kind by kind, into tests [n_rows * QN_TEST_KINDS_MAX]; returns how many. Once a
 * program: names stay with it. */
struct CMUnitTest;
int qn_test_kind_rows(int n_rows, const qn_test_kind_row *rows, struct CMUnitTest *tests);
/* The same of the kinds of a list, which must live as long as the program. */
int qn_test_rows_of(const qn_test_kind_list *kinds, int n_rows, const qn_test_kind_row *rows,
                    struct CMUnitTest *tests);

#endif
