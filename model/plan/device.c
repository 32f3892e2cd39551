/* Memory, streams, events and copies; and how long work takes. */
#include "data/alloc.h"
#include "data/clock.h"
#include "model/plan/internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define COPY_LIMIT ((size_t)256 << 20) /* larger ones are counted alone */
#define MAP_LIMIT  ((size_t)1 << 20)   /* larger arrays are reserved, not allocated */

/* There is one at a time: what struct device's functions are given does not always tell which. */
static struct plan *the_plan;

/* ---- memory ---- */

static void *take(size_t bytes, bool on_device)
{
    struct plan *p = the_plan;
    struct allocation a = {.bytes = bytes, .on_device = on_device, .mapped = bytes > MAP_LIMIT};
    if (a.mapped)
        a.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    else
        a.memory = zf_calloc(1, bytes);
    if (a.memory == MAP_FAILED) {
        fprintf(stderr, "zf-train: no address space for %zu bytes that are only planned\n", bytes);
        exit(1);
    }
    if (p->n_allocations == p->allocations_capacity) {
        p->allocations_capacity = 2 * p->allocations_capacity + 64;
        p->allocations =
            zf_realloc(p->allocations, p->allocations_capacity * sizeof *p->allocations);
    }
    p->allocations[p->n_allocations++] = a;
    *(on_device ? &p->device_bytes : &p->host_bytes) += bytes;
    return a.memory;
}

static void give_back(void *memory)
{
    struct plan *p = the_plan;
    size_t i = 0;
    while (i < p->n_allocations && p->allocations[i].memory != memory)
        i++;
    assert(i < p->n_allocations);
    struct allocation a = p->allocations[i];
    p->allocations[i] = p->allocations[--p->n_allocations];
    *(a.on_device ? &p->device_bytes : &p->host_bytes) -= a.bytes;
    if (a.mapped)
        munmap(a.memory, a.bytes);
    else
        free(a.memory);
}

static void *allocate(size_t bytes)
{
    return take(bytes, true);
}

