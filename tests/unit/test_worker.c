/* offload/worker and cpu_cores: every chunk runs once, on its worker, in order; results and tickets
 * hold under random delays; submitting beyond the ring waits. Run under TSan too. */
#include "tests/folder.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "offload/host/cores.h"
#include "offload/host/workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define CHUNKS 37

static struct worker_config config_of(int threads)
{
    return (struct worker_config){.local_size = 1, .reserved_share = 0.5f, .threads = threads};
}

struct record {
    uint64_t value[CHUNKS]; /* changed by jobs, not commutatively */
    int runs[CHUNKS];
    pthread_t thread[CHUNKS];
    int job; /* what the job multiplies by and adds */
};

static void note(void *argument, int chunk)
{
    struct record *r = argument;
    r->runs[chunk]++;
    r->thread[chunk] = pthread_self();
}

static uint64_t submit(struct worker_pool *pool, void (*run)(void *, int), void *argument,
                       int n_chunks)
{
    const struct worker_job job = {.run = run, .argument = argument, .n_chunks = n_chunks};
    return worker_pool_submit(pool, &job);
}

static void runs_every_chunk_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct worker_config config = config_of(threads);
        struct worker_pool *pool = worker_pool_create(&config);
        assert_int_equal(worker_pool_threads(pool), threads);
        for (int n = 0; n <= CHUNKS; n++) {
            struct record r = {0};
            uint64_t ticket = submit(pool, note, &r, n);
            assert_int_equal(ticket, n + 1);
            worker_pool_wait(pool, ticket);
            assert_true(worker_pool_done(pool, ticket));
            for (int i = 0; i < CHUNKS; i++)
                assert_int_equal(r.runs[i], i < n);
        }
        worker_pool_destroy(pool);
    }
}

static void gives_a_chunk_to_the_same_worker(void **state)
{
    (void)state;
    struct worker_config config = config_of(3);
    struct worker_pool *pool = worker_pool_create(&config);
    struct record first = {0}, again = {0};
    submit(pool, note, &first, CHUNKS);
    worker_pool_wait(pool, submit(pool, note, &again, CHUNKS));
    int changes = 0;
    for (int i = 0; i < CHUNKS; i++) {
        assert_true(pthread_equal(first.thread[i], again.thread[i]));
        changes += i > 0 && !pthread_equal(first.thread[i], first.thread[i - 1]);
    }
    assert_int_equal(changes, 2);                  /* three contiguous shares */
    for (unsigned begin = 0; begin < 7; begin++) { /* one place further round the three */
        struct record turned = {0};
        const struct worker_job job = {
            .run = note, .argument = &turned, .n_chunks = 3, .begin = begin};
        worker_pool_wait(pool, worker_pool_submit(pool, &job));
        const pthread_t workers[] = {first.thread[0], first.thread[CHUNKS / 2],
                                     first.thread[CHUNKS - 1]};
        for (unsigned i = 0; i < 3; i++)
            assert_true(pthread_equal(turned.thread[i], workers[(i + begin) % 3]));
    }
    worker_pool_destroy(pool);
}

struct fold {
    struct record *record;
    uint64_t factor;
};

static void fold_chunk(void *argument, int chunk)
{
    const struct fold *f = argument;
    uint64_t *value = &f->record->value[chunk];
    *value = *value * f->factor + (uint64_t)chunk;
}

/* More jobs than the ring holds, each of which must see the results of the one before. */
static void fold_many(struct worker_config config, struct record *record)
{
    enum { JOBS = 3 * WORKER_MAX_JOBS };
    struct fold *folds = zf_malloc(JOBS * sizeof *folds);
    struct worker_pool *pool = worker_pool_create(&config);
    uint64_t ticket = 0;
    memset(record, 0, sizeof *record);
    for (int i = 0; i < JOBS; i++) {
        folds[i] = (struct fold){record, (uint64_t)(2 * i + 3)};
        ticket = submit(pool, fold_chunk, &folds[i], CHUNKS);
    }
    worker_pool_wait(pool, ticket);
    worker_pool_destroy(pool);
    free(folds);
}

static void add_one(void *argument, int chunk)
{
    (void)chunk;
    atomic_fetch_add((atomic_int *)argument, 1);
}

enum { SUBMITTED = 4 * WORKER_MAX_JOBS };

