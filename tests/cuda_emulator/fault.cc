#include "internal.h"

#include "tests/seed.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t dice;
static bool seeded;
static long first_seed = -1;

long emulator_environment(const char *name, long otherwise)
{
    const char *text = getenv(name);
    if (!text)
        return otherwise;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 0 || errno)
        emulator_fault("%s is \"%s\", but a number from 0 up is expected", name, text);
    return value;
}

void emulator_seed(uint32_t seed)
{
    dice = (uint64_t)seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    dice += (uint64_t)test_seed() * 0xd1342543de82ef95u;
    first_seed = seed;
    seeded = true;
}

/* Sequences of a linear congruence, the high half mixed (O'Neill, "PCG", 2014). */
uint32_t emulator_random()
{
    if (!seeded)
        emulator_seed((uint32_t)emulator_environment("ZF_EMULATOR_SEED", 0));
    uint64_t old = dice;
    dice = old * 6364136223846793005u + 1442695040888963407u;
    uint32_t mixed = (uint32_t)((old >> 18 ^ old) >> 27);
    uint32_t turn = (uint32_t)(old >> 59);
    return mixed >> turn | mixed << (-turn & 31);
}

void emulator_fault(const char *format, ...)
{
    char text[1024], place[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    emulator_describe_place(place, sizeof place);
    fflush(stdout);
    fprintf(stderr, "cuda emulator: %s%s (seed %ld, ZF_SEED=%u)\n", text, place, first_seed,
            test_seed());
    _exit(1);
}
