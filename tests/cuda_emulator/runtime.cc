/* The rest of the runtime: devices, their properties, errors. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

#define MULTIPROCESSORS 4

static int chosen_device;

static int device_count()
{
    static const int n = (int)emulator_environment("ZF_EMULATOR_DEVICES", 1);
    return n;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess; /* what is wrong about a launch is a fault */
}

cudaError_t cudaPeekAtLastError(void)
{
    return cudaSuccess;
}

static const struct {
    cudaError_t code;
    const char *name, *sentence;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
};

const char *cudaGetErrorName(cudaError_t code)
{
    for (const auto &one : errors)
        if (one.code == code)
            return one.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code)
{
    for (const auto &one : errors)
        if (one.code == code)
            return one.sentence;
    return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = device_count();
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device)
{
    emulator_enter("cudaSetDevice");
    if (device < 0 || device >= device_count())
        return cudaErrorInvalidDevice;
    chosen_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = chosen_device;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= device_count())
        return cudaErrorInvalidDevice;
    size_t free_bytes;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated CUDA device");
    cudaMemGetInfo(&free_bytes, &p->totalGlobalMem);
    p->uuid.bytes[0] = (char)device;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = EMULATOR_WARP;
    p->maxThreadsPerBlock = 1024;
    p->major = 9;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->l2CacheSize = 1 << 20;
    p->memoryBusWidth = 4096;
    p->pciBusID = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    cudaError_t code = cudaGetDeviceProperties(&p, device);
    if (code != cudaSuccess)
        return code;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory)
{
    static const enum cudaMemoryType types[] = {cudaMemoryTypeUnregistered, cudaMemoryTypeHost,
                                                cudaMemoryTypeDevice};
    void *p = (void *)memory;
    emulator_place place = emulator_place_of(memory);
    attributes->type = types[place];
    attributes->device = place == EMULATOR_ORDINARY ? -1 : chosen_device;
    attributes->devicePointer = place == EMULATOR_ORDINARY ? NULL : p;
    attributes->hostPointer = place == EMULATOR_DEVICE ? NULL : p;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
