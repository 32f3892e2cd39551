#!/usr/bin/env bash
# What zf-train says about itself and its configuration, without running anything.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun

instructions() { # the widest ones that both this processor and the product library know
    local flags
    flags=$(grep -m 1 '^flags' /proc/cpuinfo || true)
    case " $flags " in
    *" avx512vl "*) echo AVX-512 ;;
    *" avx2 "*) echo AVX2 ;;
    *) echo "without AVX2" ;;
    esac
}

help=$scratch/help printed=$scratch/printed
check "--help" "$train" --help
"$train" --help >"$help"
"$train" --config configs/zenflow.json --max_steps 7 --print_config >"$printed"
# A key is printed as in the file and listed in --help as an option.
check "--print_config lists keys" test "$(wc -l <"$printed")" -gt 60
while read -r key; do
    option=${key#training_arguments.}
    grep -qE -- "(^  --|also )$option\b" "$help" || check "--help lists $key" false
done < <(sed -n 's/^\([a-z_0-9.]*\) *= .*/\1/p' "$printed")
check "every key is listed in --help" test "$failures" = 0
check "help fits 100 columns" awk 'length > 100 { exit 1 }' "$help"
check "a value of the file names file and line" grep -Eq \
    'topk_ratio += 0.05 +# configs/zenflow.json:11' "$printed"
check "a value of an option names it" grep -Eq '^max_steps += 7 +# --max_steps' "$printed"
check "a default says so" grep -Eq '^seed += 42 +# default' "$printed"
version=$(sed -n 's/^project(zf-train VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
cuda=none\ in\ this\ build
if grep -q '^CMAKE_CUDA_COMPILER:.*nvcc' "$build/CMakeCache.txt"; then cuda='[0-9]+\.[0-9]+'; fi
for program in zf-train zf-run zf-bench; do
    "$build/$program" --version >"$scratch/version"
    check "$program --version: five lines" test "$(wc -l <"$scratch/version")" = 5
    for line in "$program $version" "commit: [0-9a-f]{12}( with changes)?" "CUDA: $cuda" "MPI: Open MPI [0-9.]+[a-z0-9]*" \
        "BLAS: oneDNN [0-9.]+, $(instructions)(; on GPUs cuBLASLt)?"; do
        check "$program --version: $line" grep -Exq "$line" "$scratch/version"
    done
done
check "MPI's number is mpirun's" grep -qF "$(mpirun --version | sed -n '1s/.*) //p')" "$scratch/version"
check "two ranks speak once" test "$(ranks 2 "$train" --version | wc -l)" = 5

# Which commit that is, told by a repository of one file.
if command -v git >/dev/null; then
    repository=$scratch/repository
    git init -q "$repository"
    mkdir "$repository/cmd"
    git_there() {
        git -C "$repository" -c user.name=n -c user.email=e@localhost "$@"
    }
    told() { # told FOLDER [OPTION]: the header's one line
        cmake -DSOURCE="$1" -DOUT="$scratch/commit.h" "${@:2}" -P scripts/commit.cmake && sed 's/#define ZF_COMMIT //' "$scratch/commit.h"
    }
    echo a >"$repository/cmd/a.c"
    git_there add .
    git_there commit -qm one
    commit=$(git_there rev-parse --short=12 HEAD)
    check "the commit" test "$(told "$repository")" = "\"$commit\""
    touch "$repository/README.md"
    before=$(stat -c %y "$scratch/commit.h")
    check "the same commit" test "$(told "$repository")" = "\"$commit\""
    check "the same commit: the header is not written again" test "$before" = "$(stat -c %y "$scratch/commit.h")"
    echo b >"$repository/cmd/a.c"
    check "with changes" test "$(told "$repository")" = "\"$commit with changes\""
    check "what is unpacked within another repository has none" test "$(told "$repository/cmd")" = '"unknown"'
    check "a commit that is given" test "$(told "$repository" -DCOMMIT=v7)" = '"v7"'
fi

python3 tests/e2e/lib/unread_keys.py >"$scratch/unread"
check "every key is read by a run" diff /dev/null "$scratch/unread"

status=0
"$train" --learning_rat 1 >"$scratch/out" 2>"$scratch/err" || status=$?
check "an unknown option: status 2" test "$status" = 2
check "an unknown option: one line" test "$(wc -l <"$scratch/err")" = 1
check "an unknown option: the nearest name" grep -q -- '--learning_rate\b' "$scratch/err"
check "an unknown option: nothing on standard output" test ! -s "$scratch/out"
finish
