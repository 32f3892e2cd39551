#!/usr/bin/env bash
# A rank that is stopped, that hangs, or that is gone where the launcher does not see to it: it is named, with where
# each rank is, and all are gone within seconds after ddp_timeout. A rank that takes its time with a file is not,
# and a finished run has not failed though its launcher stands still.

. tests/e2e/lib/common.sh "$@"
need mpirun pgrep

job=""
trap 'if [ -n "$job" ]; then kill -9 "$job" 2>/dev/null || true; fi; rm -rf "$scratch"' EXIT

# start OPTION...: three ranks that train, their process ids in $pids. $launcher has mpirun's options.
launcher=()
start() {
    rm -rf "$scratch/out"
    mpirun -n 3 --oversubscribe --bind-to none "${launcher[@]}" "$train" --config "$steady/zenflow.json" "${tiny[@]}" \
        --train_batch_size 12 --per_device_train_batch_size 4 --max_steps 1000000 --save_strategy no \
        --overwrite_output_dir --output_dir "$scratch/out" "$@" >"$scratch/log" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do
        if grep -q '"step": 4,' "$scratch/out/trainer_log.jsonl" 2>/dev/null; then break; fi
        sleep 0.1
    done
    mapfile -t pids < <(pgrep -P "$job" zf-train || true)
    check "three ranks train" test "${#pids[@]}" = 3
}
all_ended() { # within ten seconds no process is more than a status that nobody has asked for
    local i
    for ((i = 0; i < 100; i++)); do
        [ -n "$(ps -o stat= -p "$(IFS=, && echo "${pids[*]}")" | grep -v Z)" ] || return 0
        sleep 0.1
    done
    return 1
}
can_compile() {
    command -v gcc >/dev/null && return
    echo "not checked: what needs gcc, which is not installed"
    return 1
}
compile() { # compile NAME <SOURCE: $scratch/NAME.so, to be preloaded
    gcc -shared -fPIC -o "$scratch/$1.so" -x c - -ldl
}
is_told() { # is_told RANK WHAT: the sentence, and all ranks' places. Ranks look once in a second or two.
    grep '^zf-train: rank' "$scratch/log" || true
    check "rank $1 is named" grep -q "^zf-train: rank $1 (process ${pids[$1]} on $(hostname)) $2 for [345] seconds (ddp_timeout is 3)" "$scratch/log"
    for r in 0 1 2; do
        check "where rank $r was" grep -q "^  rank $r (process ${pids[$r]} on .*): at [a-z ]*, .*after [0-9]* collectives" "$scratch/log"
    done
}

for rank in 1 0; do
    start --ddp_timeout 3
    began=$SECONDS status=0
    kill -STOP "${pids[$rank]}"
    wait "$job" || status=$?
    job=""
    check "rank $rank is stopped: a non-zero status" test "$status" != 0
    check "rank $rank is stopped: within 3 + 10 seconds" test $((SECONDS - began)) -le 13
    check "rank $rank is stopped: all are gone" all_ended
    if [ $rank = 1 ]; then
        is_told 1 "is stopped or unreachable: nothing was heard of it"
    else # each other rank sees itself and rank 0
        check "rank 0 is named" grep -q "^zf-train: rank 0 (process ${pids[0]} on .*) is stopped or unreachable" "$scratch/log"
    fi
done

# One that is only slow to get there again, as after a pause of the whole machine, is not.
start --ddp_timeout 3
kill -STOP "${pids[@]}"
sleep 7
kill -CONT "${pids[@]}"
sleep 3
check "all paused and going on: nobody is accused" kill -0 "$job"
kill -USR1 "$job"
status=0
wait "$job" || status=$?
job=""
check "all paused and going on: the run stops as it should" test "$status" = 75

# A rank that hangs in a product: the library's call never returns on rank 1.
if can_compile; then
    compile hang <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int dnnl_sgemm(char ta, char tb, long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
               float beta, float *c, long ldc)
{
    static int calls;
    __typeof__(&dnnl_sgemm) next = (__typeof__(next))dlsym(RTLD_NEXT, "dnnl_sgemm");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (++calls == 600 && rank && atoi(rank) == 1)
        for (;;)
            pause();
    return next(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
END
    launcher=(-x "LD_PRELOAD=$scratch/hang.so")
    start --ddp_timeout 3 --device cpu
    launcher=()
    status=0
    wait "$job" || status=$?
    job=""
    check "rank 1 hangs: a non-zero status" test "$status" != 0
    check "rank 1 hangs: within 3 + 10 seconds of the last step" test \
        $(($(date +%s) - $(stat -c %Y "$scratch/out/trainer_log.jsonl"))) -le 13
    check "rank 1 hangs: all are gone" all_ended
    is_told 1 "is the one that the others wait for: no rank has gone on"
fi

# mpirun stands still for four seconds just as the ranks of a finished run take leave of it.
if can_compile; then
    compile leave <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static int leaving;
int MPI_Finalize(void)
{
    leaving = atoi(getenv("OMPI_COMM_WORLD_RANK")) == 0;
    return ((int (*)(void))dlsym(RTLD_NEXT, "MPI_Finalize"))();
}
int PMIx_Finalize(const void *info, size_t n) /* MPI_Init calls it, too */
{
    if (leaving)
        kill(getppid(), SIGSTOP);
    return ((int (*)(const void *, size_t))dlsym(RTLD_NEXT, "PMIx_Finalize"))(info, n);
}
END
    mpirun -n 2 --oversubscribe --bind-to none -x LD_PRELOAD="$scratch/leave.so" "$train" "${tiny[@]}" \
        --config "$steady/zenflow.json" --train_batch_size 8 --per_device_train_batch_size 4 --max_steps 2 \
        --overwrite_output_dir --output_dir "$scratch/out" >"$scratch/log" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do
        if [[ $(ps -o stat= -p "$job") == T* ]]; then break; fi
        sleep 0.1
    done
    check "mpirun stands still as ranks take leave" test "$i" -lt 600
    sleep 4
    kill -CONT "$job"
    status=0
    wait "$job" || status=$?
    job=""
    check "mpirun stands still as ranks take leave: the run has not failed" test "$status" = 0
fi

# mpirun takes its time: ranks see for themselves that one is gone, though they may stand still as long as they like.
export OMPI_MCA_odls_base_sigkill_timeout=60
start --ddp_timeout 0
unset OMPI_MCA_odls_base_sigkill_timeout
kill -KILL "${pids[1]}"
check "rank 1 is gone: all are gone within ten seconds" all_ended
kill -9 "$job"
wait "$job" || true
job=""
finish
