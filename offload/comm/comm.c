/* Who the ranks are. */
#include "offload/comm/internal.h"

#include "data/address_space.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "offload/host/cores.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Launchers announce themselves in the environment: Open MPI's and PRRTE's mpirun, Slurm's srun
 * with PMIx or PMI2, Hydra. */
static bool launched(void)
{
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "PMI_SIZE"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (getenv(marks[i]))
            return true;
    return false;
}

struct comm *comm_create_alone(void)
{
    struct comm *c = zf_malloc(sizeof *c);
    *c = (struct comm){.alone = true, .size = 1, .local_size = 1, .core_size = 1};
    return c;
}

struct comm *comm_create_planned(int ranks, int ranks_per_host)
{
    struct comm *c = comm_create_alone();
    c->planned = true;
    c->size = ranks;
    c->local_size = c->core_size = ranks < ranks_per_host ? ranks : ranks_per_host;
    return c;
}

/* What ranks tell each other of their cores. */
struct core_peer {
    cpu_set_t cores;
    int key;
};

/* Counts the ranks on this machine whose affinity mask and key are this rank's. */
static void find_peers(const struct comm *c, MPI_Comm node, int key, int *rank, int *size)
{
    struct core_peer mine, *all = zf_malloc(sizeof mine * (size_t)c->local_size);
    memset(&mine, 0, sizeof mine);
    mine.key = key;
    cpu_cores_allowed(&mine.cores, sizeof mine.cores);
    check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, node));
    *size = 0;
    for (int r = 0; r < c->local_size; r++) {
        if (r == c->local_rank)
            *rank = *size;
        *size += CPU_EQUAL(&mine.cores, &all[r].cores) && all[r].key == key;
    }
    free(all);
}

/* Twice what Open MPI takes as it starts; where it finds none it may crash, or wait for ever. */
#define ROOM_FOR_MPI ((size_t)128 << 20)

static MPI_Comm ranks_of_machine(void)
{
    MPI_Comm node;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    return node;
}

struct comm *comm_create(void)
{
    struct comm *c = comm_create_alone();
    if (!launched())
        return c;
    c->alone = false;
    int provided;
    address_space_need(ROOM_FOR_MPI, "MPI");
    check_mpi(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided));
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &c->rank));
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &c->size));
    MPI_Comm node = ranks_of_machine();
    check_mpi(MPI_Comm_rank(node, &c->local_rank));
    check_mpi(MPI_Comm_size(node, &c->local_size));
    find_peers(c, node, 0, &c->core_rank, &c->core_size);
    check_mpi(MPI_Comm_free(&node));
    return c;
}

/* PMIx waits two seconds for the launcher's answer to a rank's farewell, and then goes without it.
 * Where the launcher or the whole machine stood still for so long, a rank that exited now would be
 * taken for one that died, and the run for one that failed: the launcher gets time to read. */
static void leave_mpi(void)
{
    const double unanswered = 1.9;
    const unsigned patience = 5;
    MPI_Barrier(MPI_COMM_WORLD); /* what follows waits for the launcher, and for no rank */
    const double start = clock_seconds();
    MPI_Finalize();
    if (clock_seconds() - start > unanswered)
        sleep(patience);
}

void comm_destroy(struct comm *c)
{
    comm_detach(c);
    if (!c->alone)
        leave_mpi();
    free(c);
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_size(const struct comm *c)
{
    return c->size;
}

int comm_local_rank(const struct comm *c)
{
    return c->local_rank;
}

int comm_local_size(const struct comm *c)
{
    return c->local_size;
}

int comm_core_rank(const struct comm *c)
{
    return c->core_rank;
}

int comm_core_size(const struct comm *c)
{
    return c->core_size;
}

void comm_core_peers(struct comm *c, int key, int *rank, int *size)
{
    *rank = c->core_rank;
    *size = c->core_size;
    if (c->alone)
        return;
    MPI_Comm node = ranks_of_machine();
    find_peers(c, node, key, rank, size);
    check_mpi(MPI_Comm_free(&node));
}

int comm_core_threads(const struct comm *c)
{
    cpu_set_t cores;
    const char *asked = getenv("OMP_NUM_THREADS");
    if (asked && atoi(asked) > 0)
        return atoi(asked);
    cpu_cores_allowed(&cores, sizeof cores);
    int mine = CPU_COUNT(&cores) / c->core_size;
    return mine > 0 ? mine : 1;
}
