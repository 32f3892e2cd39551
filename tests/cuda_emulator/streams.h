/* Streams, for the libraries that this folder imitates (cuBLASLt, NCCL). */
#ifndef ZF_CUDA_EMULATOR_STREAMS_H
#define ZF_CUDA_EMULATOR_STREAMS_H

#include <cuda_runtime.h>
#include <functional>

/* What an operation says when it is called: that it is over, or that it waits for something outside
 * this process and must be called again; then other streams go on in the meantime. */
enum emulator_progress { EMULATOR_DONE, EMULATOR_NOT_YET };

/* Puts an operation on a stream; it is run later, by this thread, when its turn has come. Device
 * memory is open to the process while it is called, and at no other time: what it leaves to others
 * between two calls (a message under way, say) must lie in ordinary memory. */
void emulator_enqueue(cudaStream_t stream, const char *name,
                      std::function<emulator_progress()> operation);

/* Runs whatever can run of any stream until `goal` holds. A fault if nothing can run and it does
 * not: `what` says what the host waits for. */
void emulator_run_until(const char *what, const std::function<bool()> &goal);

/* Runs a random few operations, if any can run: for one who waits for something outside. */
void emulator_run_some();

#endif
