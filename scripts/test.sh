#!/usr/bin/env bash
# Builds, and runs the tests of a ring. The CUDA device is built where a CUDA toolkit is found; without a
# GPU its tests run emulated.
#
#   bash scripts/test.sh         full: what a change must pass. Most tests optimised, what sanitizers can
#                                find with them, fuzzers for some seconds. On two cores about ten minutes
#                                and the builds, which take five.
#   bash scripts/test.sh fast    one room at a time, formats, rooms; optimised. Under a minute and the build.
#   bash scripts/test.sh long    everything: more repetitions, sanitizers over all tests, fuzzers for
#                                a minute each, and all with fresh seeds, which a test that fails names. Hours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ring=${1:-full}
case $#,$ring in
0,full | 1,fast | 1,full | 1,long) ;;
*)
    echo "test.sh: \"$*\" is no ring of tests: fast, full or long is expected" >&2
    exit 2
    ;;
esac
bash scripts/setup.sh --tests

log=$(mktemp)
trap 'rm -f "$log"' EXIT
tested=0 # seconds
run() { # run FOLDER [CTEST OPTION...]: the ring's tests of this build
    local began=$SECONDS
    ctest --test-dir "$1" --no-tests=error --output-on-failure -j$(($(nproc) + 2)) -L "^$ring\$" "${@:2}" | tee -a "$log"
    tested=$((tested + SECONDS - began))
}
if [ "$ring" = long ]; then
    export ZF_SEED=random
fi

echo "== optimised"
bash scripts/build.sh build
if [ "$ring" = long ]; then
    ZF_LONG=1 run build
else
    run build
fi
why=$(build/tests/test_cuda_device 2>&1 | grep -m 1 '^skipped: ' || true)
[ -z "$why" ] || echo "The tests labelled gpu were $why"

if [ "$ring" != fast ]; then
    # Without tests of the CUDA device on a GPU: nvcc's code has no sanitizers.
    echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
    bash scripts/build.sh build-asan -DZF_SANITIZE=address,undefined
    # Libraries' own one-time allocations are no leaks of ours: tests/lsan.supp names them.
    export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0:fast_unwind_on_malloc=0
    run build-asan -LE '^gpu$'
    [ "$ring" != long ] || ZF_LONG=1 run build-asan -R '^zenflow_hostile_checkpoints$' # 10,000 of them

    echo "== ThreadSanitizer: the engine and its workers"
    bash scripts/build.sh build-tsan -DZF_SANITIZE=thread -- test_worker zenflow_invariants
    # OpenMP's runtime is not instrumented, so these run without its threads.
    OMP_NUM_THREADS=1 run build-tsan

    echo "== fuzzers"
    [ "$ring" = full ] && seconds=5 || seconds=60
    CC=clang CXX=clang++ bash scripts/build.sh build-fuzz -DZF_FUZZ=ON -DZF_FUZZ_SECONDS="${FUZZ_SECONDS:-$seconds}"
    run build-fuzz
fi

echo "The ring \"$ring\" has passed: tests in $((tested / 60)) min $((tested % 60)) s, builds in $(((SECONDS - tested) / 60)) min $(((SECONDS - tested) % 60)) s; fast, full (which is the default) and long are the rings:"
echo "  bash scripts/test.sh fast | full | long"
sed -n 's/^[0-9]*% tests passed, 0 tests failed out of //p' "$log" |
    awk '{ n += $1 } END { print "100% tests passed, 0 tests failed out of " n }'