struct submitter {
    struct worker_pool *pool;
    atomic_int runs;
    uint64_t tickets[SUBMITTED];
};

static void *submit_many(void *argument)
{
    struct submitter *s = argument;
    const struct worker_job job = {.run = add_one, .argument = &s->runs, .n_chunks = CHUNKS};
    for (int i = 0; i < SUBMITTED; i++)
        s->tickets[i] = worker_pool_submit(s->pool, &job);
    worker_pool_wait(s->pool, s->tickets[SUBMITTED - 1]);
    return NULL;
}

/* As a stream's calls do beside the main thread: all jobs run, each of which has its own ticket. */
static void two_threads_submit(void **state)
{
    (void)state;
    const struct worker_config config = config_of(3);
    struct worker_pool *pool = worker_pool_create(&config);
    static struct submitter submitters[2];
    static unsigned char seen[2 * SUBMITTED + 1];
    pthread_t other;
    submitters[0].pool = submitters[1].pool = pool;
    assert_int_equal(pthread_create(&other, NULL, submit_many, &submitters[1]), 0);
    submit_many(&submitters[0]);
    pthread_join(other, NULL);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(atomic_load(&submitters[k].runs), SUBMITTED * CHUNKS);
        for (int i = 0; i < SUBMITTED; i++) {
            assert_in_range(submitters[k].tickets[i], 1, 2 * SUBMITTED);
            assert_int_equal(seen[submitters[k].tickets[i]]++, 0);
        }
    }
    worker_pool_destroy(pool);
}

static void results_do_not_depend_on_workers(void **state)
{
    (void)state;
    struct record expected, got;
    fold_many(config_of(1), &expected);
    for (int threads = 2; threads <= 6; threads++) {
        fold_many(config_of(threads), &got);
        assert_memory_equal(got.value, expected.value, sizeof got.value);
    }
}

/* The main thread as the engine runs it: a job in flight per group, waited for one round later,
 * its results read and its input written again. */
static void exchange_rounds(struct worker_config config, struct record *groups, int n_groups)
{
    enum { ROUNDS = 12 };
    struct worker_pool *pool = worker_pool_create(&config);
    struct fold folds[8];
    uint64_t tickets[8] = {0};
    memset(groups, 0, (size_t)n_groups * sizeof *groups);
    for (int i = 0; i < ROUNDS * n_groups; i++) {
        int group = i % n_groups;
        worker_pool_wait(pool, tickets[group]);
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            groups[group].value[chunk] ^= groups[group].value[CHUNKS - 1 - chunk] + (uint64_t)i;
        folds[group] = (struct fold){&groups[group], (uint64_t)(2 * i + 3)};
        tickets[group] = submit(pool, fold_chunk, &folds[group], CHUNKS);
    }
    worker_pool_destroy(pool); /* finishes what is in flight */
}

static void delays_change_nothing(void **state)
{
    (void)state;
    struct record expected[4], got[4];
    exchange_rounds(config_of(1), expected, 4);
    for (uint32_t seed = 0; seed < 5; seed++) {
        struct worker_config config = config_of(3);
        config.delay_seconds = 2e-4;
        config.delay_seed = seed;
        exchange_rounds(config, got, 4);
        for (int i = 0; i < 4; i++)
            assert_memory_equal(got[i].value, expected[i].value, sizeof got[i].value);
    }
}

static void sleep_chunk(void *argument, int chunk)
{
    (void)argument;
    (void)chunk;
    usleep(5000);
}

static void measures_time(void **state)
{
    (void)state;
    struct worker_config config = config_of(2);
    struct worker_pool *pool = worker_pool_create(&config);
    double before = clock_seconds(), begin, end;
    _Atomic uint64_t nanoseconds = 1000000000;
    uint64_t ticket = worker_pool_submit(
        pool, &(struct worker_job){.run = sleep_chunk, .n_chunks = 4, .nanoseconds = &nanoseconds});
    assert_false(worker_pool_done(pool, ticket));
    worker_pool_wait(pool, ticket);
    double after = clock_seconds(), sum = 0;
    for (int i = 0; i < 2; i++) {
        assert_true(worker_pool_span(pool, ticket, i, &begin, &end));
        assert_true(before <= begin && begin + 0.0099 < end && end <= after);
        sum += end - begin;
    }
    assert_float_equal(worker_pool_busy_seconds(pool), sum, 1e-6);
    assert_float_equal(1e-9 * (double)nanoseconds, 1 + sum, 1e-6);
    worker_pool_destroy(pool);
}

