/* What the benchmarks of a device share: the device by its name, the time of what runs on it, and
 * its own limits as measured: the rate of a large copy and of a large matrix product. */
#ifndef ZF_CMD_BENCH_DEVICE_H
#define ZF_CMD_BENCH_DEVICE_H

#include "model/device/device.h"
#include "model/device/ops.h"

/* "cuda", "cpu", or "auto": cuda where this machine has one. threads: of the CPU device, 0: as the
 * environment says. A GPU for each rank of this machine, by turns where there are fewer. Fails
 * where there is no such device. `benchmark` begins the message. */
struct device *bench_device(const char *benchmark, const char *name, int threads, int local_rank,
                            struct zf_error *err);

/* Seconds that one run() takes on the device's compute stream: the median of several rounds, each
 * of as many runs between two waits as fill BENCH_ROUND_SECONDS, so that neither the host's launch
 * nor its waiting is in it, unless launches are slower than the work. */
#define BENCH_ROUND_SECONDS 5e-3
double bench_seconds(struct device *device, int rounds, void (*run)(void *), void *argument);

/* Seconds of the host for one run(), which on a GPU only puts its work on the compute stream: the
 * least of several rounds of a few runs each, after one that made plans. */
double bench_launch_seconds(struct device *device, int rounds, void (*run)(void *), void *argument);

struct bench_rates {
    double copy;    /* bytes a second within the device, read and written ones counted */
    double product; /* FLOPs a second of a product of square matrices, of the device's dtype */
    int side;       /* of those matrices */
};
/* side 0: 8192 on CUDA, 1024 on the CPU device. The copy is of 32 such matrices, or of a quarter of
 * the device's free memory where that is less. */
struct bench_rates bench_measure_rates(struct device *device, int side, int rounds);

/* n values of the device's dtype, uniform in (-scale, scale): products of zeros would take less
 * power than real ones, and so less time. */
void *bench_random(struct device *device, size_t n, float scale);
/* A copy of host memory on the device; release it by device->release. */
void *bench_upload(struct device *device, const void *data, size_t bytes);

#endif
