/* How the engine uses streams and pinned memory. */
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/problem.h"
#include "tests/testing.h"

#include "offload/engine/internal.h"

#include <limits.h>
#include <string.h>

/* problem_device, but for some functions that look at what they are asked for. */
static struct device watched, *real;

static void watch(void)
{
    real = problem_device;
    watched = *real;
    problem_device = &watched;
}

static void watch_no_more(void)
{
    problem_device = real;
}

/* ---- streams ---- */

#define MOST_STREAMS 16

static struct {
    const struct stream *stream;
    enum stream_priority priority;
} streams[MOST_STREAMS];
static int n_streams;

static struct stream *note_stream(enum stream_priority priority)
{
    struct stream *s = real->stream_create(priority);
    assert_true(n_streams < MOST_STREAMS);
    streams[n_streams].stream = s;
    streams[n_streams++].priority = priority;
    return s;
}

static enum stream_priority priority_of(const struct stream *stream)
{
    for (int i = 0; i < n_streams; i++)
        if (streams[i].stream == stream)
            return streams[i].priority;
    fail_msg("the engine has made no such stream");
    return STREAM_BEHIND;
}

/* The engine's collectives come by here, and go on: the linker puts these in their place. */

static struct {
    bool noted;
    int gathers, sums_to_owners, sums_to_all;
} collectives;

static void note_collective(const struct stream *s, const char *name, int *count)
{
    if (!collectives.noted)
        return;
    (*count)++;
    if (priority_of(s) != STREAM_FIRST)
        fail_msg("%s is queued on a stream that does not go first", name);
}

void __real_comm_device_all_gather(struct comm *c, struct stream *s,
                                   const struct comm_shares *arrays, int n);
void __wrap_comm_device_all_gather(struct comm *c, struct stream *s,
                                   const struct comm_shares *arrays, int n);
void __wrap_comm_device_all_gather(struct comm *c, struct stream *s,
                                   const struct comm_shares *arrays, int n)
{
    note_collective(s, "an all-gather", &collectives.gathers);
    __real_comm_device_all_gather(c, s, arrays, n);
}

void __real_comm_device_reduce(struct comm *c, struct stream *s, const struct comm_shares *arrays,
                               int n);
void __wrap_comm_device_reduce(struct comm *c, struct stream *s, const struct comm_shares *arrays,
                               int n);
void __wrap_comm_device_reduce(struct comm *c, struct stream *s, const struct comm_shares *arrays,
                               int n)
{
    note_collective(s, "a sum to owners", &collectives.sums_to_owners);
    __real_comm_device_reduce(c, s, arrays, n);
}

void __real_comm_device_all_reduce(struct comm *c, struct stream *s, float *data, size_t n);
void __wrap_comm_device_all_reduce(struct comm *c, struct stream *s, float *data, size_t n);
void __wrap_comm_device_all_reduce(struct comm *c, struct stream *s, float *data, size_t n)
{
    note_collective(s, "a sum to all", &collectives.sums_to_all);
    __real_comm_device_all_reduce(c, s, data, n);
}

/* Steps in which every kind of collective is queued. divided: parameters, over ranks */
static void steps_on_streams(bool divided)
{
    enum { STEPS = 6 };
    struct engine_config c = problem_config();
    struct problem p;
    n_streams = 0;
    c.topk_ratio = 0.1;
    c.update_interval = 4;
    c.params_divided = divided;
    problem_create(&p, 1, world, &c);
    const struct streams *s = &p.engine->streams;
    assert_int_equal(priority_of(s->reducing), STREAM_BEHIND);
    assert_int_equal(priority_of(s->down), STREAM_BEHIND);
    assert_int_equal(priority_of(s->up), STREAM_BEHIND);
    assert_int_equal(priority_of(s->carrying), STREAM_BEHIND);
    memset(&collectives, 0, sizeof collectives);
    collectives.noted = true;
    for (int step = 0; step < STEPS; step++)
        problem_step(&p, step);
    collectives.noted = false;
    if (comm_size(world) > 1) {
        assert_in_range(collectives.gathers, STEPS, INT_MAX);
        assert_in_range(collectives.sums_to_owners, STEPS, INT_MAX);
        assert_int_equal(collectives.sums_to_all, STEPS);
    }
    problem_destroy(&p);
}

