/* A limit on this process's memory (ulimit -v, ulimit -d), found out before those libraries meet it
 * that cannot say so: OpenMP ends the program with words of its own, MPI's start and oneDNN, where
 * it makes its kernels, by a signal or never. Without a limit nothing here does anything. */
#ifndef ZF_DATA_ADDRESS_SPACE_H
#define ZF_DATA_ADDRESS_SPACE_H

#include <stddef.h>

/* Asks for the limit, and where there is one keeps memory together. A program's first call. */
void address_space_begin(void);
/* Starts OpenMP's threads, which otherwise start with their first work. */
void address_space_start_threads(void);
/* Where the limit leaves less than this for that, ends the program as zf_out_of_memory does. Asks
 * the system, which takes microseconds. */
void address_space_need(size_t bytes, const char *what);

#endif