/* Workers that have gone to sleep wake up for the next job. */
static void wakes_sleepers(void **state)
{
    (void)state;
    struct worker_config config = config_of(4);
    struct worker_pool *pool = worker_pool_create(&config);
    struct record r = {0};
    for (int i = 0; i < 50; i++) {
        usleep(i % 2 ? 1000 : 20);
        worker_pool_wait(pool, submit(pool, note, &r, CHUNKS));
    }
    for (int i = 0; i < CHUNKS; i++)
        assert_int_equal(r.runs[i], 50);
    worker_pool_destroy(pool);
}

static void splits_cores(void **state)
{
    (void)state;
    int *cpus, first, next = 0;
    int n = cpu_cores_list(&cpus);
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_in_range(n, 1, CPU_COUNT(&allowed));
    for (int i = 0; i < n; i++)
        assert_true(CPU_ISSET((size_t)cpus[i], &allowed));
    for (int rank = 0; rank < 3; rank++, next = first + n)
        assert_true((n = cpu_cores_share(65, rank, 3, &first)) >= 21 && first == next);
    assert_int_equal(next, 65);
    free(cpus);
}

static void pins_within_the_affinity_mask(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int *cpus, n = cpu_cores_list(&cpus);
    int last = cpus[n - 1];
    free(cpus);
    CPU_ZERO(&one);
    CPU_SET((size_t)last, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct worker_config config = config_of(1);
    struct worker_pool *pool = worker_pool_create(&config);
    assert_int_equal(worker_pool_cpu(pool, 0), last);
    worker_pool_destroy(pool);
    config.threads = 0; /* its one core is the main thread's: an unpinned worker */
    pool = worker_pool_create(&config);
    assert_int_equal(worker_pool_threads(pool), 1);
    assert_int_equal(worker_pool_cpu(pool, 0), -1);
    worker_pool_destroy(pool);
    config = (struct worker_config){.local_rank = 1, .local_size = 2, .reserved_share = 0.5f};
    pool = worker_pool_create(&config);
    assert_int_equal(worker_pool_threads(pool), 1);
    worker_pool_destroy(pool);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    config = (struct worker_config){.local_size = 1, .reserved_share = 0};
    pool = worker_pool_create(&config);
    assert_int_equal(worker_pool_threads(pool), n);
    worker_pool_destroy(pool);
}

/* Of a made-up machine whose GPU hangs on node 1, which has the last of this one's cores alone. */
static void runs_near_the_gpu(void **state)
{
    (void)state;
    int *cpus, n = cpu_cores_list(&cpus);
    char list[16];
    struct worker_config config = {.local_size = 1, .threads = 1, .root = folder};
    snprintf(list, sizeof list, "%d\n", cpus[n - 1]);
    folder_write("/sys/devices/system/node/node1/cpulist", list);
    folder_write("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    for (int nodes = 1; nodes <= 2; nodes++) {
        folder_write("/sys/devices/system/node/has_memory", nodes == 1 ? "0\n" : "0-1\n");
        config.threads = 0;
        config.near = "0000:3B:00.0";
        struct worker_pool *pool = worker_pool_create(&config);
        assert_int_equal(worker_pool_threads(pool), nodes == 1 ? n : 1);
        assert_int_equal(worker_pool_cpu(pool, 0), nodes == 1 ? cpus[0] : cpus[n - 1]);
        worker_pool_destroy(pool);
        config.near = "0000:5e:00.0"; /* nothing is told of it */
        pool = worker_pool_create(&config);
        assert_int_equal(worker_pool_threads(pool), n);
        worker_pool_destroy(pool);
    }
    free(cpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_every_chunk_once),
        cmocka_unit_test(gives_a_chunk_to_the_same_worker),
        cmocka_unit_test(results_do_not_depend_on_workers),
        cmocka_unit_test(delays_change_nothing),
        cmocka_unit_test(two_threads_submit),
        cmocka_unit_test(measures_time),
        cmocka_unit_test(wakes_sleepers),
        cmocka_unit_test(splits_cores),
        cmocka_unit_test(pins_within_the_affinity_mask),
        cmocka_unit_test(runs_near_the_gpu),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
