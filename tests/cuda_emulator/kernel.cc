/* Kernels: blocks one after another in a random order, each block's threads as fibers. A thread
 * runs until it waits or ends, then another lane of its warp does; a warp runs until all its lanes
 * have ended or wait at the barrier, then another warp does. So threads are as far apart as the
 * barriers allow. */
#include "fibers.h"
#include "internal.h"

#include <stdio.h>
#include <string.h>

#define MAX_THREADS 1024
#define MAX_WARPS   (MAX_THREADS / EMULATOR_WARP)

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
unsigned long emulator_block;

struct lane {
    uint3 index;
    struct fiber *fiber; /* NULL: not begun */
    const char *file;    /* and line of the barrier that it waits at */
    int line;
};

/* A collective that waits for lanes of its mask. */
struct meeting {
    const emulator_collective *collective;
    unsigned mask, arrived;
    void *operands[EMULATOR_WARP];
};

/* Lanes, a bit each: in one of these sets or in a meeting. */
struct warp {
    unsigned ready, at_barrier;
    unsigned ended; /* or never there */
    int n_meetings;
    struct meeting meetings[EMULATOR_WARP];
};

static struct {
    const emulator_kernel *kernel; /* NULL: none runs */
    int n_threads, n_warps;
    int warp, lane; /* those that run */
    int turn;       /* where the search for the next lane begins */
    bool upward;    /* and which way it goes */
} now;
static struct lane lanes[MAX_THREADS];
static struct warp warps[MAX_WARPS];

static struct lane *lane_of(int warp, int lane)
{
    return &lanes[warp * EMULATOR_WARP + lane];
}

int emulator_lane()
{
    return now.lane;
}

int emulator_thread()
{
    return now.warp * EMULATOR_WARP + now.lane;
}

void emulator_describe_place(char *text, size_t bytes)
{
    text[0] = 0;
    if (now.kernel)
        snprintf(text, bytes, ", kernel %s, block (%u, %u, %u), thread (%u, %u, %u)",
                 now.kernel->shape.name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
                 threadIdx.y, threadIdx.z);
}

/* A ready lane of the warp, or -1. */
static inline int next_lane()
{
    unsigned ready = warps[now.warp].ready;
    if (!ready)
        return -1;
    unsigned turned = ready >> now.turn | ready << (-now.turn & 31);
    int found = now.upward ? __builtin_ctz(turned) : 31 - __builtin_clz(turned);
    return (found + now.turn) & (EMULATOR_WARP - 1);
}

static inline void become(int lane)
{
    now.lane = lane;
    threadIdx = lane_of(now.warp, lane)->index;
}

/* A fiber runs one thread after another, until it finds one that has been begun by another. */
static void run_threads()
{
    fiber_begin();
    for (;;) {
        now.kernel->bound->run_thread();
        struct warp *w = &warps[now.warp];
        struct fiber *mine = lane_of(now.warp, now.lane)->fiber;
        w->ready &= ~(1u << now.lane);
        w->ended |= 1u << now.lane;
        int next = next_lane();
        if (next >= 0) {
            become(next);
            struct lane *l = lane_of(now.warp, next);
            if (!l->fiber) {
                l->fiber = mine;
                continue;
            }
        }
        fiber_give_back(mine);
        fiber_switch(mine, next >= 0 ? lane_of(now.warp, next)->fiber : NULL, true);
    }
}

static struct fiber *fiber_of(struct lane *l)
{
    if (!l->fiber)
        l->fiber = fiber_take(run_threads);
    return l->fiber;
}

/* Lets others run until this lane is ready again; the caller has put it into another set. */
static void wait()
{
    struct fiber *mine = lane_of(now.warp, now.lane)->fiber;
    int next = next_lane();
    if (next >= 0)
        become(next);
    fiber_switch(mine, next >= 0 ? fiber_of(lane_of(now.warp, next)) : NULL, false);
}

void emulator_barrier(const char *file, int line)
{
    if (!now.kernel)
        emulator_fault("__syncthreads outside a kernel");
    struct lane *me = lane_of(now.warp, now.lane);
    struct warp *w = &warps[now.warp];
    me->file = file;
    me->line = line;
    w->ready &= ~(1u << now.lane);
    w->at_barrier |= 1u << now.lane;
    wait();
}

static void check_mask(const emulator_collective &collective, unsigned mask)
{
    const struct warp *w = &warps[now.warp];
    if (!(mask >> now.lane & 1))
        emulator_fault("lane %d takes part in %s with mask %08x, which does not name it", now.lane,
                       collective.name, mask);
    if (mask & w->ended)
        emulator_fault("lane %d takes part in %s with mask %08x, which names lane %d, which has "
                       "ended or is not there",
                       now.lane, collective.name, mask, __builtin_ctz(mask & w->ended));
}

/* The meeting of that kind and mask, begun by this lane if by no other. Lanes of other masks may
 * come to theirs first; but two that wait for each other in different ones wait forever. */
static struct meeting *join_meeting(const emulator_collective &collective, unsigned mask)
{
    struct warp *w = &warps[now.warp];
    for (int i = 0; i < w->n_meetings; i++) {
        struct meeting *m = &w->meetings[i];
        if (m->mask == mask && m->collective == &collective)
            return m;
        if ((m->mask >> now.lane & 1) && (m->arrived & mask))
            emulator_fault("lane %d takes part in %s with mask %08x, but lane %d in %s with mask "
                           "%08x",
                           now.lane, collective.name, mask, __builtin_ctz(m->arrived & mask),
                           m->collective->name, m->mask);
    }
    struct meeting *m = &w->meetings[w->n_meetings++];
    m->collective = &collective;
    m->mask = mask;
    m->arrived = 0;
    return m;
}

