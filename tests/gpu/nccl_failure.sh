#!/usr/bin/env bash
# usage: nccl_failure.sh PROGRAM: the emulated test_cuda_comm. A peer that NCCL has lost ends the job
# with one sentence, a rank that is killed ends it too; no rank is left behind.

. tests/e2e/lib/common.sh "$(dirname "$1")"
need mpirun pgrep
program=$1
export ZF_EMULATOR_DEVICES=3
job=""
trap 'if [ -n "$job" ]; then kill "$job" 2>/dev/null || true; fi; rm -rf "$scratch"' EXIT

launch() { # launch: three ranks that reduce, as $job and $pids
    mpirun -n 3 --oversubscribe --bind-to none "$program" forever >"$scratch/log" 2>&1 &
    job=$!
    for ((i = 0; i < 300; i++)); do # mpirun takes its time where the machine is busy
        mapfile -t pids < <(pgrep -P "$job" "$(basename "$program" | cut -c -15)" || true)
        [ "${#pids[@]}" -lt 3 ] || break
        sleep 0.1
    done
    check "three ranks run" test "${#pids[@]}" = 3
}

# Also while mpirun, which is to end the others, does nothing for a while; if it has not ended them by now.
start=$SECONDS status=0
ZF_EMULATOR_NCCL_FAULT=100 launch
kill -STOP "$job" 2>/dev/null || true
sleep 1.5
kill -CONT "$job" 2>/dev/null || true
wait "$job" || status=$?
job=""
check "a lost peer: the job ends with status 1" test "$status" = 1
check "a lost peer: it ends within 20 seconds" test $((SECONDS - start)) -le 20
check "a lost peer: one sentence says so" test "$(grep -c '^zf-train: NCCL' "$scratch/log")" = 1

launch
sleep 0.5 # and they reduce
start=$SECONDS status=0
kill -9 "${pids[1]:-$job}"
wait "$job" || status=$?
job=""
check "a killed rank: the job ends with a non-zero status" test "$status" != 0
check "a killed rank: it ends within 10 seconds" test $((SECONDS - start)) -le 10
check "a killed rank: the others are gone soon" are_gone "${pids[@]}"
finish
