#include "model/plan/sim.h"

#include "data/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ORDERS 8    /* operations that one is ordered behind, besides the one before it */
#define FULL        1e-9 /* a share that is as good as none */

enum state { QUEUED, STARTING, WORKING, HELD, ENDED };

struct operation {
    struct sim_work work;
    void (*call)(void *);
    void *argument;
    enum state state;
    int lane;
    int n_orders;
    sim_op orders[MOST_ORDERS];
    sim_op before; /* on the same lane */
    sim_op next;   /* on the same lane */
    double given;  /* when it was given out, and by whom: */
    sim_op giver;  /* the operation in whose call; 0: the host */
    int n_awaited; /* operations that its call waits for, and have not ended; */
    sim_op freed;  /* the last of them that did */
    sim_op holds;  /* the operation whose call waits for this one */
    double began, ended;
    double until; /* STARTING: when its latency is over */
    double left;  /* WORKING: seconds at full speed */
    double speed; /* 0 to 1 */
    bool grows;   /* its speed, while shares are given out */
};

struct lane {
    sim_op head, tail; /* not ended; 0: empty */
    sim_op last;       /* ever queued */
    int n_orders;      /* of what is queued next */
    sim_op orders[MOST_ORDERS];
};

/* A stretch of the host's time. */
struct host_stretch {
    const char *what; /* its own work; NULL: it waited for op */
    sim_op op;
    double begin, end;
};

struct sim {
    struct operation *ops; /* (n_ops) numbers first_op, first_op + 1, ... */
    size_t n_ops, ops_capacity;
    sim_op first_op;
    struct lane *lanes;
    int n_lanes, n_resources;
    sim_op *active; /* (n_active <= n_lanes) STARTING or WORKING */
    int n_active;
    double *free_share, *wanted; /* (n_resources) scratch */
    double reached;              /* all events up to here have happened */
    double host;                 /* the host's time, not before it */
    sim_op calling;              /* the operation whose call is running */
    struct host_stretch *history;
    size_t n_history, history_capacity;
};

struct sim *sim_create(void)
{
    struct sim *s = zf_calloc(1, sizeof *s);
    s->first_op = 1;
    return s;
}

void sim_destroy(struct sim *s)
{
    if (!s)
        return;
    free(s->ops);
    free(s->lanes);
    free(s->active);
    free(s->free_share);
    free(s->wanted);
    free(s->history);
    free(s);
}

int sim_resource(struct sim *s)
{
    size_t n = (size_t)s->n_resources + 1;
    s->free_share = zf_realloc(s->free_share, n * sizeof *s->free_share);
    s->wanted = zf_realloc(s->wanted, n * sizeof *s->wanted);
    return s->n_resources++;
}

int sim_lane(struct sim *s)
{
    size_t n = (size_t)s->n_lanes + 1;
    s->lanes = zf_realloc(s->lanes, n * sizeof *s->lanes);
    s->active = zf_realloc(s->active, n * sizeof *s->active);
    s->lanes[s->n_lanes] = (struct lane){0};
    return s->n_lanes++;
}

/* NULL: it has ended and is forgotten. */
static struct operation *find(const struct sim *s, sim_op op)
{
    return op < s->first_op ? NULL : &s->ops[op - s->first_op];
}

static bool has_ended(const struct sim *s, sim_op op)
{
    const struct operation *o = find(s, op);
    return !o || o->state == ENDED;
}

double sim_now(const struct sim *s)
{
    return s->calling ? s->reached : s->host;
}

/* ---- giving out ---- */

sim_op sim_queue(struct sim *s, int lane, const struct sim_work *work, void (*call)(void *),
                 void *argument)
{
    struct lane *l = &s->lanes[lane];
    if (s->n_ops == s->ops_capacity) {
        s->ops_capacity = 2 * s->ops_capacity + 1024;
        s->ops = zf_realloc(s->ops, s->ops_capacity * sizeof *s->ops);
    }
    sim_op op = s->first_op + s->n_ops++;
    struct operation *o = find(s, op);
    *o = (struct operation){
        .work = *work,
        .call = call,
        .argument = argument,
        .lane = lane,
        .n_orders = l->n_orders,
        .before = l->last,
        .given = sim_now(s),
        .giver = s->calling,
    };
    memcpy(o->orders, l->orders, sizeof o->orders);
    l->n_orders = 0;
    if (l->tail)
        find(s, l->tail)->next = op;
    else
        l->head = op;
    l->tail = l->last = op;
    return op;
}

