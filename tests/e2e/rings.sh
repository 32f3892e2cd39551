#!/usr/bin/env bash
# The rings of tests: each holds the smaller ones, and `long` is all there is.

. tests/e2e/lib/common.sh "$@"
need ctest

tests() { # tests RING [CTEST OPTION...]: the names
    ctest --test-dir "$build" -N "${@:2}" | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p' | sort >"$scratch/$1"
}
tests all
for ring in fast full long; do
    tests $ring -L "^$ring\$"
    echo "$ring: $(wc -l <"$scratch/$ring") tests"
    check "$ring has tests" test -s "$scratch/$ring"
done
check "full has what fast has" test -z "$(comm -23 "$scratch/fast" "$scratch/full")"
check "and more" not cmp -s "$scratch/fast" "$scratch/full"
check "long is all" cmp "$scratch/all" "$scratch/long"
check "every ring has a preset" test "$(ctest --list-presets | sed -n 's/^ *"\(.*\)".*/\1/p' | xargs)" = "fast full long"

status=0
bash scripts/test.sh slow >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
check "no such ring: status 2" test "$status" = 2
check "no such ring: one sentence, and nothing is begun" test "$(cat "$scratch/stdout" "$scratch/stderr")" = \
    'test.sh: "slow" is no ring of tests: fast, full or long is expected'
finish
