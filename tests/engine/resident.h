/* What the process takes of the machine's memory. */
#ifndef QUERN_TESTS_RESIDENT_H
#define QUERN_TESTS_RESIDENT_H

/* KiB of memory that is no clean page of a file; 0 where the system does not tell. */
long qn_test_resident_kib(void);

#endif
