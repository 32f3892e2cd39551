#include "offload/host/workers.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "data/rng.h"
#include "model/device/numa.h"
#include "model/plan/plan.h"
#include "offload/host/cores.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE_LINE 64
/* How often a thread looks before it sleeps: some ten microseconds, about what a sleep costs. */
#define SPINS 300

/* Lets threads sleep until something has changed. A sleeper announces itself, reads the count,
 * looks once more at what it waits for, and sleeps only if the count has not moved since; a waker
 * changes the thing, moves the count, and asks the kernel only if somebody is announced. All of it
 * is sequentially consistent, so one of the two always sees the other. */
struct bell {
    alignas(CACHE_LINE) atomic_uint count;
    atomic_uint sleepers;
};

static void bell_ring(struct bell *bell)
{
    atomic_fetch_add(&bell->count, 1);
    if (atomic_load(&bell->sleepers))
        syscall(SYS_futex, &bell->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static unsigned bell_announce(struct bell *bell)
{
    atomic_fetch_add(&bell->sleepers, 1);
    return atomic_load(&bell->count);
}

static void bell_sleep(struct bell *bell, unsigned count)
{
    syscall(SYS_futex, &bell->count, FUTEX_WAIT_PRIVATE, count, NULL, NULL, 0);
}

static void bell_leave(struct bell *bell)
{
    atomic_fetch_sub(&bell->sleepers, 1);
}

static void spin_pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

struct span {
    double begin, end;
};

/* A worker's part of a job, on a plan's clock. */
struct planned_part {
    struct worker *worker;
    uint64_t ticket;
    _Atomic uint64_t *nanoseconds; /* the job's */
    sim_op op;
};

struct worker {
    alignas(CACHE_LINE) _Atomic uint64_t done; /* jobs whose part of this worker is finished */
    _Atomic uint64_t busy_nanoseconds;
    struct span *spans; /* (WORKER_MAX_JOBS) by ticket */
    struct worker_pool *pool;
    pthread_t thread;
    int index;
    int cpu; /* or -1 */

    /* of a plan */
    int lane;
    struct planned_part *parts; /* (WORKER_MAX_JOBS) by ticket */
    double planned_busy;        /* seconds of those that have ended */
};

struct worker_pool {
    alignas(CACHE_LINE) _Atomic uint64_t submitted; /* tickets given out */
    atomic_bool stopping;
    pthread_mutex_t submitting;
    struct bell work;     /* rung at each submission */
    struct bell finished; /* rung by each worker at the end of its part of a job */
    struct worker_job jobs[WORKER_MAX_JOBS]; /* by ticket */
    struct worker *workers;
    int n_workers;
    double delay_seconds;
    uint32_t delay_seed;
    struct plan *plan; /* workers are lanes of its clock; NULL: threads */
};

static void delay(const struct worker_pool *pool, uint64_t ticket, int chunk)
{
    struct philox counter = {{(uint32_t)ticket, (uint32_t)(ticket >> 32), (uint32_t)chunk, 0}};
    uint32_t bits = philox4x32(counter, pool->delay_seed, 0).v[0];
    double seconds = pool->delay_seconds * philox_uniform(bits);
    struct timespec sleep = {(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)};
    nanosleep(&sleep, NULL);
}

static int first_chunk(const struct worker_job *job, int place, int n_workers)
{
    return (int)((int64_t)job->n_chunks * place / n_workers);
}

/* How many places a worker is behind the one that a job begins with. */
static int place_of(const struct worker *w, const struct worker_job *job)
{
    const unsigned n = (unsigned)w->pool->n_workers;
    return (int)(((unsigned)w->index + n - job->begin % n) % n);
}

static void add_time(_Atomic uint64_t *sum, const struct span *span)
{
    atomic_fetch_add_explicit(sum, (uint64_t)(1e9 * (span->end - span->begin)),
                              memory_order_relaxed);
}

static void run_part(struct worker *w, uint64_t ticket)
{
    struct worker_pool *pool = w->pool;
    const struct worker_job *job = &pool->jobs[ticket % WORKER_MAX_JOBS];
    struct span *span = &w->spans[ticket % WORKER_MAX_JOBS];
    const int place = place_of(w, job);
    int end = first_chunk(job, place + 1, pool->n_workers);
    span->begin = clock_seconds();
    for (int chunk = first_chunk(job, place, pool->n_workers); chunk < end; chunk++) {
        if (pool->delay_seconds > 0)
            delay(pool, ticket, chunk);
        job->run(job->argument, chunk);
    }
    span->end = clock_seconds();
    add_time(&w->busy_nanoseconds, span);
    if (job->nanoseconds)
        add_time(job->nanoseconds, span);
    atomic_store(&w->done, ticket);
    bell_ring(&pool->finished);
}

/* Waits for job number `ticket` to be submitted; false when the pool ends without it. */
static bool await_job(struct worker_pool *pool, uint64_t ticket)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&pool->submitted) >= ticket)
            return true;
        spin_pause();
    }
    unsigned count = bell_announce(&pool->work);
    while (atomic_load(&pool->submitted) < ticket && !atomic_load(&pool->stopping)) {
        bell_sleep(&pool->work, count);
        count = atomic_load(&pool->work.count);
    }
    bell_leave(&pool->work);
    return atomic_load(&pool->submitted) >= ticket;
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    for (uint64_t ticket = 1; await_job(w->pool, ticket); ticket++)
        run_part(w, ticket);
    return NULL;
}

