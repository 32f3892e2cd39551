#!/usr/bin/env bash
# shellcheck disable=SC2317 # stages call functions
#
# Everything that only a GPU can tell, by one command: the tests labelled `gpu`, compute-sanitizer on the
# CUDA tests, zf-bench's tables, and PyTorch, DeepSpeed and llm.c on the same shapes where they are
# installed. At most 9 minutes: each stage has its own time limit, those with no time left are skipped,
# and one that fails does not stop the rest. Prints one table; the exit status is 1 if a test or a sanitizer failed.
#
#   bash scripts/gpu_check.sh [options]
#
#   --build FOLDER     use this build folder, building what is missing (build)
#   --runtime FOLDER   libraries made by scripts/pack_runtime.sh, for machines without packages
#   --out FOLDER       raw outputs and what they were measured on (output/gpu_check)
#   --llmc FOLDER      llm.c's source, to be measured beside ours
#   --only STAGES      only these, with commas between
#   --dry-run          the same on tiny shapes without a GPU: the CPU device, and the emulated one
#                      where it is built. So it is where this machine has no GPU
set -uo pipefail
export LC_ALL=C
started_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

usage() {
    sed -n '/^#   bash/,/^set /p' scripts/gpu_check.sh | sed '$d; s/^# \{0,3\}//' >&2
    exit 2
}
build=build runtime='' out=output/gpu_check llmc='' only='' dry=''
command_line="bash scripts/gpu_check.sh $*"
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run)
        dry=yes
        shift
        continue
        ;;
    --build | --runtime | --out | --llmc | --only) [ $# -ge 2 ] || usage ;;
    *) usage ;;
    esac
    [[ $1 = --only || $2 = /* ]] || set -- "$1" "$started_in/$2" "${@:3}"
    case $1 in
    --build) build=$2 ;;
    --runtime) runtime=$2 ;;
    --out) out=$2 ;;
    --llmc) llmc=$2 ;;
    --only) only=,$2, ;;
    esac
    shift 2
done
if [ -n "$runtime" ]; then
    if [ ! -f "$runtime/env.sh" ]; then
        echo "gpu_check.sh: $runtime has no env.sh: scripts/pack_runtime.sh makes such folders" >&2
        exit 2
    fi
    # shellcheck source=/dev/null
    source "$runtime/env.sh"
fi
if [ -z "$dry" ] && ! nvidia-smi >/dev/null 2>&1; then
    echo "gpu_check.sh: this machine has no GPU: a dry run on tiny shapes"
    dry=yes
fi
if [ "$(id -u)" -eq 0 ]; then # Open MPI asks root to confirm
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe=1
[ ! -d /usr/local/cuda/bin ] || export PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
rm -f "$out"/*.txt "$out"/*.json
most=530 # seconds, for all stages; those whose turn comes later are left out
began=$SECONDS
stages=() results=() notes=() seconds=()
failed=0

# stage NAME LIMIT KIND COMMAND...: runs it for at most LIMIT seconds, its output in OUT/NAME.txt. KIND
# `test`: a failure is the check's own. Status 77 is "skipped", as in the tests.
stage() {
    local name=$1 limit=$2 kind=$3 start=$SECONDS status=0 result note=''
    shift 3
    if [ -n "$only" ] && [[ $only != *,$name,* ]]; then
        return
    fi
    if [ $((most - (SECONDS - began))) -lt "$limit" ]; then
        limit=$((most - (SECONDS - began)))
    fi
    if [ "$limit" -lt 5 ]; then
        stages+=("$name") results+=(skipped) notes+=("no time left") seconds+=(0)
        return
    fi
    printf '== %s (at most %d s)\n' "$name" "$limit"
    { printf '$ %s\n' "$*" && timeout -k 10 "$limit" "$@"; } >"$out/$name.txt" 2>&1 </dev/null || status=$?
    case $status in
    0)
        result=ok
        note=$(grep 'tests passed' "$out/$name.txt")
        ;;
    77)
        result=skipped
        note=$(sed 1d "$out/$name.txt" | grep -i skipped | head -n 1 | cut -c 1-100)
        ;;
    124 | 137)
        result=FAILED
        note="not done within $limit s"
        ;;
    *)
        result=FAILED
        note=$(grep -v '^ *$' "$out/$name.txt" | tail -n 1 | cut -c 1-100)
        ;;
    esac
    if [ "$result" = FAILED ] && [ "$kind" = test ]; then
        failed=1
    fi
    stages+=("$name") results+=("$result") notes+=("$note") seconds+=($((SECONDS - start)))
    sed 1d "$out/$name.txt" | tail -n 45
}

meta() {
    date -u '+date: %Y-%m-%d %H:%M UTC'
    echo "command: $command_line"
    echo "commit: $(git describe --always --dirty 2>/dev/null || echo unknown); built of: $("$build/zf-bench" --version 2>/dev/null |
        sed -n 's/^commit: //p')"
    echo "processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
    echo "memory: $(awk '/^MemTotal/ { printf "%.0f GB", $2 / 1e6 }' /proc/meminfo)"
    echo "system: $(uname -sr)"
    nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm --format=csv,noheader \
        2>/dev/null | sed 's/^/gpu: /' || echo "gpu: none"
    nvcc --version 2>/dev/null | sed -n 's/.*release/toolkit: release/p'
    echo "dry run: ${dry:-no}"
}

make_build() {
    # Where a GPU is, its own architecture is enough, and takes half the time. What another compiler
    # warns of is no reason not to measure.
    local options=(-DZF_WERROR=OFF) generator=(-G Ninja) cap
    command -v ninja >/dev/null || generator=()
    cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    if [ -n "$cap" ]; then
        [ "$cap" != 90 ] || cap=90a
        options+=("-DCMAKE_CUDA_ARCHITECTURES=$cap-real" -DZF_CUDA=ON)
    fi
    [ -f "$build/CMakeCache.txt" ] || cmake -S . -B "$build" "${generator[@]}" "${options[@]}" || return 1
    cmake --build "$build" -j "$(nproc)"
}

# The CUDA test programs and a few training steps under a tool of compute-sanitizer.
sanitize() { # sanitize TOOL
    local program status=0 code log quiet=()
    log=$(mktemp)
    # What calls of CUDA return the program looks at itself, and a test asks for more memory than there is.
    [ "$1" != memcheck ] || quiet=(--report-api-errors no)
    command -v compute-sanitizer >/dev/null || {
        echo "skipped: compute-sanitizer is not installed"
        return 77
    }
    for program in "$build"/tests/test_cuda_* "$build/zf-bench"; do
        [[ -x $program && ! -d $program ]] || continue
        set -- "$1" "$program"
        [ "$program" != "$build/zf-bench" ] || set -- "$1" "$program" train --device cuda --preset gpt --seqs 2 \
            --length 16 --probe 64 --steps 2 --warm-up 2 --compare
        echo "-- $(basename "$program") under $1"
        code=0
        timeout 25 compute-sanitizer --tool "$1" "${quiet[@]}" --error-exitcode 9 "${@:2}" >"$log" 2>&1 || code=$?
        tail -n 25 "$log"
        if grep -q 'Device not supported' "$log"; then
            echo "skipped: compute-sanitizer does not support this machine's device"
            return 77
        fi
        case $code in
        0 | 77) ;;
        124) echo "   not done within 25 s" ;;
        *)
            echo "   status $code"
            status=1
            ;;
        esac
    done
    rm -f "$log"
    return $status
}

list_gpu_tests() {
    ctest --test-dir "$build" -L '^gpu$' -N | grep -E '^ *Test #|^Total'
    echo 'skipped: they need a GPU; ctest -L emulated runs them emulated'
}

python_with() { # python_with MODULE...: a Python that has them, or nothing
    local python module
    for python in ${ZF_PYTHON:-} python3 python; do
        command -v "$python" >/dev/null || continue
        for module; do
            "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" 2>/dev/null ||
                continue 2
        done
        echo "$python"
        return
    done
}

peer() { # peer MODULE SCRIPT OPTION...
    local python
    python=$(python_with torch "$1")
    [ -n "$python" ] || {
        echo "skipped: no Python has torch and $1 (ZF_PYTHON names one)"
        return 77
    }
    shift
    "$python" "$@"
}
export build
export -f make_build sanitize list_gpu_tests python_with peer

bench=$build/zf-bench
stage build 240 test bash -c make_build
meta | tee "$out/meta.txt"

if [ -n "$dry" ]; then
    tiny=(--preset gpt --seqs 2 --length 16 --probe 64)
    steps=(--steps 8 --warm-up 8)
    # One thread is the fastest for models this small.
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    stage gpu_tests 10 test bash -c 'list_gpu_tests; exit 77'
    stage memcheck 10 test bash -c 'echo "skipped: it needs a GPU; the emulator checks memory"; exit 77'
    stage racecheck 10 test bash -c 'echo "skipped: it needs a GPU; the emulator checks barriers"; exit 77'
    stage kernels 30 test "$bench" kernels --device cpu "${tiny[@]}" --rounds 1 --json "$out/kernels.json"
    stage machine 30 test "$bench" machine --device cpu --rounds 1 --sizes 2 --json "$out/machine.json"
    stage train_resident 30 test "$bench" train --device cpu "${tiny[@]}" "${steps[@]}" \
        --json "$out/train_resident.json"
    stage train_compare 60 test "$bench" train --device cpu "${tiny[@]}" "${steps[@]}" --bf16 --compare \
        --json "$out/train_compare.json"
    if [ -x "$build/zf-bench-emulated" ]; then
        few=(--device cuda --preset gpt --seqs 2 --length 6 --probe 16)
        stage emulated_kernels 60 test "$build/zf-bench-emulated" kernels "${few[@]}" --rounds 1 \
            --json "$out/emulated_kernels.json"
        stage emulated_compare 120 test "$build/zf-bench-emulated" train "${few[@]}" --steps 4 --warm-up 4 \
            --compare --json "$out/emulated_compare.json"
    else
        stage emulated 10 test bash -c 'echo "skipped: $build has no zf-bench-emulated"; exit 77'
    fi
    [ -n "${ZF_NO_PEERS:-}" ] || {
        stage pytorch 60 other bash -c 'peer transformers "$@"' peer tests/bench/compare_pytorch_gpu.py "$bench" \
            --device cpu --tiny --no-compile --json "$out/pytorch.json"
        stage deepspeed 240 other bash -c 'peer deepspeed "$@"' peer tests/bench/compare_deepspeed.py "$bench" \
            --device cpu --tiny --limit 60 --json "$out/deepspeed.json"
    }
    stage llmc 10 other bash tests/bench/compare_llmc.sh "$bench" --llmc "${llmc:-/nonexistent}"
else
    small=(--preset gpt2 --length 1024)
    large=(--preset gpt2-xl --dropout 0)
    zenflow=(--topk_ratio 0.05 --update_interval 4 --select_interval 16 --pt_reserved_cores_perc 0.1)
    stage gpu_tests 90 test ctest --test-dir "$build" -L '^gpu$' --no-tests=error --output-on-failure
    stage kernels 25 other "$bench" kernels --device cuda "${small[@]}" --seqs 16 --json "$out/kernels.json"
    stage kernels_xl 25 other "$bench" kernels --device cuda --preset gpt2-xl --seqs 8 --length 1024 \
        --dropout 0 --json "$out/kernels_xl.json"
    stage kernels_short 15 other "$bench" kernels --device cuda --preset gpt2 --seqs 32 --length 24 --dropout 0 \
        --json "$out/kernels_short.json"
    stage machine 30 other "$bench" machine --device cuda --json "$out/machine.json"
    stage train_124m 30 other "$bench" train --device cuda "${small[@]}" --seqs 16 --dropout 0 \
        --json "$out/train_124m.json"
    stage train_sst2 20 other "$bench" train --device cuda --preset gpt2 --head classify --seqs 32 --length 24 \
        --json "$out/train_sst2.json"
    stage train_1.5b 40 other "$bench" train --device cuda "${large[@]}" --seqs 16 --length 1024 \
        --steps 10 --warm-up 4 --json "$out/train_1.5b.json"
    stage compare_1.5b 75 other "$bench" train --device cuda "${large[@]}" --seqs 4 --length 512 "${zenflow[@]}" \
        --compare --steps 16 --json "$out/compare_1.5b.json"
    stage memcheck 60 test bash -c 'sanitize memcheck'
    stage racecheck 150 test bash -c 'sanitize racecheck'
    stage pytorch 75 other bash -c 'peer torch "$@"' peer tests/bench/compare_pytorch_gpu.py "$bench" --rounds 1 \
        --json "$out/pytorch.json"
    stage pytorch_1.5b 75 other bash -c 'peer torch "$@"' peer tests/bench/compare_pytorch_gpu.py "$bench" \
        --work lm --preset gpt2-xl --rounds 1 --steps 10 --warm-up 4 --json "$out/pytorch_1.5b.json"
    stage deepspeed 120 other bash -c 'peer deepspeed "$@"' peer tests/bench/compare_deepspeed.py "$bench" \
        --reserved-cores 0.1 --limit 50 --steps 8 --json "$out/deepspeed.json"
    stage llmc 90 other bash tests/bench/compare_llmc.sh "$bench" --llmc "${llmc:-/nonexistent}"
fi

{
    printf '%-16s %-8s %8s  %s\n' stage result seconds ''
    for ((i = 0; i < ${#stages[@]}; i++)); do
        printf '%-16s %-8s %8d  %s\n' "${stages[i]}" "${results[i]}" "${seconds[i]}" "${notes[i]}"
    done
    printf 'all in %d s; raw outputs in %s\n' $((SECONDS - began)) "$out"
} | tee "$out/summary.txt"
exit $failed
