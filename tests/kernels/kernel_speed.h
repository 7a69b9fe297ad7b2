/* How fast each kernel is, beside what the machine can do at that moment: kernel_check --speed. */
#ifndef QUERN_TESTS_KERNEL_SPEED_H
#define QUERN_TESTS_KERNEL_SPEED_H

/* Prints a line for each kernel and shape; argv: the options behind --speed. Returns the program's exit
 * status. */
int qn_test_kernel_speed(int argc, char **argv);

#endif
