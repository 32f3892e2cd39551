/* The device itself: memory, streams, events and copies. */
#include "data/alloc.h"
#include "data/clock.h"
#include "model/plan/internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COPY_LIMIT ((size_t)256 << 20) /* to and from larger arrays they are counted alone */

/* There is one at a time: what struct device's functions are given does not always tell which. */
static struct plan *the_plan;

/* ---- memory ---- */

static void *allocate(size_t bytes)
{
    return plan_take(the_plan, bytes, true, false);
}

static void *allocate_host(size_t bytes)
{
    return plan_take(the_plan, bytes, false, false);
}

static void *allocate_host_later(size_t bytes)
{
    return plan_take(the_plan, bytes, false, true);
}

static void give_back(void *memory)
{
    plan_give_back(the_plan, memory);
}

static bool reserve(size_t bytes, struct zf_error *err)
{
    (void)bytes;
    (void)err;
    return true;
}

static size_t free_bytes(void)
{
    size_t all = (size_t)the_plan->machine.memory_bytes;
    return all > the_plan->device_bytes ? all - the_plan->device_bytes : 0;
}

/* ---- streams and events ---- */

static struct stream *stream_create(enum stream_priority priority)
{
    struct stream *s = zf_malloc(sizeof *s);
    *s = (struct stream){the_plan, sim_lane(the_plan->sim), priority < STREAM_BEHIND};
    return s;
}

static void stream_destroy(struct stream *s)
{
    free(s);
}

static void wait_for(struct plan *p, sim_op op)
{
    sim_wait(p->sim, op);
    if (!p->machine.is_cpu)
        sim_host(p->sim, p->machine.wait, "host: waiting");
}

static void stream_wait(struct stream *s)
{
    wait_for(s->plan, sim_mark(s->plan->sim, s->lane));
}

static struct event *event_create(void)
{
    return zf_calloc(1, sizeof(struct event));
}

static struct event *event_create_timed(void)
{
    struct event *event = event_create();
    event->timed = true;
    return event;
}

static void event_destroy(struct event *event)
{
    free(event);
}

static void note_time(void *argument)
{
    struct event *event = argument;
    event->passed = sim_now(the_plan->sim);
}

static void event_record(struct event *event, struct stream *s)
{
    static const struct sim_work nothing = {.what = "event"};
    event->op = event->timed ? sim_queue(s->plan->sim, s->lane, &nothing, note_time, event)
                             : sim_mark(s->plan->sim, s->lane);
}

static bool event_passed(struct event *event)
{
    return sim_done(the_plan->sim, event->op);
}

static double event_elapsed(struct event *from, struct event *to)
{
    return to->passed - from->passed;
}

static void event_order(struct stream *s, struct event *event)
{
    sim_order(s->plan->sim, s->lane, event->op);
}

static void event_wait(struct event *event)
{
    wait_for(the_plan, event->op);
}

static void stream_call(struct stream *s, void (*function)(void *), void *argument)
{
    struct plan *p = s->plan;
    const struct sim_work call = {.what = "host: launches", .latency = p->machine.latency};
    plan_launch(p, 1);
    sim_op op = sim_queue(p->sim, s->lane, &call, function, argument);
    if (p->machine.is_cpu)
        sim_wait(p->sim, op);
}

/* ---- copies ---- */

/* Whether it may hold what controls the run, and not the model. */
static bool holds_bytes(const struct allocation *a)
{
    return !a || (!a->of_model && a->bytes <= COPY_LIMIT);
}

static void copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    struct plan *p = s->plan;
    const struct allocation *to = plan_find(p, dst), *from = plan_find(p, src);
    bool down = from && from->on_device && !(to && to->on_device);
    bool up = to && to->on_device && !(from && from->on_device);
    if (bytes == 0)
        return;
    if (holds_bytes(to) && holds_bytes(from))
        memcpy(dst, src, bytes);
    struct op_cost cost = {.bytes = (down || up ? 1 : 2) * (double)bytes,
                           .link = down || up ? (double)bytes : 0};
    if (p->machine.is_cpu)
        plan_operate(s, "copy", "other operators", cost_copy_rows((double)bytes), false);
    else if (down || up)
        plan_transfer(s, "copy", cost, down, false);
    else
        plan_operate(s, "copy", "other operators", cost, false);
    if (p->machine.is_cpu)
        return;
    if (!from)
        plan_busy(p, 2 * (double)bytes / p->machine.core_rate, "host: copies");
    if (!to)
        stream_wait(s);
}

