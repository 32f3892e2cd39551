# What every script of this folder begins with:
#
#   . tests/e2e/lib/common.sh "$@"
#
# Scripts run in the project's root with the build folder as their argument. They write into $scratch
# alone, which is gone at the end, count what fails, and end with `finish`. Exit status 77 means
# skipped.

set -euo pipefail
export LC_ALL=C

root=$PWD
build=$(cd "$1" && pwd)
train="$build/zf-train"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ "$(id -u)" -eq 0 ]; then # Open MPI asks root to confirm
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# With whole stacks, in which libraries can be told from this program: Open MPI unloads its plugins.
export LSAN_OPTIONS=suppressions=$root/tests/lsan.supp:print_suppressions=0:fast_unwind_on_malloc=0

# One thread is the fastest for models this small, and leaves other tests their cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

skip() {
    echo "skipped: $*"
    exit 77
}

need() { # need COMMAND...
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip "$tool is not installed"
    done
}

# What scripts/setup.sh --tests installs from PyPI is found behind all else.
PATH=$PATH:$root/build-python/bin

python_with() { # python_with MODULE: ZF_PYTHON, python3, or the tests' own, whichever is the first that has it
    local python
    for python in "${ZF_PYTHON:-python3}" python3 "$root/build-python/bin/python"; do
        ! "$python" -c "import $1" 2>/dev/null || { echo "$python" && return; }
    done
    return 1
}

failures=0
check() { # check WHAT COMMAND...: the command succeeds
    local what=$1
    shift
    if "$@" >"$scratch/check.log" 2>&1; then
        echo "ok: $what"
    else
        echo "FAILED: $what: $*"
        tail -n 20 "$scratch/check.log"
        failures=$((failures + 1))
    fi
}

# fails WHAT WORDS COMMAND...: status 1, or $expected, and one sentence, in which the pattern WORDS is found. What it
# printed is then in $scratch/stdout and $scratch/stderr.
fails() {
    local what=$1 words=$2 status=0 expected=${expected:-1}
    shift 2
    "$@" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    grep '^zf-[a-z]*: ' "$scratch/stderr" || true
    check "$what: status $expected" test "$status" = "$expected"
    check "$what: one sentence" test "$(grep -c '^zf-[a-z]*: ' "$scratch/stderr")" = 1
    check "$what: says '$words'" grep -Eq -- "^zf-[a-z]*: .*($words)" "$scratch/stderr"
}

finish() {
    [ "$failures" = 0 ] || echo "$failures checks failed"
    exit $((failures > 0))
}

not() {
    ! "$@"
}

has_escape_codes() { # has_escape_codes FILE...: carriage returns count
    grep -q $'[\033\r]' "$@"
}

ranks() { # ranks N COMMAND...
    local n=$1
    shift
    mpirun -n "$n" --oversubscribe --bind-to none "$@"
}

# The ready configurations, but with windows of four steps: how long those of "keep_up" are, and so a run's bits,
# depends on how fast the machine is.
steady=$scratch/configs
mkdir "$steady"
for ready in configs/*.json; do
    sed 's/"keep_up"/4/' "$ready" >"$steady/${ready##*/}"
done
unset ready

# A model and data so small that a step takes milliseconds: the bundled sample, cut short.
tiny=(--config_name gpt --tokenizer_name data/sample/tokenizer --data_dir data/sample
    --max_train_samples 128 --max_eval_samples 64 --max_predict_samples 16 --max_seq_length 32
    --train_batch_size 16 --per_device_train_batch_size 16 --learning_rate 1e-3 --logging_steps 1)

compare() { # compare LOG LOG TOLERANCE [FIRST STEP]: see compare.py
    python3 tests/e2e/lib/compare.py "$@"
}

judged_alike() { # judged_alike FOLDER FOLDER: the same loss and accuracy on SST-2, and predictions
    cmp "$1/SST-2.tsv" "$2/SST-2.tsv" && diff <(grep -E "eval_(loss|accuracy)" "$1/eval_results.json") \
        <(grep -E "eval_(loss|accuracy)" "$2/eval_results.json")
}

are_gone() { # are_gone PID...: within five seconds
    local i
    for ((i = 0; i < 50; i++)); do
        kill -0 "$@" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}
