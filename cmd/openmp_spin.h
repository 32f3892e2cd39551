/* How long OpenMP's threads spin at the end of a parallel region before they sleep. */
#ifndef ZF_CMD_OPENMP_SPIN_H
#define ZF_CMD_OPENMP_SPIN_H

/* Called first in main: starts the program again, in the same process, with GOMP_SPINCOUNT set in
 * its environment, and so does not return; unless that or OMP_WAIT_POLICY is set already, or the
 * program cannot be started again. libgomp reads both as it is loaded, and never later. */
void openmp_spin_briefly(char **argv);

#endif