void sim_order(struct sim *s, int lane, sim_op op)
{
    static const struct sim_work nothing = {.what = "order"};
    struct lane *l = &s->lanes[lane];
    const struct operation *o = find(s, op);
    if (!o || o->lane == lane || (o->state == ENDED && o->ended <= sim_now(s)))
        return;
    if (l->n_orders == MOST_ORDERS)
        sim_queue(s, lane, &nothing, NULL, NULL);
    l->orders[l->n_orders++] = op;
}

sim_op sim_mark(struct sim *s, int lane)
{
    static const struct sim_work nothing = {.what = "order"};
    const struct lane *l = &s->lanes[lane];
    return l->n_orders > 0 ? sim_queue(s, lane, &nothing, NULL, NULL) : l->last;
}

/* ---- speeds ---- */

/* Raises the speeds of what is working, of one class, together, until each is at full speed or uses
 * a resource of which nothing is left. */
static void share_out(struct sim *s, bool first)
{
    bool grows = true;
    while (grows) {
        double step = 1;
        for (int r = 0; r < s->n_resources; r++)
            s->wanted[r] = 0;
        grows = false;
        for (int i = 0; i < s->n_active; i++) {
            struct operation *o = find(s, s->active[i]);
            bool stuck = o->state != WORKING || o->work.first != first || o->speed >= 1 - FULL;
            for (int u = 0; u < o->work.n_uses; u++)
                stuck |= s->free_share[o->work.uses[u].resource] < FULL;
            o->grows = !stuck;
            if (stuck)
                continue;
            grows = true;
            step = fmin(step, 1 - o->speed);
            for (int u = 0; u < o->work.n_uses; u++)
                s->wanted[o->work.uses[u].resource] += o->work.uses[u].share;
        }
        for (int r = 0; r < s->n_resources; r++)
            if (s->wanted[r] > 0)
                step = fmin(step, s->free_share[r] / s->wanted[r]);
        for (int r = 0; r < s->n_resources; r++)
            s->free_share[r] -= step * s->wanted[r];
        for (int i = 0; i < s->n_active && grows; i++) {
            struct operation *o = find(s, s->active[i]);
            if (o->grows)
                o->speed += step;
        }
    }
}

static void set_speeds(struct sim *s)
{
    for (int r = 0; r < s->n_resources; r++)
        s->free_share[r] = 1;
    for (int i = 0; i < s->n_active; i++) {
        struct operation *o = find(s, s->active[i]);
        if (o->state == WORKING)
            o->speed = 0;
    }
    share_out(s, true);
    share_out(s, false);
}

/* ---- events ---- */

/* When the head of a lane may begin, at the earliest; INFINITY where it waits for an operation that
 * has not ended. */
static double may_begin(const struct sim *s, const struct operation *o)
{
    double when = o->given;
    for (int i = 0; i < o->n_orders; i++) {
        const struct operation *other = find(s, o->orders[i]);
        if (other && other->state != ENDED)
            return INFINITY;
        if (other)
            when = fmax(when, other->ended);
    }
    const struct operation *before = find(s, o->before);
    return before ? fmax(when, before->ended) : when;
}

static void begin(struct sim *s, sim_op op)
{
    struct operation *o = find(s, op);
    o->state = STARTING;
    o->began = s->reached;
    o->until = o->began + o->work.latency;
    s->active[s->n_active++] = op;
}

