/* The library of a device that is opened at run time: libquern-cuda.so, libquern-mlx.so. */
#ifndef QN_DEVICE_LIBRARY_H
#define QN_DEVICE_LIBRARY_H

/* As dlopen; it stays open, and dlerror has the reason of NULL. Looks beside this code, in ../lib of it, then where
 * the loader looks. The variable of the environment, if set, names the one file that is tried instead. *is_there
 * (may be NULL) 0: no such library is installed. */
void *qn_device_library_open(const char *name, const char *variable, int *is_there);

#endif