void emulator_meet(const emulator_collective &collective, unsigned mask, void *operand)
{
    if (!now.kernel)
        emulator_fault("%s outside a kernel", collective.name);
    check_mask(collective, mask);
    struct warp *w = &warps[now.warp];
    struct meeting *m = join_meeting(collective, mask);
    m->operands[now.lane] = operand;
    m->arrived |= 1u << now.lane;
    if (m->arrived != mask) {
        w->ready &= ~(1u << now.lane);
        wait();
        return;
    }
    collective.complete(mask, m->operands);
    w->ready |= mask;
    struct meeting *last = &w->meetings[--w->n_meetings];
    if (m != last)
        *m = *last;
}

void emulator_check_source(const char *what, unsigned mask, int lane, int source)
{
    emulator_fault("lane %d of a %s with mask %08x asks for the value of lane %d, which is not "
                   "named in it",
                   lane, what, mask, source);
}

static void complete_sync(unsigned, void *const (&)[EMULATOR_WARP])
{
}

void emulator_sync_warp(unsigned mask)
{
    static const emulator_collective collective = {"__syncwarp", complete_sync};
    emulator_meet(collective, mask, NULL);
}

struct vote {
    bool mine;
    unsigned all;
};

static void complete_ballot(unsigned mask, void *const (&operands)[EMULATOR_WARP])
{
    unsigned all = 0;
    for (unsigned left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        all |= (unsigned)((struct vote *)operands[i])->mine << i;
    }
    for (unsigned left = mask; left; left &= left - 1)
        ((struct vote *)operands[__builtin_ctz(left)])->all = all;
}

unsigned emulator_ballot(unsigned mask, bool value)
{
    static const emulator_collective collective = {"a ballot", complete_ballot};
    struct vote vote = {value, 0};
    emulator_meet(collective, mask, &vote);
    return vote.all;
}

/* Runs a warp's lanes until all of them have ended or wait at the barrier. */
static void run_warp(int warp)
{
    now.warp = warp;
    now.turn = emulator_random() & (EMULATOR_WARP - 1);
    now.upward = emulator_random() & 1;
    int first = next_lane();
    if (first < 0)
        return;
    become(first);
    fiber_switch(NULL, fiber_of(lane_of(warp, first)), false);
    const struct warp *w = &warps[warp];
    if (w->n_meetings == 0)
        return;
    const struct meeting *m = &w->meetings[0];
    int missing = __builtin_ctz(m->mask & ~m->arrived);
    become(__builtin_ctz(m->arrived));
    emulator_fault("%s with mask %08x waits forever for lane %d, which %s", m->collective->name,
                   m->mask, missing,
                   w->ended >> missing & 1        ? "has ended"
                   : w->at_barrier >> missing & 1 ? "waits in __syncthreads"
                                                  : "waits in another collective");
}

/* All threads that are left wait in __syncthreads: at the same one, or it is a fault. Returns
 * whether there are any. */
static bool release_barrier()
{
    const struct lane *first = NULL;
    for (int i = 0; i < now.n_warps; i++) {
        struct warp *w = &warps[i];
        for (unsigned left = w->at_barrier; left; left &= left - 1) {
            const struct lane *l = lane_of(i, __builtin_ctz(left));
            first = first ? first : l;
            if (l->line != first->line || (l->file != first->file && strcmp(l->file, first->file)))
                emulator_fault("thread %td waits in __syncthreads at %s:%d, but thread %td at "
                               "%s:%d",
                               first - lanes, first->file, first->line, l - lanes, l->file,
                               l->line);
        }
        w->ready = w->at_barrier;
        w->at_barrier = 0;
    }
    return first;
}

static void run_block()
{
    emulator_block++;
    emulator_begin_shared(now.kernel->shape.shared_bytes);
    for (int i = 0; i < now.n_warps; i++) {
        int n = now.n_threads - i * EMULATOR_WARP;
        warps[i].at_barrier = 0;
        warps[i].n_meetings = 0;
        warps[i].ready = n < EMULATOR_WARP ? (1u << n) - 1 : 0xffffffffu;
        warps[i].ended = ~warps[i].ready;
    }
    for (int i = 0; i < now.n_threads; i++)
        lanes[i].fiber = NULL;
    do {
        emulator_order order = emulator_draw_order((uint32_t)now.n_warps);
        for (int i = 0; i < now.n_warps; i++)
            run_warp((int)emulator_next(order));
    } while (release_barrier());
}

static void number_threads(const dim3 &block)
{
    static dim3 numbered(0, 0, 0);
    if (numbered.x == block.x && numbered.y == block.y && numbered.z == block.z)
        return;
    for (int i = 0; i < now.n_threads; i++)
        lanes[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    numbered = block;
}

void emulator_run_kernel(const emulator_kernel &kernel)
{
    const dim3 &grid = kernel.shape.grid;
    now.kernel = &kernel;
    blockDim = kernel.shape.block;
    gridDim = grid;
    now.n_threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    now.n_warps = (now.n_threads + EMULATOR_WARP - 1) / EMULATOR_WARP;
    number_threads(blockDim);
    uint32_t n_blocks = grid.x * grid.y * grid.z;
    emulator_order order = emulator_draw_order(n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t b = emulator_next(order);
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / (grid.x * grid.y)};
        run_block();
    }
    emulator_check_surroundings(kernel.pointers, kernel.n_pointers);
    now.kernel = NULL;
}
