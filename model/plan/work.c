/* How long work takes, and which resources it keeps busy. */
#include "model/plan/internal.h"

#include <math.h>
#include <stdio.h>

/* A group's channels take the host so many times as long to look at as those in a row. */
#define BY_GROUP 5

void plan_busy(struct plan *p, double seconds, const char *what)
{
    p->host.seconds += seconds;
    sim_host(p->sim, seconds, what);
}

void plan_launch(struct plan *p, int n)
{
    p->host.launches += n;
    plan_busy(p, n * p->machine.launch, "host: launches");
}

void plan_host_loop(struct plan *p, size_t channels)
{
    if (p)
        plan_busy(p, (double)channels * p->machine.channel, "host: loops");
}

void plan_host_group_loop(struct plan *p, size_t channels, int groups)
{
    plan_host_loop(p, BY_GROUP * channels / (size_t)groups);
}

/* Puts work on a stream; on a CPU device the host waits for it. */
static void put(struct stream *s, const struct sim_work *work)
{
    struct plan *p = s->plan;
    plan_launch(p, 1);
    sim_op op = sim_queue(p->sim, s->lane, work, NULL, NULL);
    if (p->machine.is_cpu)
        sim_wait(p->sim, op);
}

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
    struct sim_work w = {.latency = (1 + cost.more_kernels) * m->latency, .first = s->ahead};
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
    if (!m->is_cpu)
        plan_launch(s->plan, cost.more_kernels);
    put(s, &w);
}

static double product_seconds(const struct machine *m, const struct matmul *p, double flops)
{
    const int kind = p->trans_a ? 1 : p->trans_b ? 2 : 0;
    const double share = m->is_cpu ? device_cpu_product_share(p->m, p->n, (int)m->threads) : 1;
    if (m->products.n_sides > 0)
        return flops / (share * machine_product_rate(&m->products, kind, p->m, p->n, p->k));
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
        /* cuBLASLt's call takes the host as long as two launches: 6.3 to 7.8 us beside 3.1 on an
         * H100 (tests/bench/results/gpu-h100.txt). */
        plan_busy(s->plan, m->launch, "host: launches");
    }
    w.what = what;
    put(s, &w);
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
    put(s, &w);
}

void plan_host_copies(struct plan *p, size_t bytes)
{
    const double cores = p->machine.cores / p->local_ranks;
    const double rate = fmin(p->host_rate, cores * p->machine.core_rate);
    struct sim_work w = {.what = "host: copies", .seconds = 2 * (double)bytes / rate};
    double begin = sim_now(p->sim);
    use(&w, PLAN_HOST_MEMORY, rate / p->host_rate);
    sim_wait(p->sim, sim_queue(p->sim, p->host_lane, &w, NULL, NULL));
    p->host.seconds += sim_now(p->sim) - begin;
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
    struct sim_work w = {.what = "network",
                         .latency = rounds * m->exchange_latency,
                         .seconds = bytes / rate,
                         .first = true};
    use(&w, m->is_cpu ? PLAN_MULTIPROCESSORS : PLAN_NETWORK, 1);
    if (!m->is_cpu && bytes > 0)
        use(&w, PLAN_DEVICE_MEMORY, 2 * rate / m->memory_rate);
    return w;
}

void plan_exchange(struct plan *p, struct stream *s, double bytes, int rounds)
{
    struct sim_work w = exchange_work(p, bytes, rounds);
    plan_launch(p, rounds - 1); /* each is a call of the host's */
    put(s, &w);
}

void plan_host_exchange(struct plan *p, double bytes, int rounds)
{
    struct sim_work w = exchange_work(p, bytes, rounds);
    sim_wait(p->sim, sim_queue(p->sim, p->host_lane, &w, NULL, NULL));
}
