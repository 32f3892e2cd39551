#!/usr/bin/env bash
# Plans beside runs on this machine: loosely, since others may be at work on it. tests/bench/compare_plan.py
# without these options says how near they are.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun

check "steps take about as long as planned" python3 tests/bench/compare_plan.py "$build" --rounds 1 \
    --machine-rounds 3 --seconds 1 --only "1.0 M, 16 x 16" --within 4
cat "$scratch/check.log"
finish
