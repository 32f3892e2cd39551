#include "cmd/launch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How launchers number the processes that they start. Slurm sets SLURM_NTASKS and SLURM_PROCID also
 * in the batch script's own shell, where there is one process; the number of a step's tasks is set
 * in what srun starts alone. WORLD_SIZE without RANK is what people export for themselves. The
 * others' sizes are set in what they start alone: Hydra of MPICH and Intel, MVAPICH2, Flux, and
 * PALS of Cray, which tells those of this machine. */
static const struct {
    const char *size;
    const char *rank; /* counts with it alone; or NULL */
    const char *launcher, *also;
} launchers[] = {
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun",
     " in the job, or with \"srun --mpi=pmix\" where Slurm and MPI have it"},
    {"WORLD_SIZE", "RANK", "torchrun or a launcher like it", ""},
    {"PMI_SIZE", NULL, "a launcher of another MPI (PMI)", " of Open MPI"},
    {"MV2_COMM_WORLD_SIZE", NULL, "MVAPICH2's launcher", " of Open MPI"},
    {"FLUX_JOB_SIZE", NULL, "flux run", " in the job"},
    {"PALS_LOCAL_SIZE", NULL, "mpiexec or aprun of PALS", " of Open MPI"},
};

/* Whether a person's shell is a Slurm step, as salloc's and that of "srun --pty bash" are: what it
 * runs has the step's variables, however many tasks that was asked for. A step that is started from
 * such a shell has them too, but no terminal. */
static bool in_a_shell(void)
{
    const char *step = getenv("SLURM_STEP_ID");
    return (step && strcmp(step, "4294967290") == 0) /* SLURM_INTERACTIVE_STEP */ ||
           (getenv("SLURM_PTY_PORT") && isatty(STDIN_FILENO));
}

/* Open MPI's mpirun says how many it started: another number has been inherited, or exported. */
static bool check_mpirun(const char *size, int n_ranks, struct zf_error *err)
{
    return atoi(size) == n_ranks ||
           zf_fail(err,
                   "OMPI_COMM_WORLD_SIZE is %s, but MPI knows of %d rank(s): this process was not "
                   "started by the mpirun that set it, or that is another MPI's; start it with "
                   "Open MPI's, or unset OMPI_COMM_WORLD_SIZE",
                   size, n_ranks);
}

/* A rank's number that the ranks do not have: whoever set it started others that MPI does not know
 * of. Where MPI found several ranks, its own launcher is there, perhaps within another's step. */
static bool check_rank(const char *name, int n_ranks, struct zf_error *err)
{
    const char *rank = getenv(name);
    return n_ranks > 1 || !rank || atoi(rank) < n_ranks ||
           zf_fail(err,
                   "%s is %s, but MPI knows of %d rank(s): start the ranks with \"mpirun -n N "
                   "zf-train ...\", or unset it",
                   name, rank, n_ranks);
}

bool launch_check(int n_ranks, struct zf_error *err)
{
    const char *by_mpirun = getenv("OMPI_COMM_WORLD_SIZE");
    if (by_mpirun)
        return check_mpirun(by_mpirun, n_ranks, err);
    if (n_ranks > 1)
        return true;
    if (in_a_shell())
        return true;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *size = getenv(launchers[i].size);
        if (!size || atoi(size) <= 1 || (launchers[i].rank && !getenv(launchers[i].rank)))
            continue;
        return zf_fail(err,
                       "this is one of %s processes that %s started (%s), but MPI knows of one "
                       "rank alone: start them with \"mpirun -n %s zf-train ...\"%s",
                       size, launchers[i].launcher, launchers[i].size, size, launchers[i].also);
    }
    return check_rank("PMIX_RANK", n_ranks, err) && check_rank("PMI_RANK", n_ranks, err);
}
