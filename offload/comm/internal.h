/* What the files of comm.h share. */
#ifndef ZF_OFFLOAD_COMM_INTERNAL_H
#define ZF_OFFLOAD_COMM_INTERNAL_H

#include "offload/comm/comm.h"
#include "offload/comm/place.h"

#include <mpi.h>

struct comm {
    bool alone;   /* MPI not initialised: one rank, or: */
    bool planned; /* the other ranks are not there */
    int rank, size, local_rank, local_size, core_rank, core_size;
    struct attached *attached; /* the device (device.c), or NULL */
    struct plan *plan;         /* of a planned one: the attached device's, or NULL */
    struct comm_sums sums;
};

/* Prints what failed where and ends all ranks. */
#define check_mpi(call)                                                                            \
    do {                                                                                           \
        place_enter(#call);                                                                        \
        int code_ = call;                                                                          \
        place_leave();                                                                             \
        if (code_ != MPI_SUCCESS)                                                                  \
            comm_mpi_failed(code_, #call, __FILE__, __LINE__);                                     \
    } while (0)

_Noreturn void comm_mpi_failed(int code, const char *call, const char *file, int line);

/* MPI counts elements in an int: how many of n go into one call. */
static inline int comm_piece(size_t n)
{
    const size_t largest = (size_t)1 << 28;
    return (int)(n < largest ? n : largest);
}

/* Releases what comm_attach made. */
void comm_detach(struct comm *c);

#endif