/* It has ended, and so have those that waited for nothing else. */
static void finish(struct sim *s, sim_op op)
{
    while (op) {
        struct operation *o = find(s, op), *held = o->holds ? find(s, o->holds) : NULL;
        struct lane *l = &s->lanes[o->lane];
        o->state = ENDED;
        o->ended = s->reached;
        l->head = o->next;
        if (!l->head)
            l->tail = 0;
        if (held)
            held->freed = op;
        op = held && --held->n_awaited == 0 ? o->holds : 0;
    }
}

/* Its work is done. */
static void end(struct sim *s, int index)
{
    sim_op op = s->active[index];
    struct operation *o = find(s, op);
    s->active[index] = s->active[--s->n_active];
    o->state = HELD;
    if (o->call) {
        s->calling = op;
        o->call(o->argument); /* may move s->ops */
        s->calling = 0;
    }
    if (find(s, op)->n_awaited == 0)
        finish(s, op);
}

/* The next time at which anything begins, ends or passes its latency; INFINITY: never. */
static double next_event(const struct sim *s)
{
    double when = INFINITY;
    for (int i = 0; i < s->n_lanes; i++) {
        const struct operation *o = find(s, s->lanes[i].head);
        if (o && o->state == QUEUED)
            when = fmin(when, fmax(may_begin(s, o), s->reached));
    }
    for (int i = 0; i < s->n_active; i++) {
        const struct operation *o = find(s, s->active[i]);
        double over = o->state == STARTING ? o->until
                      : o->left <= 0       ? s->reached
                      : o->speed > 0       ? s->reached + o->left / o->speed
                                           : INFINITY;
        when = fmin(when, over);
    }
    return when;
}

/* Lets time pass until `when`, in which nothing changes. */
static void pass(struct sim *s, double when)
{
    for (int i = 0; i < s->n_active; i++) {
        struct operation *o = find(s, s->active[i]);
        if (o->state == WORKING) {
            double over = s->reached + o->left / o->speed;
            o->left = o->speed > 0 && over <= when ? 0 : o->left - (when - s->reached) * o->speed;
        }
    }
    s->reached = when;
}

/* All that happens at s->reached, in an order that numbers decide. */
static void happen(struct sim *s)
{
    for (int i = 0; i < s->n_active; i++) {
        struct operation *o = find(s, s->active[i]);
        if (o->state == STARTING && o->until <= s->reached) {
            o->state = WORKING;
            o->left = o->work.seconds;
        }
    }
    for (;;) {
        int oldest = -1;
        for (int i = 0; i < s->n_active; i++) {
            const struct operation *o = find(s, s->active[i]);
            if (o->state == WORKING && o->left <= 0 &&
                (oldest < 0 || s->active[i] < s->active[oldest]))
                oldest = i;
        }
        if (oldest < 0)
            break;
        end(s, oldest);
    }
    for (int i = 0; i < s->n_lanes; i++) {
        const struct operation *o = find(s, s->lanes[i].head);
        if (o && o->state == QUEUED && may_begin(s, o) <= s->reached)
            begin(s, s->lanes[i].head);
    }
    set_speeds(s);
}

/* Works through events up to a time, or if op is not 0 until that has ended. */
static void advance(struct sim *s, double to, sim_op op)
{
    assert(!s->calling);
    while (op == 0 || !has_ended(s, op)) {
        double when = next_event(s);
        if (op == 0 && when > to)
            break;
        assert(when < INFINITY); /* what is waited for can be reached */
        pass(s, when);
        happen(s);
    }
    if (op == 0 && to > s->reached)
        pass(s, to);
}

/* ---- the host ---- */

static void note(struct sim *s, const char *what, sim_op op, double begin, double end)
{
    struct host_stretch *last = s->n_history ? &s->history[s->n_history - 1] : NULL;
    if (last && what && last->what == what && last->end == begin) {
        last->end = end;
        return;
    }
    if (s->n_history == s->history_capacity) {
        s->history_capacity = 2 * s->history_capacity + 256;
        s->history = zf_realloc(s->history, s->history_capacity * sizeof *s->history);
    }
    s->history[s->n_history++] = (struct host_stretch){what, op, begin, end};
}

