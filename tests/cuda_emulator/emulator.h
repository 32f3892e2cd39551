/* The emulated CUDA device, as tests see it: how its order of events is drawn, and what it counts.
 *
 * A fault in the program under test (see README.md) prints one sentence to stderr and ends the
 * process with status 1; a test that plants one runs it in a child process.
 *
 * Environment: ZF_SEED, of all orders (tests/seed.h); ZF_EMULATOR_SEED, the first seed (0);
 * ZF_EMULATOR_MEMORY, the device's memory in MiB
 * (4096); ZF_EMULATOR_DEVICES, how many devices there are (1). */
#ifndef ZF_CUDA_EMULATOR_EMULATOR_H
#define ZF_CUDA_EMULATOR_EMULATOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From here on, the order of streams, blocks and threads is a function of this seed and ZF_SEED
 * alone. */
void emulator_seed(uint32_t seed);

struct emulator_counts {
    unsigned long launches;   /* kernels that ran */
    unsigned long copies;     /* copies and fills of memory that ran */
    unsigned long host_waits; /* calls in which the host waited for the device */
};
/* Since the program began. */
struct emulator_counts emulator_counts(void);

/* Runs all that is queued, as a wait for the device does, but is not counted as a wait. */
void emulator_drain(void);

#ifdef __cplusplus
}
#endif

#endif
