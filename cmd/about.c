#include "cmd/about.h"

#include "commit.h" /* ZF_COMMIT; made while building, by scripts/commit.cmake */
#include "model/device/device.h"
#include "offload/comm/comm.h"

void about_print_version(const char *program)
{
    const char *toolkit = device_cuda_toolkit();
    printf("%s " ZF_VERSION "\n"
           "commit: " ZF_COMMIT "\n",
           program);
    printf("CUDA: %s\n", toolkit ? toolkit : "none in this build");
    printf("MPI: %s\n", comm_library());
    printf("BLAS: %s%s\n", device_cpu_products(), toolkit ? "; on GPUs cuBLASLt" : "");
}

int about_status(const struct zf_error *err)
{
    return err->usage ? USAGE_STATUS : FAULT_STATUS;
}
