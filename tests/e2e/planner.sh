#!/usr/bin/env bash
# The planner's choice beside all that fits, by plans: the README says how far it is from the fastest.

. tests/e2e/lib/common.sh "$@"
need python3

settings=(h100,6,4 h100,6,16 rtx-4090,6,4)
[ "${ZF_LONG:-}" != 1 ] || settings+=(a100-40gb,6,4 a100-40gb,6,8 a100-40gb:4,6,4 rtx-4090,6,16 h200,12,8)
TMPDIR=$scratch check "choices are near the fastest that fits" python3 tests/e2e/lib/planner.py "$build" 1.45 1.05 "${settings[@]}"
cat "$scratch/check.log"
finish
