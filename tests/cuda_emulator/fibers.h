/* Fibers: a stack and a place in the code each, of which one runs at a time. */
#ifndef ZF_CUDA_EMULATOR_FIBERS_H
#define ZF_CUDA_EMULATOR_FIBERS_H

#include <stddef.h>

struct fiber; /* NULL is the one that calls kernels: the host's own stack */

/* A fiber that is not in use; begins at `entry` when it is switched to. */
struct fiber *fiber_take(void (*entry)());
/* Gives a fiber back. It may be the one that runs, if it switches away at once and for good. */
void fiber_give_back(struct fiber *fiber);
/* Goes on where `to` switched away. `ends`: this one never runs again. */
void fiber_switch(struct fiber *from, struct fiber *to, bool ends);
/* The first thing that a fiber's entry does. */
void fiber_begin(void);

#endif
