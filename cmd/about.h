/* What every program says of itself, and the status that it ends with. */
#ifndef ZF_CMD_ABOUT_H
#define ZF_CMD_ABOUT_H

#include "data/error.h"

#include <stdio.h>

/* Exit statuses, beside 0 and STOP_STATUS (cmd/stop.h). */
#define FAULT_STATUS 1 /* the one sentence on standard error says what */
#define USAGE_STATUS 2 /* it is about the command line */

/* --version: the program's version and commit, and the CUDA, MPI and BLAS that it has, a line
 * each. */
void about_print_version(const char *program);
/* Of a program that ends with this fault. */
int about_status(const struct zf_error *err);

#endif
