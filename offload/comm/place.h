/* Where this process's main thread is, for those who watch it (watch.h). A process is one rank, so
 * there is one place, and nobody has to hand it on. Costs next to nothing. */
#ifndef ZF_OFFLOAD_COMM_PLACE_H
#define ZF_OFFLOAD_COMM_PLACE_H

#include <stdbool.h>
#include <stdint.h>

/* The main thread is here from now on. Names are not copied. */
void place_at(const char *name);
/* Whether it does work whose parts are short, each of which ends with place_pass or a collective.
 * Otherwise it may take its time, as with files. */
void place_work(bool works);
void place_pass(void);
/* Around a collective, by the text of its call. */
void place_enter(const char *call);
void place_leave(void);

struct place {
    const char *name, *call; /* call: NULL in no collective */
    uint64_t calls, marks;   /* collectives so far; all that has happened, which only grows */
    bool works;
};
/* Any thread may ask. */
struct place place_now(void);

#endif