/* ---- planned ---- */

static void part_ended(void *argument)
{
    struct planned_part *part = argument;
    struct worker *w = part->worker;
    const struct sim *sim = plan_sim(w->pool->plan);
    struct span *span = &w->spans[part->ticket % WORKER_MAX_JOBS];
    *span = (struct span){sim_began(sim, part->op), sim_now(sim)};
    w->planned_busy += span->end - span->begin;
    if (part->nanoseconds)
        add_time(part->nanoseconds, span);
}

static void plan_part(struct worker *w, uint64_t ticket)
{
    const struct worker_pool *pool = w->pool;
    const struct worker_job *job = &pool->jobs[ticket % WORKER_MAX_JOBS];
    struct planned_part *part = &w->parts[ticket % WORKER_MAX_JOBS];
    const int place = place_of(w, job);
    int end = first_chunk(job, place + 1, pool->n_workers);
    double bytes = 0;
    if (job->bytes)
        for (int i = first_chunk(job, place, pool->n_workers); i < end; i++)
            bytes += (double)job->bytes(job->argument, i);
    struct sim_work work = plan_worker_work(pool->plan, pool->n_workers, bytes);
    *part = (struct planned_part){w, ticket, job->nanoseconds, 0};
    part->op = sim_queue(plan_sim(pool->plan), w->lane, &work, part_ended, part);
}

static bool plan_done(const struct worker_pool *pool, uint64_t ticket)
{
    bool done = true;
    if (ticket > 0)
        for (int i = 0; i < pool->n_workers; i++)
            done &=
                sim_done(plan_sim(pool->plan), pool->workers[i].parts[ticket % WORKER_MAX_JOBS].op);
    return done;
}

static void plan_wait(const struct worker_pool *pool, uint64_t ticket)
{
    for (int i = 0; i < pool->n_workers; i++)
        sim_wait(plan_sim(pool->plan), pool->workers[i].parts[ticket % WORKER_MAX_JOBS].op);
}

/* ---- threads ---- */

/* A thread that cannot be pinned runs unpinned: slower, not wrong. */
static void worker_start(struct worker *w)
{
    int code = pthread_create(&w->thread, NULL, worker_main, w);
    if (code) {
        fprintf(stderr, "zf-train: a worker thread could not be started: %s\n", strerror(code));
        exit(1);
    }
    if (w->cpu < 0)
        return;
    size_t bytes = CPU_ALLOC_SIZE(w->cpu + 1);
    cpu_set_t *set = CPU_ALLOC(w->cpu + 1);
    if (set) {
        CPU_ZERO_S(bytes, set);
        CPU_SET_S((size_t)w->cpu, bytes, set);
    }
    if (!set || pthread_setaffinity_np(w->thread, bytes, set) != 0)
        w->cpu = -1;
    CPU_FREE(set);
}

/* CPUs of the cores that ranks share; the caller frees them. */
static int list_cores(const struct worker_config *config, int **cpus)
{
    const char *root = config->root ? config->root : "";
    const int node = config->near ? numa_node_of_pci(root, config->near) : -1;
    const int n = cpu_cores_list(cpus), near = numa_keep_cpus(root, node, *cpus, n);
    return near > 0 ? near : n;
}

struct worker_pool *worker_pool_create(const struct worker_config *config)
{
    int *cpus = NULL, first;
    int n_cores = config->plan ? (int)plan_machine(config->plan)->cores : list_cores(config, &cpus);
    n_cores = cpu_cores_share(n_cores, config->local_rank, config->local_size, &first);
    int n_free = n_cores - (int)ceilf(config->reserved_share * (float)n_cores);
    int n = config->threads ? config->threads : n_free > 0 ? n_free : 1;
    bool pinned = n <= (config->threads ? n_cores : n_free);

