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
"$train" --version >"$scratch/version"
check "--version: its own, the product library's, and the instructions that this processor has" grep -Ex \
    "zf-train $version \(matrix products on CPUs: oneDNN [0-9.]+, $(instructions)\)" "$scratch/version"
check "two ranks speak once" test "$(ranks 2 "$train" --version | wc -l)" = 1

python3 tests/e2e/lib/unread_keys.py >"$scratch/unread"
check "every key is read by a run" diff /dev/null "$scratch/unread"

status=0
"$train" --learning_rat 1 >"$scratch/out" 2>"$scratch/err" || status=$?
check "an unknown option: status 1" test "$status" = 1
check "an unknown option: one line" test "$(wc -l <"$scratch/err")" = 1
check "an unknown option: the nearest name" grep -q -- '--learning_rate\b' "$scratch/err"
check "an unknown option: nothing on standard output" test ! -s "$scratch/out"
finish