static void zero(struct stream *s, void *dst, size_t bytes)
{
    if (bytes == 0)
        return;
    if (bytes <= PLAN_MAP_LIMIT)
        memset(dst, 0, bytes);
    plan_operate(s, "zero", "other operators", (struct op_cost){.bytes = (double)bytes}, false);
}

/* ---- creation ---- */

static double now(void *sim)
{
    return sim_now(sim);
}

static void describe(struct plan *p)
{
    p->device = (struct device){
        .name = p->machine.is_cpu ? "cpu" : "cuda",
        .ops = &plan_ops,
        .row_ops = &plan_row_ops,
        .is_cpu = p->machine.is_cpu,
        .dtype = p->machine.is_cpu ? DTYPE_F32 : DTYPE_BF16,
        .unified = p->machine.is_cpu,
        .head_rows = p->machine.is_cpu ? 256 : 1024, /* those of the devices that it stands for */
        .compute = &p->compute,
        .plan = p,
        .reserve = reserve,
        .allocate = allocate,
        .release = give_back,
        .free_bytes = free_bytes,
        .allocate_host = allocate_host,
        .allocate_host_later = allocate_host_later,
        .release_host = give_back,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .stream_wait = stream_wait,
        .event_create = event_create,
        .event_create_timed = event_create_timed,
        .event_passed = event_passed,
        .event_elapsed = event_elapsed,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_order = event_order,
        .event_wait = event_wait,
        .stream_call = stream_call,
        .copy = copy,
        .zero = zero,
    };
}

struct device *device_plan_create(const struct machine *machine, int ranks,
                                  const struct plan_gradients *gradients)
{
    struct plan *p = zf_calloc(1, sizeof *p);
    assert(!the_plan);
    the_plan = p;
    p->machine = *machine;
    p->gradients = gradients ? *gradients
                             : (struct plan_gradients){machine->lasting, machine->passing,
                                                       (uint32_t)machine->seed};
    p->ranks = ranks;
    p->local_ranks = ranks < machine->ranks_per_host ? ranks : (int)machine->ranks_per_host;
    /* A file that was measured with several ranks at a time has each one's share already. */
    double sharing = machine->measured > 0 ? 1 : p->local_ranks;
    p->host_rate = machine->host_rate / sharing;
    double per_link = fmin(machine->ranks_per_link, p->local_ranks);
    p->link_rate = machine->link_rate / (per_link > 1 ? per_link : 1);
    p->sim = sim_create();
    for (int i = 0; i < PLAN_RESOURCES; i++)
        sim_resource(p->sim);
    p->compute = (struct stream){p, sim_lane(p->sim), false};
    p->host_lane = sim_lane(p->sim);
    describe(p);
    clock_replace(now, p->sim);
    return &p->device;
}

void device_plan_destroy(struct device *device)
{
    if (!device)
        return;
    struct plan *p = device->plan;
    clock_replace(NULL, NULL);
    sim_destroy(p->sim);
    while (p->n_allocations > 0)
        plan_give_back(p, p->allocations[0].memory);
    free(p->allocations);
    free(p->lasting);
    the_plan = NULL;
    free(p);
}

struct sim *plan_sim(const struct plan *p)
{
    return p->sim;
}

const struct machine *plan_machine(const struct plan *p)
{
    return &p->machine;
}

size_t plan_device_bytes(const struct plan *p)
{
    return p->device_bytes;
}

size_t plan_host_bytes(const struct plan *p)
{
    return p->host_bytes;
}

struct plan_host plan_host_work(const struct plan *p)
{
    return p->host;
}
