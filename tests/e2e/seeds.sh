#!/usr/bin/env bash
# Randomised tests say with which seed they run, and take it from ZF_SEED; a fault repeats with it.

. tests/e2e/lib/common.sh "$@"
programs=$build/tests/cuda_emulator
[ -x "$programs/zenflow_invariants_emulated" ] || skip "the emulated tests are not built"

invariant() { # invariant SEED: what a test that takes a second says of its seed; it passes
    env -u ZF_SEED ${1:+"ZF_SEED=$1"} "$programs/zenflow_invariants_emulated" launches cuda >"$scratch/printed" 2>&1 &&
        grep '^seed ' "$scratch/printed"
}
check "by default it is 0" test "$(invariant '')" = "seed 0: ZF_SEED=0 repeats this run"
check "a number is taken" test "$(invariant 1234)" = "seed 1234: ZF_SEED=1234 repeats this run"
first=$(invariant random) second=$(invariant random) third=$(invariant random)
echo "$first; $second; $third"
check "a fresh one is drawn" not test "$first" = "$second" -a "$second" = "$third"
check "something else is refused" not invariant 12x
check "and said" grep -qx 'ZF_SEED is "12x", but a number from 0 up, or random, is expected' "$scratch/printed"

# A test that fails has named the seed before.
fails() { # fails SEED PROGRAM...
    local seed=$1
    shift
    not env ZF_SEED="$seed" ZF_EMULATOR_MEMORY=0 "$@" >"$scratch/printed" 2>&1
}
for program in test_cuda_device_emulated test_cuda_rows_emulated test_cuda_comm_emulated \
    "zenflow_invariants_emulated I1 cuda"; do
    # shellcheck disable=SC2086 # a program and its arguments
    check "$program fails without memory" fails 77 "$programs"/$program
    check "$program: it names the seed" grep -qx 'seed 77: ZF_SEED=77 repeats this run' "$scratch/printed"
done
if command -v mpirun >/dev/null; then
    check "ranks" env ZF_SEED=random ZF_EMULATOR_DEVICES=2 mpirun -n 2 --oversubscribe --bind-to none \
        "$programs/zenflow_invariants_emulated" launches cuda
    check "ranks: they have one seed" test "$(grep -c '^seed ' "$scratch/check.log")" = 1
fi
finish
