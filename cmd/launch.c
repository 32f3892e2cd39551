#include "cmd/launch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How launchers number the processes that they start. Slurm sets SLURM_NTASKS and SLURM_PROCID also
 * in the batch script's own shell, where there is one process; the number of a step's tasks is set
 * in what srun starts alone. WORLD_SIZE without RANK is what people export for themselves. */
static const struct {
    const char *size, *rank, *launcher, *also;
} launchers[] = {
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun",
     " in the job, or with \"srun --mpi=pmix\" where Slurm and MPI have it"},
    {"WORLD_SIZE", "RANK", "torchrun or a launcher like it", ""},
    {"PMI_SIZE", "PMI_RANK", "a launcher of another MPI (PMI)", " of Open MPI"},
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

bool launch_check(int n_ranks, struct zf_error *err)
{
    if (n_ranks > 1 || getenv("OMPI_COMM_WORLD_SIZE")) /* mpirun's own word */
        return true;
    if (in_a_shell())
        return true;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *size = getenv(launchers[i].size);
        if (!size || atoi(size) <= 1 || !getenv(launchers[i].rank))
            continue;
        return zf_fail(err,
                       "this is one of %s processes that %s started (%s), but MPI knows of one "
                       "rank alone: start them with \"mpirun -n %s zf-train ...\"%s",
                       size, launchers[i].launcher, launchers[i].size, size, launchers[i].also);
    }
    return true;
}
