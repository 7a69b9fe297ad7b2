#include "tests/engine/resident.h"

#include <stdio.h>

long qn_test_resident_kib(void)
{
    long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %ld kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}
