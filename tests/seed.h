/* The seed of a run of randomised tests: ZF_SEED in the environment, a number, or `random` for a
 * fresh one. By default it is 0, so that everyone's tests do the same. */
#ifndef ZF_TESTS_SEED_H
#define ZF_TESTS_SEED_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static inline void test_set_seed(uint32_t seed)
{
    char text[16];
    snprintf(text, sizeof text, "%u", seed);
    setenv("ZF_SEED", text, 1);
}

static inline uint32_t test_seed(void)
{
    const char *text = getenv("ZF_SEED");
    if (!text)
        return 0;
    if (strcmp(text, "random") == 0) { /* drawn once: those who ask later get the same */
        uint16_t seed = 0;
        if (getrandom(&seed, sizeof seed, 0) == sizeof seed)
            test_set_seed(seed);
        return seed;
    }
    char *end;
    errno = 0;
    unsigned long seed = strtoul(text, &end, 10);
    if (errno || *end || *text < '0' || *text > '9' || seed > UINT32_MAX) {
        fprintf(stderr, "ZF_SEED is \"%s\", but a number from 0 up, or random, is expected\n",
                text);
        exit(1);
    }
    return (uint32_t)seed;
}

/* Whether tests repeat what they do as often as they ever do: ZF_LONG=1 in the environment. */
static inline bool in_long_ring(void)
{
    const char *text = getenv("ZF_LONG");
    return text && strcmp(text, "1") == 0;
}

/* What a test repeats `often` in the long ring, it repeats in the others, which people wait for, a
 * third as often; with a sanitizer, where all takes several times as long, a sixth. */
static inline uint32_t test_repeats(uint32_t often)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const uint32_t share = 6;
#else
    const uint32_t share = 3;
#endif
    return in_long_ring() ? often : (often + share - 1) / share;
}

/* First of all, so that it is there whatever happens. */
static inline void test_print_seed(void)
{
    printf("seed %u: ZF_SEED=%u repeats this run\n", test_seed(), test_seed());
    fflush(stdout);
}

#endif
