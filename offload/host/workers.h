/* The host's worker threads: pinned to physical cores of this rank, fed by one main thread.
 *
 * A job is a function over chunks 0..n_chunks-1. Of W workers one, p places behind the one that the
 * job begins with, runs chunks [n p / W, n (p + 1) / W), in order, and jobs in the order in which
 * they were submitted. So the same worker always has the same share of a matrix, whose pages then
 * lie near it, and results do not depend on timing. A worker does not wait for the others between
 * jobs: a chunk may depend on chunks of the same number in earlier jobs that have as many chunks
 * and begin with the same worker, and on nothing else.
 *
 * Submitting does not allocate: jobs lie in a ring, and an idle worker spins shortly, then sleeps
 * in the kernel. Any thread may submit and wait, as streams' calls do beside the thread that
 * created the pool; all other functions but the job's are for that one. */
#ifndef ZF_OFFLOAD_HOST_WORKERS_H
#define ZF_OFFLOAD_HOST_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct plan;

/* Jobs that may be unfinished at once; one more, and submitting waits for the oldest. */
#define WORKER_MAX_JOBS 1024

struct worker_config {
    int local_rank, local_size; /* this rank's place among those on the machine that share the
                                   process's CPU affinity mask; they split its cores evenly */
    const char
        *near; /* a GPU's address on the PCI bus: cores of its NUMA node alone are used, where
                         the process may use any (model/device/numa.h); NULL: all */
    const char *root;     /* tests: where /sys is looked for; NULL: in its place */
    float reserved_share; /* of this rank's cores, from 0 to 1: kept for the main thread
                                   (pt_reserved_cores_perc), rounded up */
    int threads;          /* exactly so many, pinned if this rank has as many cores; 0: one
                                   for each core that is not reserved, or a single unpinned one */
    /* For tests: a worker sleeps before each chunk, up to so many seconds: a function of the seed,
     * the ticket and the chunk. 0: it does not. */
    double delay_seconds;
    uint32_t delay_seed;
    /* Nothing runs: workers are lanes of a plan's clock, on its machine's cores, and a job takes
     * the time that its bytes take. Borrowed; NULL: threads. */
    struct plan *plan;
};

struct worker_job {
    void (*run)(void *argument, int chunk);
    void *argument; /* borrowed until the job is done */
    int n_chunks;
    /* Bytes of memory that a chunk reads and writes, for a plan; NULL: none. */
    size_t (*bytes)(void *argument, int chunk);
    unsigned begin; /* the worker that it begins with, modulo their number: so jobs whose chunks
                       differ in the same way even out */
    _Atomic uint64_t *nanoseconds; /* gets the time that it takes, summed over workers; borrowed,
                                      or NULL */
};

struct worker_pool;

/* Ends the program with a sentence where no thread can be started. */
struct worker_pool *worker_pool_create(const struct worker_config *config);
/* Finishes the jobs that were submitted. pool may be NULL. */
void worker_pool_destroy(struct worker_pool *pool);

int worker_pool_threads(const struct worker_pool *pool);
/* The CPU that a worker is pinned to, or -1. */
int worker_pool_cpu(const struct worker_pool *pool, int worker);

/* Returns the job's ticket: 1, 2, ... All that the caller wrote before is seen by the job; all that
 * the job wrote is seen by the caller once it is done. */
uint64_t worker_pool_submit(struct worker_pool *pool, const struct worker_job *job);
bool worker_pool_done(const struct worker_pool *pool, uint64_t ticket);
void worker_pool_wait(struct worker_pool *pool, uint64_t ticket);

/* Seconds that workers have spent in jobs, summed over workers. */
double worker_pool_busy_seconds(const struct worker_pool *pool);
/* When one worker began and ended its part of a job that is done, on data/clock.h's clock. Whether
 * it is still known: until WORKER_MAX_JOBS have been submitted since. */
bool worker_pool_span(const struct worker_pool *pool, uint64_t ticket, int worker, double *begin,
                      double *end);

#endif
