#!/usr/bin/env bash
# zf-bench train and kernels on tiny shapes: their figures agree with each other, with the printed table
# and with what can be worked out; scripts/gpu_check.sh runs whole where there is no GPU.

. tests/e2e/lib/common.sh "$@"
need python3
bench=$build/zf-bench

tiny=(--preset gpt --seqs 3 --length 12 --device cpu --probe 64)
check "train --compare" "$bench" train "${tiny[@]}" --micro-batches 2 --steps 8 --warm-up 16 --bf16 --compare \
    --learning_rate 1e-3 --dropout 0 --json "$scratch/train.json"
cp "$scratch/check.log" "$scratch/train.txt"
check "its figures are consistent" python3 tests/e2e/lib/bench_figures.py train "$scratch/train.json" \
    "$scratch/train.txt" 3 12 2 8
check "train --method staggered, classification, lengths of a file" bash -c 'seq 1 7 >"$1/lengths" &&
    shift && "$@"' _ "$scratch" "$bench" train "${tiny[@]}" --head classify --lengths "$scratch/lengths" \
    --method staggered --steps 4 --warm-up 3 --gradient_checkpointing --json "$scratch/classify.json"
check "its tokens are the lengths'" python3 -c '
import json, sys
line = json.load(open(sys.argv[1]))["methods"]
assert len(line) == 1 and line[0]["method"] == "ZenFlow, staggered", line
lengths = [1 + i % 7 for i in range(3 * 7)][3 * 3:]
assert abs(line[0]["tokens"] - sum(lengths) / 4) < 1e-6, line
' "$scratch/classify.json"
check "kernels" "$bench" kernels "${tiny[@]}" --rounds 1 --json "$scratch/kernels.json"
cp "$scratch/check.log" "$scratch/kernels.txt"
check "its figures are consistent" python3 tests/e2e/lib/bench_figures.py kernels "$scratch/kernels.json" \
    "$scratch/kernels.txt"

# Help: each option with what its value is, and each column of what is printed.
subcommands=$("$bench" --help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' | xargs)
check "there are subcommands" test "$subcommands" = "adam kernels train machine report"
for name in $subcommands; do
    check "$name --help" "$bench" $name --help
    cp "$scratch/check.log" "$scratch/$name.help"
    check "$name --help fits 100 columns" awk 'length > 100 { exit 1 }' "$scratch/$name.help"
    check "$name --help says what is printed" awk '/^What it prints:$/ { told = 1; next } told && /^  [^ ].*  [a-z]/ { lines++ }
        /\(null\)/ { lines -= 1000 } END { exit !(lines > 0) }' "$scratch/$name.help"
    case $name in
    report) wrong=(none) ;;
    adam) wrong=(--path none) ;;
    machine) wrong=(--device none) ;;
    *) wrong=(--preset none) ;;
    esac
    while read -r option value _; do
        says=$("$bench" $name "${wrong[@]}" "$option" 2>&1 >/dev/null || true)
        if [[ $says == *"takes a value" ]]; then
            [[ $value =~ ^([A-Z]+|[a-z]+(\|[a-z]+)+)$ ]] || check "$name --help: the value of $option" false
        else
            [[ $says == *none* && ! $value =~ ^[A-Z]+$ ]] || check "$name --help: $option takes no value" false
        fi
    done < <(grep '^  --' "$scratch/$name.help")
done
check "adam" "$bench" adam --parameters 100000 --threads 1 --repeats 1 --width 96
cp "$scratch/check.log" "$scratch/adam.txt"
for name in adam:'width path' kernels:'operator ' train:ms/step; do
    heading=$(grep -m 1 -- "${name#*:}" "$scratch/${name%%:*}.txt")
    for column in $heading; do
        sed -n '/^What it prints:/,$p' "$scratch/${name%%:*}.help" | grep -qwF -- "${column%,}" ||
            check "${name%%:*} --help explains the column $column" false
    done
done

refuses() { # refuses SENTENCE ARGUMENT...: status 2, and this sentence alone; $expected: another status
    local says=$1 status=0
    shift
    "$bench" "$@" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    cat "$scratch/stderr"
    [ "$status" = "${expected:-2}" ] && [ "$(wc -l <"$scratch/stderr")" = 1 ] && grep -qF -- "$says" "$scratch/stderr" &&
        [ ! -s "$scratch/stdout" ]
}
check "no name" refuses 'zf-bench: no benchmark is named (see zf-bench --help)'
check "an unknown name" refuses 'zf-bench: there is no benchmark "trian" (see zf-bench --help)' trian
expected=1 check "an unknown preset" refuses 'zf-bench: "gpt9" is not a preset model' train --preset gpt9
check "an unknown method" refuses '--method is "best", but it is resident' train "${tiny[@]}" --method best
check "an unknown head" refuses '--head is "x", but it is lm or classify' train "${tiny[@]}" --head x
check "an unknown device" refuses '--device is "tpu", but it is cuda, cpu or auto' kernels --device tpu
check "too long a sequence" refuses '--length is 513, but gpt has 512 positions' kernels --preset gpt --length 513
check "ranks without a plan" refuses '--ranks is 2, but --plan, which names the machine to simulate, is not given' \
    train "${tiny[@]}" --ranks 2
check "too great a lag" refuses 'it is at most --update_interval' train "${tiny[@]}" --apply_lag 5
printf '3\n0\n' >"$scratch/lengths"
expected=1 check "a length of 0" refuses 'number 2 is not a length from 2 to 512' train "${tiny[@]}" --lengths "$scratch/lengths"
expected=1 check "no file of lengths" refuses 'cannot be read' train "${tiny[@]}" --lengths "$scratch/absent"

export ZF_NO_PEERS=1
check "gpu_check.sh --dry-run" bash scripts/gpu_check.sh --dry-run --build "$build" --out "$scratch/gpu_check" \
    --only gpu_tests,memcheck,racecheck,kernels,machine,train_resident,train_compare,emulated_kernels,emulated_compare,llmc
check "it has no failing stage" not grep -q FAILED "$scratch/gpu_check/summary.txt"
for stage in kernels machine train_resident train_compare; do
    check "it measured $stage" grep -Eq "^$stage +ok " "$scratch/gpu_check/summary.txt"
    check "its figures are there" test -s "$scratch/gpu_check/$stage.json"
done
for line in date command commit processor; do
    check "it tells the $line" grep -q "^$line: " "$scratch/gpu_check/meta.txt"
done

# A failing stage is told and does not stop the rest.
mkdir "$scratch/broken"
printf '#!/bin/sh\n[ "$1" = train ] || exit 3\nexec "%s" "$@"\n' "$bench" >"$scratch/broken/zf-bench"
chmod +x "$scratch/broken/zf-bench"
check "a failing stage fails it" not bash scripts/gpu_check.sh --dry-run --build "$scratch/broken" \
    --out "$scratch/gpu_check" --only kernels,train_resident
check "it is named" grep -Eq '^kernels +FAILED' "$scratch/gpu_check/summary.txt"
check "the rest is done" grep -Eq '^train_resident +ok' "$scratch/gpu_check/summary.txt"
finish
