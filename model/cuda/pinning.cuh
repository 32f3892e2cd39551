/* Large arrays of pinned host memory. To pin is to let the system find and fix every page, some
 * seconds for what a large model needs: so a thread does it, piece by piece, beside all that the
 * program does meanwhile, and who needs a piece waits for that one. */
#ifndef ZF_MODEL_CUDA_PINNING_CUH
#define ZF_MODEL_CUDA_PINNING_CUH

#include <stddef.h>

/* An array that is being pinned, for this CUDA device; its pages come from a node of the host's
 * memory (model/device/numa.h). The host may use it at once. NULL: there is not so much. */
void *pinning_allocate(size_t bytes, int ordinal, int node);
/* Whether it was such an array; then it is gone. The device does not use it any more. */
bool pinning_release(void *memory);
/* Waits until what begins here is pinned, if it lies in such an array. Returns how many of so many
 * bytes are in the same piece, and so may be in one copy. */
size_t pinning_await(const void *memory, size_t bytes);

#endif