    struct worker_pool *pool = zf_malloc_aligned(sizeof *pool);
    memset(pool, 0, sizeof *pool);
    pool->n_workers = n;
    pool->delay_seconds = config->delay_seconds;
    pool->delay_seed = config->delay_seed;
    pool->plan = config->plan;
    pthread_mutex_init(&pool->submitting, NULL);
    pool->workers = zf_malloc_aligned((size_t)n * sizeof *pool->workers);
    memset(pool->workers, 0, (size_t)n * sizeof *pool->workers);
    for (int i = 0; i < n; i++) {
        struct worker *w = &pool->workers[i];
        w->pool = pool;
        w->index = i;
        w->spans = zf_calloc(WORKER_MAX_JOBS, sizeof *w->spans);
        w->cpu = pinned && cpus ? cpus[first + n_cores - n + i] : -1; /* the first are reserved */
        if (pool->plan) {
            w->lane = sim_lane(plan_sim(pool->plan));
            w->parts = zf_calloc(WORKER_MAX_JOBS, sizeof *w->parts);
        }
    }
    if (!pool->plan)
        for (int i = 0; i < n; i++)
            worker_start(&pool->workers[i]);
    free(cpus);
    return pool;
}

void worker_pool_destroy(struct worker_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stopping, true);
    bell_ring(&pool->work);
    if (pool->plan && pool->submitted > 0)
        plan_wait(pool, pool->submitted);
    if (!pool->plan)
        for (int i = 0; i < pool->n_workers; i++)
            pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->submitting);
    for (int i = 0; i < pool->n_workers; i++) {
        free(pool->workers[i].spans);
        free(pool->workers[i].parts);
    }
    free(pool->workers);
    free(pool);
}

int worker_pool_threads(const struct worker_pool *pool)
{
    return pool->n_workers;
}

int worker_pool_cpu(const struct worker_pool *pool, int worker)
{
    return pool->workers[worker].cpu;
}

bool worker_pool_done(const struct worker_pool *pool, uint64_t ticket)
{
    if (pool->plan)
        return plan_done(pool, ticket);
    for (int i = 0; i < pool->n_workers; i++)
        if (atomic_load(&pool->workers[i].done) < ticket)
            return false;
    return true;
}

void worker_pool_wait(struct worker_pool *pool, uint64_t ticket)
{
    assert(ticket <= atomic_load(&pool->submitted));
    if (pool->plan) {
        plan_wait(pool, ticket);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (worker_pool_done(pool, ticket))
            return;
        spin_pause();
    }
    unsigned count = bell_announce(&pool->finished);
    while (!worker_pool_done(pool, ticket)) {
        bell_sleep(&pool->finished, count);
        count = atomic_load(&pool->finished.count);
    }
    bell_leave(&pool->finished);
}

static uint64_t next_ticket(const struct worker_pool *pool)
{
    return atomic_load_explicit(&pool->submitted, memory_order_relaxed) + 1;
}

static uint64_t plan_submit(struct worker_pool *pool, const struct worker_job *job)
{
    const uint64_t ticket = next_ticket(pool);
    pool->jobs[ticket % WORKER_MAX_JOBS] = *job;
    atomic_store(&pool->submitted, ticket);
    for (int i = 0; i < pool->n_workers; i++)
        plan_part(&pool->workers[i], ticket);
    return ticket;
}

uint64_t worker_pool_submit(struct worker_pool *pool, const struct worker_job *job)
{
    if (pool->plan)
        return plan_submit(pool, job);
    pthread_mutex_lock(&pool->submitting);
    const uint64_t ticket = next_ticket(pool);
    if (ticket > WORKER_MAX_JOBS)
        worker_pool_wait(pool, ticket - WORKER_MAX_JOBS);
    pool->jobs[ticket % WORKER_MAX_JOBS] = *job;
    atomic_store(&pool->submitted, ticket);
    pthread_mutex_unlock(&pool->submitting);
    bell_ring(&pool->work);
    return ticket;
}

double worker_pool_busy_seconds(const struct worker_pool *pool)
{
    uint64_t sum = 0;
    double planned = 0;
    if (pool->plan)
        sim_done(plan_sim(pool->plan), 0); /* the clock has come to the present */
    for (int i = 0; i < pool->n_workers; i++) {
        sum += atomic_load_explicit(&pool->workers[i].busy_nanoseconds, memory_order_relaxed);
        planned += pool->workers[i].planned_busy;
    }
    return 1e-9 * (double)sum + planned;
}

bool worker_pool_span(const struct worker_pool *pool, uint64_t ticket, int worker, double *begin,
                      double *end)
{
    assert(worker_pool_done(pool, ticket));
    if (pool->submitted - ticket >= WORKER_MAX_JOBS)
        return false;
    const struct span *span = &pool->workers[worker].spans[ticket % WORKER_MAX_JOBS];
    *begin = span->begin;
    *end = span->end;
    return true;
}
