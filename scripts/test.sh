#!/usr/bin/env bash
# Builds everything optimised and with AddressSanitizer and UBSan, and runs the tests in both; the
# engine and its workers also with ThreadSanitizer; then lets each fuzzer run for a few seconds. The
# CUDA device is built where a CUDA toolkit is found; without a GPU its tests run emulated.
#
#   bash scripts/test.sh              everything: 20 to 40 minutes on two cores
#   FUZZ_SECONDS=60 bash scripts/test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh --tests

echo "== optimised"
bash scripts/build.sh build
ctest --test-dir build --output-on-failure -j2
why=$(build/tests/test_cuda_device 2>&1 | grep -m 1 '^skipped: ' || true)
[ -z "$why" ] || echo "The tests labelled gpu were $why"

echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
bash scripts/build.sh build-asan -DZF_SANITIZE=address,undefined
# Libraries' own one-time allocations are no leaks of ours: tests/lsan.supp names them.
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0:fast_unwind_on_malloc=0
# Without the emulated tests labelled `long`, which take minutes each here (tests/cuda_emulator), and
# those labelled `gpu`: with sanitizers there is no CUDA device but the emulated one.
ctest --test-dir build-asan --output-on-failure -j2 -LE '^(long|gpu)$'

echo "== ThreadSanitizer: the engine and its workers"
bash scripts/build.sh build-tsan -DZF_SANITIZE=thread
# OpenMP's runtime is not instrumented, so these run without its threads.
OMP_NUM_THREADS=1 ctest --test-dir build-tsan --output-on-failure -j2 \
    -R '^(test_worker|zenflow_(I5|I5_unwatched|I6|I7|non_finite|auto_interval))$'

echo "== fuzzers, ${FUZZ_SECONDS:=5} seconds each"
CC=clang CXX=clang++ bash scripts/build.sh build-fuzz -DZF_FUZZ=ON
for fuzzer in build-fuzz/fuzz/fuzz_*; do
    corpus=$(mktemp -d)
    if ! "$fuzzer" -max_total_time="$FUZZ_SECONDS" -rss_limit_mb=4096 -artifact_prefix=build-fuzz/ "$corpus" >"$corpus.log" 2>&1; then
        tail -n 40 "$corpus.log"
        echo "test.sh: $(basename "$fuzzer") found a fault; its input lies in build-fuzz/" >&2
        exit 1
    fi
    echo "$(basename "$fuzzer"): $(grep -o 'Done [0-9]* runs' "$corpus.log")"
    rm -rf "$corpus" "$corpus.log"
done
echo "all tests passed"
