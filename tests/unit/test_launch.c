/* cmd/launch: processes that do not know of each other are refused, and nobody else is. The
 * variables are those of Slurm's sbatch and srun manuals, of torchrun's and DeepSpeed's launchers,
 * of Hydra, MVAPICH2, Flux and PALS, and of Open MPI's mpirun. */
#include "tests/testing.h"

#include "cmd/launch.h"
#include "data/alloc.h"

#include <fcntl.h>

static const char *const variables[] = {"SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_ID",
                                        "SLURM_NTASKS",
                                        "SLURM_PROCID",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "WORLD_SIZE",
                                        "RANK",
                                        "LOCAL_RANK",
                                        "TORCHELASTIC_RUN_ID",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "SLURM_PTY_PORT",
                                        "PMIX_RANK",
                                        "MV2_COMM_WORLD_SIZE",
                                        "MV2_COMM_WORLD_RANK",
                                        "FLUX_JOB_SIZE",
                                        "FLUX_TASK_RANK",
                                        "PALS_LOCAL_SIZE",
                                        "PALS_LOCAL_RANKID"};

/* Checks under these variables alone, "NAME=VALUE NAME=VALUE ...". */
static bool check(const char *environment, int n_ranks, struct zf_error *err)
{
    char *words = zf_strdup(environment), *rest = words;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    for (char *word; (word = strsep(&rest, " "));)
        if (strchr(word, '=')) {
            *strchr(word, '=') = 0;
            setenv(word, word + strlen(word) + 1, 1);
        }
    bool ok = launch_check(n_ranks, err);
    free(words);
    return ok;
}

static void refuses_ranks_that_stand_alone(void **state)
{
    (void)state;
    struct zf_error err;
    assert_false(
        check("SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2", 1, &err));
    assert_string_equal(
        err.text, "this is one of 2 processes that srun started (SLURM_STEP_NUM_TASKS), but MPI "
                  "knows of one rank alone: start them with \"mpirun -n 2 zf-train ...\" in the "
                  "job, or with \"srun --mpi=pmix\" where Slurm and MPI have it");
    assert_false(check("WORLD_SIZE=8 RANK=0 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=none", 1, &err));
    assert_says(err, "torchrun or a launcher like it started (WORLD_SIZE), but MPI knows of one "
                     "rank alone: start them with \"mpirun -n 8 zf-train ...\"");
    assert_false(check("PMI_SIZE=3 PMI_RANK=2", 1, &err));
    assert_says(err, "\"mpirun -n 3 zf-train ...\" of Open MPI");
    assert_false(check("PMI_SIZE=2 PMI_RANK=0", 1, &err));
    assert_says(err, "(PMI_SIZE), but MPI knows of one rank alone");
    assert_false(check("PMI_SIZE=2 PMIX_RANK=0", 1, &err));
    assert_says(err, "one of 2 processes that a launcher of another MPI (PMI) started (PMI_SIZE)");
    assert_false(check("MV2_COMM_WORLD_SIZE=2", 1, &err));
    assert_says(err, "one of 2 processes that MVAPICH2's launcher started (MV2_COMM_WORLD_SIZE)");
    assert_false(check("FLUX_JOB_SIZE=2 FLUX_TASK_RANK=0", 1, &err));
    assert_says(err, "flux run started (FLUX_JOB_SIZE), but MPI knows of one rank alone: start "
                     "them with \"mpirun -n 2 zf-train ...\" in the job");
    assert_false(check("PALS_LOCAL_SIZE=4", 1, &err));
    assert_says(err, "one of 4 processes that mpiexec or aprun of PALS started (PALS_LOCAL_SIZE)");
    assert_false(check("PMI_RANK=2", 1, &err));
    assert_says(err, "PMI_RANK is 2, but MPI knows of 1 rank(s): start the ranks with");
    assert_false(check("PMIX_RANK=1", 1, &err));
    assert_says(err, "PMIX_RANK is 1, but MPI knows of 1 rank(s)");
    assert_false(check("OMPI_COMM_WORLD_SIZE=2", 1, &err));
    assert_says(err, "OMPI_COMM_WORLD_SIZE is 2, but MPI knows of 1 rank(s)");
    assert_false(check("OMPI_COMM_WORLD_SIZE=1", 2, &err));
    assert_says(err, "OMPI_COMM_WORLD_SIZE is 1, but MPI knows of 2 rank(s)");
}

/* A program of a shell has its terminal; a task that srun started there has none. */
static void knows_a_shell_by_its_terminal(void **state)
{
    (void)state;
    static const char shell[] =
        "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PTY_PORT=34889";
    struct zf_error err;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY), before = dup(STDIN_FILENO);
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    int shells_own = open(ptsname(terminal), O_RDWR | O_NOCTTY), none = open("/dev/null", O_RDONLY);
    dup2(shells_own, STDIN_FILENO);
    bool with = check(shell, 1, &err);
    dup2(none, STDIN_FILENO);
    bool without = check(shell, 1, &err);
    dup2(before, STDIN_FILENO);
    close(terminal);
    close(shells_own);
    close(none);
    close(before);
    assert_true(with && !without);
}

static void takes_what_is_one_run(void **state)
{
    (void)state;
    static const struct {
        const char *environment;
        int n_ranks;
    } cases[] = {
        {"", 1},
        /* A plain process in a batch script, and in an interactive step. */
        {"SLURM_NTASKS=4 SLURM_PROCID=0", 1},
        {"SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", 1},
        {"SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=4", 1},
        /* mpirun in a job: on other nodes its daemon was started by srun, one a node. */
        {"SLURM_NTASKS=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_SIZE=4", 4},
        {"SLURM_NTASKS=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_SIZE=1", 1},
        {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMIX_RANK=1", 2},
        {"PMI_SIZE=2 PMI_RANK=1", 2},
        {"PMI_SIZE=1 PMI_RANK=0", 1},
        {"PMI_RANK=0", 1},
        {"PMIX_RANK=0", 1},
        {"MV2_COMM_WORLD_SIZE=1 MV2_COMM_WORLD_RANK=0", 1},
        {"FLUX_JOB_SIZE=1 FLUX_TASK_RANK=0", 1},
        {"FLUX_JOB_SIZE=2 FLUX_TASK_RANK=1", 2},
        {"PALS_LOCAL_SIZE=1 PALS_LOCAL_RANKID=0", 1},
        {"PALS_LOCAL_SIZE=4 OMPI_COMM_WORLD_SIZE=4", 4},
        {"WORLD_SIZE=1 RANK=0 LOCAL_RANK=0", 1},
        {"WORLD_SIZE=4", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct zf_error err = {0};
        if (!check(cases[i].environment, cases[i].n_ranks, &err))
            fail_msg("%s: %s", cases[i].environment, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_ranks_that_stand_alone),
        cmocka_unit_test(knows_a_shell_by_its_terminal),
        cmocka_unit_test(takes_what_is_one_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