/* Collectives are queued where they go before the model, all else behind it; parameters that ranks
 * share and those that they divide. */
void stream_priorities(void **state)
{
    (void)state;
    watch();
    watched.stream_create = note_stream;
    steps_on_streams(false);
    steps_on_streams(true);
    watch_no_more();
}

/* ---- copies ---- */

#define MOST_ARRAYS 4096

static struct {
    char *memory;
    size_t bytes;
} arrays[MOST_ARRAYS]; /* of the device, and pinned */
static int n_arrays;
static bool in_step; /* the engine alone copies now */
static int n_copies;

static void *note_array(void *memory, size_t bytes)
{
    assert_true(n_arrays < MOST_ARRAYS);
    arrays[n_arrays].memory = memory;
    arrays[n_arrays++].bytes = bytes;
    return memory;
}

static void *note_allocate(size_t bytes)
{
    return note_array(real->allocate(bytes), bytes);
}

static void *note_allocate_host(size_t bytes)
{
    return note_array(real->allocate_host(bytes), bytes);
}

static void *note_allocate_host_later(size_t bytes)
{
    return note_array(real->allocate_host_later(bytes), bytes);
}

static bool is_noted(const void *memory, size_t bytes)
{
    for (int i = n_arrays - 1; i >= 0; i--) {
        const size_t at = (size_t)((const char *)memory - arrays[i].memory);
        if ((const char *)memory >= arrays[i].memory && at + bytes <= arrays[i].bytes)
            return true;
    }
    return false;
}

static void check_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    n_copies += in_step;
    if (in_step && bytes > 0 && !(is_noted(dst, bytes) && is_noted(src, bytes)))
        fail_msg("a step copies %zu bytes %s ordinary memory", bytes,
                 is_noted(src, bytes) ? "to" : "from");
    real->copy(s, dst, src, bytes);
}

static bool end_step(struct problem *p, int step)
{
    struct step_report report;
    struct zf_error err;
    engine_begin_step(p->engine, problem_lr(step));
    for (int sample = 0; sample < PROBLEM_SAMPLES; sample++)
        problem_add_gradient(p, step, sample, p->params, p->grads);
    problem_give_gradient(p);
    in_step = step > 0; /* the first choice comes with a table of all */
    assert_works(engine_end_step(p->engine, &report, &err), err);
    in_step = false;
    problem_read_params(p);
    return step > 0 && report.bytes_moved > 0;
}

/* The host never waits for a copy: once the first choice is there, steps copy to and from pinned
 * memory alone, those in which channels change sides, and what changed goes to other ranks, too. */
void steps_copy_pinned_memory(void **state)
{
    (void)state;
    watch();
    watched.allocate = note_allocate;
    watched.allocate_host = note_allocate_host;
    watched.allocate_host_later = note_allocate_host_later;
    watched.copy = check_copy;
    for (unsigned seed = 0; seed < 8; seed++) {
        struct engine_config c = problem_config();
        struct problem p;
        int moves = 0;
        n_arrays = n_copies = 0;
        c.topk_ratio = 0.3;
        c.update_interval = 3;
        c.apply_lag = (int)seed % 2;
        c.select_every = 4;
        c.zero_copy = seed / 2 % 2;
        c.accumulate = seed / 4 ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
        problem_create(&p, 8 + seed, world, &c);
        for (int step = 0; step < 30; step++)
            moves += end_step(&p, step);
        assert_true(moves > (comm_size(world) == 1 ? 3 : 0) && n_copies > 30);
        problem_destroy(&p);
    }
    watch_no_more();
}
