/* The collectives that the trainer uses, over MPI's ranks: on host memory by MPI, on a device's
 * memory by NCCL or MPI.
 *
 * Alone, without mpirun, the program is one rank and MPI is never initialised: that would cost half
 * a second of start-up. All ranks call collectives in the same order, with the same sizes and
 * roots. Sums of floats have the same bits in every run of as many ranks. A failing call ends the
 * program on all ranks with a sentence. */
#ifndef ZF_OFFLOAD_COMM_COMM_H
#define ZF_OFFLOAD_COMM_COMM_H

#include "data/error.h"

#include <stddef.h>

/* The MPI library, "Open MPI 4.1.4". Needs no communicator. */
const char *comm_library(void);

struct comm;
struct device;
struct stream;

/* Finds out whether a launcher (mpirun, srun) started this process, and joins its peers. */
struct comm *comm_create(void);
/* One rank that knows of no others, whoever started the process. */
struct comm *comm_create_alone(void);
/* Rank 0 of so many that are only planned: nobody else is there. Collectives move nothing, and on a
 * device that only counts (model/plan/plan.h) take the time that they would. Sums are as if all
 * ranks had this one's values. */
struct comm *comm_create_planned(int ranks, int ranks_per_host);
void comm_destroy(struct comm *c);

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);
/* Among the ranks on this machine. */
int comm_local_rank(const struct comm *c);
int comm_local_size(const struct comm *c);
/* Among the ranks on this machine that may run on the same cores: all of them, unless the launcher
 * bound each to cores of its own. */
int comm_core_rank(const struct comm *c);
int comm_core_size(const struct comm *c);
/* Of those, among the ranks that give the same key. Collective. */
void comm_core_peers(struct comm *c, int key, int *rank, int *size);
/* Threads for this rank: OMP_NUM_THREADS, else its share of those cores. */
int comm_core_threads(const struct comm *c);

void comm_all_reduce_f32(struct comm *c, float *data, size_t n);  /* sums in place */
void comm_all_reduce_f64(struct comm *c, double *data, size_t n); /* sums in place */
double comm_max(struct comm *c, double value);                    /* the greatest of all ranks' */
void comm_broadcast(struct comm *c, void *data, size_t bytes, int root);
/* all: (size, bytes), each rank's in turn */
void comm_all_gather(struct comm *c, const void *mine, void *all, size_t bytes);
void comm_barrier(struct comm *c);

/* Collectives on a device's memory, in the order of a stream: they begin when what was put on the
 * stream before them is done, and what is put on it after them sees their result. With one rank
 * they do nothing. */

/* Chooses how, once, before the functions below; collective. NCCL where each rank of a machine has
 * a CUDA device of its own, else MPI: straight from memory that is the host's (device->unified),
 * through pinned host buffers otherwise. The environment's ZF_COMM=mpi rules NCCL out. The device
 * outlives the communicator; attaching another device replaces the first. */
void comm_attach(struct comm *c, struct device *device);
/* "NCCL", "MPI", "MPI through host memory", or "none" with one rank. */
const char *comm_device_transport(const struct comm *c);

/* Bytes of device memory to leave to it: an allowance for NCCL, less what it has taken already; no
 * other takes any. A plan's ranks exchange by NCCL unless their device is a CPU. */
size_t comm_device_allowance(const struct comm *c);

void comm_device_all_reduce(struct comm *c, struct stream *s, float *data, size_t n); /* in place */
/* An array that is divided over the ranks. Parts are equal, so that each array is one call,
 * however many ranks there are: where `bytes` do not divide, the array has room behind it for the
 * rest of size x part, which travels with it and means nothing. */
struct comm_shares {
    void *data;
    const void *own; /* where this rank's part comes from; NULL: it is in its place */
    size_t bytes;
    size_t part; /* rank r's are [r part, (r + 1) part) */
    int owner;   /* of an array that is one rank's, and has no parts; else COMM_DIVIDED */
};
#define COMM_DIVIDED (-1)
/* All get all of n arrays, together. */
void comm_device_all_gather(struct comm *c, struct stream *s, const struct comm_shares *arrays,
                            int n);
/* Begins to sum n arrays of floats over all ranks, together: each rank gets the sums of its part,
 * in place (`own` is not read); nobody knows what the rest is afterwards. They stay untouched until
 * comm_device_finish. */
void comm_device_reduce(struct comm *c, struct stream *s, const struct comm_shares *arrays, int n);
/* The sums that were begun, all on this stream, are there in its order. */
void comm_device_finish(struct comm *c, struct stream *s);

/* Bytes of the arrays that it has summed over ranks on devices' memory, each counted once however
 * it travels: for all ranks to have, and for owners. With one rank none. */
struct comm_sums {
    size_t to_all, to_owners;
};
struct comm_sums comm_device_sums(const struct comm *c);

/* Whether all ranks succeeded. If any did not, every rank's err gets the sentence of the lowest
 * rank that failed, so that rank 0 can print it once and all can end with status 1. */
bool comm_all_ok(struct comm *c, bool ok, struct zf_error *err);

/* Ends all ranks at once with status 1, after this one printed the sentence: for a fault that the
 * others cannot be waiting for. */
_Noreturn void comm_abort(struct comm *c, const struct zf_error *err);

#endif
