#include "cmd/openmp_spin.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* libgomp's own count where it knows of more threads than processors: some ten microseconds, about
 * what a sleep costs. Its usual one, milliseconds, lets threads that wait take the processor from
 * the one that they wait for wherever another program, or another rank, wants it too. */
#define SPIN_COUNT "1000"

void openmp_spin_briefly(char **argv)
{
    char program[PATH_MAX] = "";
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (readlink("/proc/self/exe", program, sizeof program - 1) > 0 &&
        setenv("GOMP_SPINCOUNT", SPIN_COUNT, 0) == 0)
        execv(program, argv);
}
