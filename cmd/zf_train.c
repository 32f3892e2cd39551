/* zf-train: fine-tunes GPT models on GLUE. Alone, or one process a rank under mpirun. */
#include "cmd/about.h"
#include "cmd/agree.h"
#include "cmd/config/config.h"
#include "cmd/launch.h"
#include "cmd/live.h"
#include "cmd/manual/manual.h"
#include "cmd/openmp_spin.h"
#include "cmd/plan.h"
#include "cmd/run.h"
#include "cmd/standard_streams.h"
#include "cmd/start.h"
#include "cmd/stop.h"
#include "data/address_space.h"
#include "data/log.h"
#include "data/terminal.h"
#include "offload/comm/comm.h"
#include "offload/comm/watch.h"

#include <stdio.h>
#include <unistd.h>

static bool work(struct config *config, struct comm *comm, int *status, struct zf_error *err)
{
    struct run run;
    struct watch *watch = watch_start(comm, config->ddp_timeout, "ddp_timeout");
    if (comm_rank(comm) == 0)
        live_begin(!config->disable_tqdm && terminal_is_at(STDERR_FILENO));
    bool ok = run_create(&run, config, comm, err) &&
              (config->plan ? plan_execute(&run, err) : run_execute(&run, err));
    struct zf_error late;
    *status = run.stopped ? STOP_STATUS : 0;
    if (!run_destroy(&run, &late) && ok)
        ok = zf_fail(err, "%s", late.text);
    live_end();
    watch_stop(watch);
    return ok;
}

static void print_help(void)
{
    struct manual *m = manual_of_train();
    manual_print_help(m, stdout);
    manual_free(m);
}

static bool act(struct config *config, struct comm *comm, int *status, struct zf_error *err)
{
    bool first = comm_rank(comm) == 0;
    switch (config->action) {
    case CONFIG_HELP:
        if (first)
            print_help();
        return true;
    case CONFIG_VERSION:
        if (first)
            about_print_version("zf-train");
        return true;
    case CONFIG_PRINT:
        if (first)
            config_print(config, stdout);
        return true;
    case CONFIG_RUN:
        break;
    }
    return launch_check(comm_size(comm), err) && work(config, comm, status, err);
}

int main(int argc, char **argv)
{
    openmp_spin_briefly(argv);
    start_begin();
    address_space_begin();
    stop_listen();
    struct zf_error err = {0};
    struct config config = {0};
    bool open = standard_streams_begin(&err);
    struct comm *comm = comm_create();
    int status = 0;
    log_set_rank(comm_rank(comm));
    bool ok =
        comm_all_ok(comm, open && config_parse(&config, argc, argv, comm_size(comm), &err), &err);
    if (ok && config.action == CONFIG_RUN)
        address_space_start_threads();
    ok = ok && agree_on_start(comm, &config, &err);
    ok = ok && act(&config, comm, &status, &err) &&
         comm_all_ok(comm, standard_streams_end(&err), &err);
    if (!ok)
        status = about_status(&err);
    stop_finish(status);
    if (!ok && comm_rank(comm) == 0)
        fprintf(stderr, "zf-train: %s\n", err.text);
    config_free(&config);
    comm_destroy(comm);
    return status;
}
