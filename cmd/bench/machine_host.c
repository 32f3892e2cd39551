/* What the host does for the engine: AdamW on its workers, and loops of its own. */
#include "cmd/bench/machine_parts.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "offload/host/adam.h"
#include "offload/host/memory.h"
#include "offload/host/workers.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define ADAM_WIDTH 4096
#define ADAM_ROWS  4096 /* at least: 16 M parameters, 256 MB */

/* As many that what they hold is several times the last cache: hundreds of megabytes on servers. */
static int adam_rows(void)
{
    const double cache = (double)sysconf(_SC_LEVEL3_CACHE_SIZE); /* -1 or 0: not known */
    const int rows = (int)ceil(4 * cache / (4 * sizeof(float) * ADAM_WIDTH));
    return rows > ADAM_ROWS ? rows : ADAM_ROWS;
}

static double adam_rate(const struct measuring *m, struct host_adam_job *job, int n_tasks,
                        int threads)
{
    struct worker_config config = {
        .local_rank = comm_core_rank(m->comm),
        .local_size = comm_core_size(m->comm),
        .threads = threads,
    };
    struct worker_pool *pool = worker_pool_create(&config);
    double least = INFINITY;
    for (int i = 0; i <= m->rounds; i++) {
        machine_together(m);
        double begin = clock_seconds();
        const struct worker_job work = {.run = host_adam_run, .argument = job, .n_chunks = n_tasks};
        worker_pool_wait(pool, worker_pool_submit(pool, &work));
        least = fmin(least, clock_seconds() - begin);
    }
    worker_pool_destroy(pool);
    double bytes = 0;
    for (int task = 0; task < n_tasks; task++)
        bytes += (double)host_adam_bytes(job, task);
    return bytes / least;
}

static void do_nothing(void *argument, int chunk)
{
    (void)argument, (void)chunk;
}

/* From a job's submission to a sleeping worker until the host knows that it is done. */
static double wake_seconds(const struct measuring *m)
{
    struct worker_config config = {.local_size = 1, .reserved_share = 0.5f};
    struct worker_pool *pool = worker_pool_create(&config);
    const struct worker_job job = {.run = do_nothing, .n_chunks = 1};
    double least = INFINITY;
    for (int i = 0; i <= m->rounds; i++) {
        usleep(2000);
        double begin = clock_seconds();
        worker_pool_wait(pool, worker_pool_submit(pool, &job));
        least = fmin(least, clock_seconds() - begin);
    }
    worker_pool_destroy(pool);
    return least;
}

/* As the engine lists the channels that changed: some here and there, in each round others. */
#define CHANNELS 100000

static int list_changed(int *list, const unsigned char *changed)
{
    int n = 0;
    for (int i = 0; i < CHANNELS; i++)
        if (changed[i])
            list[n++] = i;
    return n;
}

static double channel_seconds(const struct measuring *m)
{
    unsigned char *changed = zf_calloc(CHANNELS, 1);
    int *list = zf_malloc(CHANNELS * sizeof *list), n = 0;
    double least = INFINITY;
    uint32_t state = 1;
    for (int round = 0; round <= m->rounds || n == 0; round++) {
        for (int i = 0; i < CHANNELS; i++) {
            state = state * 1664525u + 1013904223u;
            changed[i] = state >> 28 == 0; /* one in 16 */
        }
        double begin = clock_seconds();
        n = list_changed(list, changed);
        least = fmin(least, clock_seconds() - begin);
    }
    free(changed);
    free(list);
    return least / CHANNELS;
}

bool machine_measure_host(const struct measuring *m, struct zf_error *err)
{
    const int rows = adam_rows();
    const size_t bytes = sizeof(float) * (size_t)rows * ADAM_WIDTH;
    struct host_adam_matrix matrix = {
        .rows = rows,
        .cols = ADAM_WIDTH,
        .dtype = m->device->dtype,
        .part = {.rows = rows, .cols = ADAM_WIDTH},
    };
    struct host_adam_matrix *x = &matrix;
    struct host_adam_chunk *tasks = zf_malloc(sizeof *tasks * (size_t)host_adam_cut(x, NULL));
    const int n_tasks = host_adam_cut(x, tasks);
    struct host_adam_job job = {
        .chunks = tasks,
        .n_groups = 1,
        .rule = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},
        .path = host_adam_best_path(),
    };
    x->updates = zf_calloc((size_t)rows, sizeof *x->updates);
    bool ok = (x->parameters = host_memory_allocate(bytes, err)) &&
              (x->m = host_memory_allocate(bytes, err)) &&
              (x->v = host_memory_allocate(bytes, err)) &&
              (job.exchange = host_memory_allocate(bytes, err)) &&
              (x->dtype == DTYPE_F32 || (x->remainders = host_memory_allocate(bytes, err)));
    if (ok) {
        int mine = (int)m->machine->cores / comm_core_size(m->comm);
        m->machine->core_rate = adam_rate(m, &job, n_tasks, 1);
        m->machine->wake = wake_seconds(m);
        m->machine->host_rate =
            mine > 1 ? adam_rate(m, &job, n_tasks, mine) : m->machine->core_rate;
        m->machine->host_rate = fmax(m->machine->host_rate, m->machine->core_rate);
        m->machine->channel = channel_seconds(m);
    }
    host_memory_free(x->parameters, bytes);
    host_memory_free(x->m, bytes);
    host_memory_free(x->v, bytes);
    host_memory_free(job.exchange, bytes);
    host_memory_free(x->remainders, bytes);
    free(x->updates);
    free(tasks);
    return ok;
}