void sim_host(struct sim *s, double seconds, const char *what)
{
    if (s->calling || seconds <= 0)
        return;
    note(s, what, 0, s->host, s->host + seconds);
    s->host += seconds;
}

static void wait_in_call(struct sim *s, sim_op op)
{
    if (has_ended(s, op))
        return;
    assert(!find(s, op)->holds);
    find(s, op)->holds = s->calling;
    find(s, s->calling)->n_awaited++;
}

void sim_wait(struct sim *s, sim_op op)
{
    if (s->calling) {
        wait_in_call(s, op);
        return;
    }
    advance(s, s->host, 0);
    if (has_ended(s, op))
        return;
    advance(s, 0, op);
    note(s, NULL, op, s->host, s->reached);
    s->host = s->reached;
}

bool sim_done(struct sim *s, sim_op op)
{
    advance(s, s->host, 0);
    return has_ended(s, op);
}

double sim_began(const struct sim *s, sim_op op)
{
    const struct operation *o = find(s, op);
    return o ? o->began : 0;
}

double sim_ended(const struct sim *s, sim_op op)
{
    const struct operation *o = find(s, op);
    return o ? o->ended : 0;
}

/* ---- the critical path ---- */

struct walk {
    const struct sim *s;
    struct sim_stretch *path;
    int n, capacity;
    double since;
};

static void add_stretch(struct walk *w, const char *what, double begin, double end)
{
    begin = fmax(begin, w->since);
    if (end <= begin)
        return;
    if (w->n > 0 && strcmp(w->path[w->n - 1].what, what) == 0) {
        w->path[w->n - 1].begin = begin;
        return;
    }
    if (w->n == w->capacity) {
        w->capacity = 2 * w->capacity + 64;
        w->path = zf_realloc(w->path, (size_t)w->capacity * sizeof *w->path);
    }
    w->path[w->n++] = (struct sim_stretch){what, begin, end};
}

/* The operation for whose end this one waited longest; 0: it began as soon as it was given out. */
static sim_op waited_for(const struct sim *s, const struct operation *o)
{
    sim_op last = 0;
    double when = o->given;
    for (int i = -1; i < o->n_orders; i++) {
        sim_op id = i < 0 ? o->before : o->orders[i];
        const struct operation *other = find(s, id);
        if (other && other->ended > when) {
            when = other->ended;
            last = id;
        }
    }
    return last;
}

/* From the host at a time, back to what it last waited for; 0: it is told to the beginning. */
static sim_op walk_host(struct walk *w, double at)
{
    const struct sim *s = w->s;
    for (size_t i = s->n_history; i-- > 0;) {
        const struct host_stretch *h = &s->history[i];
        if (h->begin >= at)
            continue;
        if (!h->what)
            return h->op;
        add_stretch(w, h->what, h->begin, fmin(h->end, at));
        at = h->begin;
    }
    return 0;
}

int sim_critical_path(struct sim *s, double since, struct sim_stretch **path)
{
    struct walk w = {.s = s, .since = since};
    sim_op op = walk_host(&w, s->host);
    const struct operation *o;
    while ((o = find(s, op)) && o->ended > since) {
        if (o->freed) {
            op = o->freed;
            continue;
        }
        add_stretch(&w, o->work.what, o->began, o->ended);
        sim_op next = waited_for(s, o);
        if (!next)
            next = o->giver ? o->giver : walk_host(&w, o->given);
        op = next;
    }
    *path = w.path;
    return w.n;
}

void sim_forget(struct sim *s)
{
    size_t n = 0, h = 0;
    while (n < s->n_ops && s->ops[n].state == ENDED)
        n++;
    if (n > 0)
        memmove(s->ops, s->ops + n, (s->n_ops - n) * sizeof *s->ops);
    s->n_ops -= n;
    s->first_op += n;
    double oldest = s->n_ops ? s->ops[0].given : s->host; /* whose giving out may be asked for */
    while (h < s->n_history && s->history[h].end < oldest && s->history[h].what)
        h++;
    if (h > 0)
        memmove(s->history, s->history + h, (s->n_history - h) * sizeof *s->history);
    s->n_history -= h;
}
