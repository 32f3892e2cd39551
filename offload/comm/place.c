#include "offload/comm/place.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(const char *) name = "start";
static _Atomic(const char *) call;
static atomic_uint_fast64_t calls, marks;
static atomic_bool works;

void place_at(const char *here)
{
    name = here;
    marks++;
}

void place_work(bool begins)
{
    works = begins;
    marks++;
}

void place_pass(void)
{
    marks++;
}

void place_enter(const char *text)
{
    call = text;
    calls++;
    marks++;
}

void place_leave(void)
{
    call = NULL;
    marks++;
}

struct place place_now(void)
{
    return (struct place){name, call, calls, marks, works};
}
