/* The collectives that the trainer uses, over MPI's ranks.
 *
 * Alone, without mpirun, the program is one rank and MPI is never initialised: that would cost half
 * a second of start-up. All ranks call collectives in the same order. A failing MPI call ends the
 * program on all ranks with a sentence. */
#ifndef ZF_OFFLOAD_COMM_H
#define ZF_OFFLOAD_COMM_H

#include "data/error.h"

#include <stddef.h>

struct comm;

/* Finds out whether a launcher (mpirun, srun) started this process, and joins its peers. */
struct comm *comm_create(void);
/* One rank that knows of no others, whoever started the process. */
struct comm *comm_create_alone(void);
void comm_destroy(struct comm *c);

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);
/* Among the ranks on this machine that may run on the same cores: all of them, unless the launcher
 * bound each to cores of its own. */
int comm_core_rank(const struct comm *c);
int comm_core_size(const struct comm *c);

void comm_all_reduce_f32(struct comm *c, float *data, size_t n);  /* sums in place */
void comm_all_reduce_f64(struct comm *c, double *data, size_t n); /* sums in place */
double comm_max(struct comm *c, double value);                    /* the greatest of all ranks' */
/* Begins to sum n floats of all ranks into `result` on rank `root` alone; data and result stay
 * untouched until comm_reduce_finish, which waits for all that were begun. */
void comm_reduce_start(struct comm *c, const float *data, float *result, size_t n, int root);
void comm_reduce_finish(struct comm *c);
/* In place: rank r's bytes lie at data + offset[r] and end at offset[r + 1]; all get all. */
void comm_all_gather(struct comm *c, void *data, const size_t *offset);
void comm_broadcast(struct comm *c, void *data, size_t bytes, int root);
void comm_barrier(struct comm *c);

/* Whether all ranks succeeded. If any did not, every rank's err gets the sentence of the lowest
 * rank that failed, so that rank 0 can print it once and all can end with status 1. */
bool comm_all_ok(struct comm *c, bool ok, struct zf_error *err);

/* Ends all ranks at once with status 1, after this one printed the sentence: for a fault that the
 * others cannot be waiting for. */
_Noreturn void comm_abort(struct comm *c, const struct zf_error *err);

#endif