static void *allocate_host(size_t bytes)
{
    return take(bytes, false);
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

static const struct allocation *find(const struct plan *p, const void *memory)
{
    for (size_t i = 0; i < p->n_allocations; i++) {
        const struct allocation *a = &p->allocations[i];
        if ((const char *)memory >= a->memory && (const char *)memory < a->memory + a->bytes)
            return a;
    }
    return NULL;
}

bool plan_on_device(const struct plan *p, const void *memory)
{
    const struct allocation *a = find(p, memory);
    return a && a->on_device;
}

/* ---- streams and events ---- */

static struct stream *stream_create(void)
{
    struct stream *s = zf_malloc(sizeof *s);
    *s = (struct stream){the_plan, sim_lane(the_plan->sim)};
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

sim_op plan_put(struct stream *s, const struct sim_work *work)
{
    struct plan *p = s->plan;
    sim_host(p->sim, p->machine.launch, "host: launches");
    sim_op op = sim_queue(p->sim, s->lane, work, NULL, NULL);
    if (p->machine.is_cpu)
        sim_wait(p->sim, op);
    return op;
}

static void stream_call(struct stream *s, void (*function)(void *), void *argument)
{
    struct plan *p = s->plan;
    const struct sim_work call = {.what = "host: launches", .latency = p->machine.latency};
    sim_host(p->sim, p->machine.launch, "host: launches");
    sim_op op = sim_queue(p->sim, s->lane, &call, function, argument);
    if (p->machine.is_cpu)
        sim_wait(p->sim, op);
}

/* ---- time ---- */

static void use(struct sim_work *w, enum plan_resource resource, double share)
{
    if (share > 1e-6)
        w->uses[w->n_uses++] = (struct sim_use){resource, share < 1 ? share : 1};
}

/* On the CPU device: one operator at a time, on all cores. */
static struct sim_work cpu_work(const struct plan *p, double seconds, double bytes)
{
    struct sim_work w = {.seconds = seconds};
    use(&w, PLAN_MULTIPROCESSORS, 1);
    use(&w, PLAN_HOST_MEMORY, seconds > 0 ? bytes / p->machine.memory_rate / seconds : 0);
    return w;
}

static double cpu_seconds(const struct machine *m, const char *name, bool drops,
                          struct op_cost cost)
{
    char with[64];
    snprintf(with, sizeof with, "%s, dropout", name);
    const struct machine_operator *o = drops ? machine_find(m, with) : NULL;
    o = o ? o : machine_find(m, name);
    if (!o)
        return cost.bytes / m->memory_rate + cost.flops / m->product_rate;
    return machine_operator_seconds(o, cost.bytes, cost.flops);
}

void plan_operate(struct stream *s, const char *name, const char *what, struct op_cost cost,
                  bool drops)
{
    const struct plan *p = s->plan;
    const struct machine *m = &p->machine;
    struct sim_work w = {.latency = m->latency};
    double memory = cost.bytes / m->memory_rate;
    if (m->is_cpu) {
        w = cpu_work(p, cpu_seconds(m, name, drops, cost), cost.bytes);
    } else {
        double arithmetic = cost.flops / m->attention_rate;
        w.seconds = fmax(memory, arithmetic);
        if (w.seconds > 0) {
            use(&w, PLAN_MULTIPROCESSORS, arithmetic / w.seconds);
            use(&w, PLAN_DEVICE_MEMORY, memory / w.seconds);
        }
    }
    w.what = what;
    plan_put(s, &w);
}

static double product_seconds(const struct machine *m, const struct matmul *p, double flops)
{
    if (m->products.n_sides > 0)
        return flops / machine_product_rate(&m->products,
                                            p->trans_a   ? 1
                                            : p->trans_b ? 2
                                                         : 0,
                                            p->m, p->n, p->k);
    double full = p->m / (p->m + m->half_m) * p->n / (p->n + m->half_n) * p->k / (p->k + m->half_k);
    return flops / (m->product_rate * full);
}

/* What the CPU device does to a product's result in a pass of its own. */
static double finishing_seconds(const struct machine *m, const struct matmul *p)
{
    const char *name = p->gradient_of       ? "activation, slope"
                       : p->act != ACT_NONE ? "activation"
                       : p->bias            ? "bias"
                                            : NULL;
    struct op_cost cost = {.bytes = 4.0 * p->m * p->n};
    return name && m->is_cpu ? cpu_seconds(m, name, false, cost) : 0;
}

void plan_product(struct stream *s, const struct matmul *product)
{
    static const char *const what = "products";
    const struct plan *p = s->plan;
    const struct machine *m = &p->machine;
    struct op_cost cost = cost_matmul((int)dtype_size(p->device.dtype), product);
    struct sim_work w = {.latency = m->latency};
    double memory = cost.bytes / m->memory_rate;
    if (cost.flops <= 0)
        return;
    double arithmetic = product_seconds(m, product, cost.flops);
    if (m->is_cpu) {
        w = cpu_work(p, fmax(arithmetic, memory) + finishing_seconds(m, product), cost.bytes);
    } else {
        w.seconds = fmax(memory, arithmetic);
        use(&w, PLAN_MULTIPROCESSORS, 1);
        use(&w, PLAN_DEVICE_MEMORY, memory / w.seconds);
    }
    w.what = what;
    plan_put(s, &w);
}

void plan_transfer(struct stream *s, const char *name, struct op_cost cost, bool down,
                   bool by_kernel)
{
    const struct plan *p = s->plan;
    const struct machine *m = &p->machine;
    struct sim_work w = {.latency = m->latency + m->link_latency, .first = true};
    double link = cost.link / p->link_rate, memory = cost.bytes / m->memory_rate;
    if (m->is_cpu) {
        w = cpu_work(p, cpu_seconds(m, name, false, cost), cost.bytes);
    } else {
        w.seconds = fmax(link, memory);
        if (w.seconds > 0) {
            use(&w, down ? PLAN_DOWN : PLAN_UP, link / w.seconds);
            use(&w, PLAN_HOST_MEMORY, cost.link / p->host_rate / w.seconds);
            use(&w, PLAN_DEVICE_MEMORY, memory / w.seconds);
            use(&w, PLAN_MULTIPROCESSORS,
                by_kernel ? m->transfer_multiprocessors / m->multiprocessors : 0);
        }
    }
    w.what = down ? "link down" : "link up";
    plan_put(s, &w);
}

/* ---- the host ---- */

void plan_host_copies(struct plan *p, size_t bytes)
{
    double seconds = 2 * (double)bytes / p->machine.core_rate;
    struct sim_work w = {.what = "host: copies", .seconds = seconds};
    use(&w, PLAN_HOST_MEMORY, p->machine.core_rate / p->host_rate);
    sim_wait(p->sim, sim_queue(p->sim, p->host_lane, &w, NULL, NULL));
}

struct sim_work plan_worker_work(const struct plan *p, int n_workers, double bytes)
{
    const struct machine *m = &p->machine;
    struct sim_work w = {.what = "host AdamW", .latency = m->wake, .seconds = bytes / m->core_rate};
    if (bytes > 0)
        use(&w, PLAN_HOST_MEMORY, m->core_rate / p->host_rate);
    /* On a core that an operator's thread is on too, each has half of it. */
    if (m->is_cpu && bytes > 0 && m->threads + n_workers > m->cores / p->local_ranks)
        use(&w, PLAN_MULTIPROCESSORS, 1.0 / n_workers);
    return w;
}

static struct sim_work exchange_work(const struct plan *p, double bytes, int rounds)
{
    const struct machine *m = &p->machine;
    double rate = p->ranks > p->local_ranks ? m->network_rate : m->exchange_rate;
    struct sim_work w = {
        .what = "network",
        .latency = rounds * m->exchange_latency,
        .seconds = bytes / rate,
        .first = true,
    };
    use(&w, m->is_cpu ? PLAN_MULTIPROCESSORS : PLAN_NETWORK, 1);
    if (!m->is_cpu && bytes > 0)
        use(&w, PLAN_DEVICE_MEMORY, 2 * rate / m->memory_rate);
    return w;
}

void plan_exchange(struct plan *p, struct stream *s, double bytes, int rounds)
{
    struct sim_work w = exchange_work(p, bytes, rounds);
    plan_put(s, &w);
}

void plan_host_exchange(struct plan *p, double bytes, int rounds)
{
    struct sim_work w = exchange_work(p, bytes, rounds);
    sim_wait(p->sim, sim_queue(p->sim, p->host_lane, &w, NULL, NULL));
}

/* ---- copies ---- */

static void copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    const struct plan *p = s->plan;
    const struct allocation *to = find(p, dst), *from = find(p, src);
    bool down = from && from->on_device && !(to && to->on_device);
    bool up = to && to->on_device && !(from && from->on_device);
    if (bytes == 0)
        return;
    if (bytes <= COPY_LIMIT)
        memcpy(dst, src, bytes);
    struct op_cost cost = {
        .bytes = (down || up ? 1 : 2) * (double)bytes,
        .link = down || up ? (double)bytes : 0,
    };
    if (p->machine.is_cpu)
        plan_operate(s, "copy", "other operators", cost_copy_rows((double)bytes), false);
    else if (down || up)
        plan_transfer(s, "copy", cost, down, false);
    else
        plan_operate(s, "copy", "other operators", cost, false);
    if (p->machine.is_cpu)
        return;
    if (!from)
        sim_host(p->sim, 2 * (double)bytes / p->machine.core_rate, "host: copies");
    if (!to)
        stream_wait(s);
}

static void zero(struct stream *s, void *dst, size_t bytes)
{
    if (bytes == 0)
        return;
    if (bytes <= MAP_LIMIT)
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
        .dtype = p->machine.is_cpu ? DTYPE_F32 : DTYPE_BF16,
        .unified = p->machine.is_cpu,
        .compute = &p->compute,
        .plan = p,
        .reserve = reserve,
        .allocate = allocate,
        .release = give_back,
        .free_bytes = free_bytes,
        .allocate_host = allocate_host,
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
    p->gradients = *gradients;
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
    p->compute = (struct stream){p, sim_lane(p->sim)};
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
        give_back(p->allocations[0].memory);
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

int plan_local_ranks(const struct plan *p)
{
    return p->local_ranks;
}

size_t plan_device_bytes(const struct plan *p)
{
    return p->device_bytes;
}

size_t plan_host_bytes(const struct plan *p)
{
    return p->host_bytes;
}
