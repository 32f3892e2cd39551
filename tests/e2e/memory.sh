#!/usr/bin/env bash
# What is left to "auto" on a device with too little memory: a plan and a run choose alike and say so, the
# run trains within that memory to the same bits, and what is asked for by name is not changed but refused,
# with what would fit.

. tests/e2e/lib/common.sh "$@"
need python3
bench=$build/zf-bench

mkdir "$scratch/deep"
cat >"$scratch/deep/config.json" <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 8000, "n_positions": 64,
 "n_embd": 64, "n_layer": 20, "n_head": 2}
END
ZERO=zero_optimization
run=(--config "$steady/zenflow.json" "${tiny[@]}" --config_name "$scratch/deep" --max_steps 4 --max_train_samples 16
    --max_seq_length 12 --train_batch_size 8 --per_device_train_batch_size 8 --no_do_eval
    --eval_strategy no --$ZERO.stage 3)
open=(--$ZERO.offload_param.device auto --$ZERO.zenflow.offload auto --gradient_checkpointing auto)

machine() { # machine MIB: one with so much device memory, as a file's name
    python3 - "$1" >"$scratch/machine-$1.json" <<'END'
import json, sys
machine = json.load(open("configs/machines/h100.json"))
machine["device"]["memory_bytes"] = {"value": int(sys.argv[1]) << 20, "source": "a test"}
json.dump(machine, sys.stdout)
END
    echo "$scratch/machine-$1.json"
}
plan() { # plan MIB OPTION...: its log in $scratch/plan
    "$train" "${run[@]}" "${@:2}" --plan "$(machine "$1")" >"$scratch/plan" 2>&1 && cat "$scratch/plan"
}
total() { # MiB of the plan's table of device memory, the first, rounded up
    awk '$1 == "total" { print int($2 + 1); exit }' "$scratch/plan"
}
says() { # says LINE: in the plan
    grep -qE -- "$1" "$scratch/plan" || { cat "$scratch/plan"; false; }
}

check "all of it fits" plan 1000 "${open[@]}"
for choice in 'gradient_checkpointing false' "$ZERO.zenflow.accumulate \"device\"" \
    "$ZERO.offload_param.device \"none\"" "$ZERO.zenflow.offload false"; do
    check "it says: $choice" says "^chosen: $choice\$"
done
all=$(total)
check "all of it given" plan 1000 "${open[@]}" --gradient_checkpointing --$ZERO.zenflow.offload \
    --$ZERO.offload_param.device cpu --$ZERO.offload_param.buffer_count 2 --$ZERO.zenflow.accumulate host
check "what was given is not chosen" not says '^chosen'
least=$(total)
echo "$all MiB on the device, $least MiB where as much as can be is on the host"
check "that is less" test "$least" -lt $((all - 5))

check "in between" plan $((all - 4)) "${open[@]}"
check "another place is chosen, and why" says \
    "^chosen: .*(\"host\"|true); .*(\"device\"|false) needs [0-9.]+ MiB more than there is\$"
check "with the least" plan "$least" "${open[@]}"
check "parameters are on the host" says \
    "^chosen: $ZERO.offload_param.device \"cpu\" .*; $ZERO.offload_param.device \"none\" needs [0-9.]+ MiB more"
check "in as many slots as fit" says \
    "^chosen: $ZERO.offload_param.buffer_count [0-9]+ of 20 blocks; [0-9]+ need [0-9.]+ MiB more"

# Windows alone, with a little less than they need: most blocks' stay on the device.
windows=(--gradient_checkpointing --$ZERO.zenflow.offload false --$ZERO.offload_param.device none)
check "windows on the device" plan 1000 "${windows[@]}"
some=$(($(total) - 2))
check "not all of them" plan "$some" "${windows[@]}"
check "are on the device" says \
    "^chosen: $ZERO.zenflow.device_windows [1-9][0-9]* of 20 blocks(; [0-9]+ need [0-9.]+ MiB more than there is)?\$"
check "within what there is" test "$(total)" -le "$some"

# By name, and too much: the least change that fits.
check "by name" plan $((all - 4)) --$ZERO.zenflow.accumulate device
check "it is a warning in a plan" says "^warning: this run needs [0-9.]+ MiB of device memory, [0-9.]+ MiB more \
than there is \([0-9.]+ MiB\): it fits with .*, and then needs [0-9.]+ MiB\$"
check "and nothing is changed" not says '^chosen'
check "slots for all blocks" plan 1000 --$ZERO.offload_param.device cpu --$ZERO.offload_param.buffer_count 20
check "are told of" says "^warning: $ZERO.offload_param.buffer_count is 20, and the model has 20 blocks: "

refuses() { # refuses SENTENCE COMMAND...: status $expected (1), and this sentence
    local says=$1 status=0
    shift
    "$@" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    cat "$scratch/stderr"
    [ "$status" = "${expected:-1}" ] && grep -qF -- "$says" "$scratch/stderr"
}
for option in "--offload_param 2" "--accumulate host" "--offload"; do
    # shellcheck disable=SC2086
    expected=2 check "zf-bench train $option without a host" refuses "--method resident all is on the device" "$bench" train \
        --plan h100 --preset gpt $option
done
# Parameters that come only when they are needed: every block waits for its own.
step_time() { # step_time OPTION...: the plan's median step, in ms
    "$bench" train --plan h100 --preset gpt2 --seqs 8 --method staggered --accumulate host --offload_param 2 --steps 4 "$@" |
        awk '/^ZenFlow/ { print $4 }'
}
early=$(step_time) late=$(step_time --no_prefetch)
echo "$early ms a step; $late ms without prefetching"
check "prefetching is worth something" python3 -c "assert 1.05 * $early < $late"

check "zf-bench train --fit" bash -c '
    "$1" train --plan "$2" --preset gpt --layers 12 --train_batch_size 64 --length 64 --method staggered --fit \
        --steps 4 >"$3/fit" && cat "$3/fit" &&
    [ "$(grep -c "^chosen: " "$3/fit")" -ge 5 ] && grep -q "^chosen: .* needs .* more than there is" "$3/fit" &&
    ! grep -q "does not fit" "$3/fit"' _ "$bench" "$(machine 300)" "$scratch"

if [ -x "$build/zf-train-emulated" ]; then # not with ThreadSanitizer
    emulated=("$build/zf-train-emulated" --device cuda "${run[@]}" "${open[@]}")
    check "emulated: with memory for all" "${emulated[@]}" --output_dir "$scratch/all"
    export ZF_EMULATOR_MEMORY=$least
    check "emulated: with the least" "${emulated[@]}" --output_dir "$scratch/least"
    cp "$scratch/check.log" "$scratch/plan"
    check "emulated: parameters are on the host" says "^chosen: $ZERO.offload_param.device \"cpu\" "
    check "emulated: the same model" cmp "$scratch/all/model.safetensors" "$scratch/least/model.safetensors"
    check "emulated: what was chosen is written" python3 -c 'import json, sys
c = json.load(open(sys.argv[1]))
zero = c["zero_optimization"]
assert zero["offload_param"]["device"] == "cpu" and zero["zenflow"]["accumulate"] == "host", zero
assert c["training_arguments"]["gradient_checkpointing"] is True, c' "$scratch/least/zf_train_config.json"
    check "emulated: by name" refuses "more than there is" "${emulated[@]}" --$ZERO.zenflow.accumulate device \
        --output_dir "$scratch/refused"
    check "emulated: what would fit" grep -qF "it fits with $ZERO.zenflow.accumulate \"host\", and then" \
        "$scratch/stderr"
    check "emulated: nothing is written" test ! -e "$scratch/refused"
    unset ZF_EMULATOR_MEMORY

    alone=("$build/zf-train-emulated" --device cuda --do_eval --model_name_or_path "$scratch/all" --task_name sst2
        --data_dir data/sample --max_eval_samples 4 --max_seq_length 12 --$ZERO.stage 3)
    check "emulated: evaluation alone" "${alone[@]}" --output_dir "$scratch/judged"
    cp "$scratch/check.log" "$scratch/plan"
    all=$(total)
    check "emulated: evaluation alone in one slot" "${alone[@]}" --$ZERO.offload_param.device cpu \
        --$ZERO.offload_param.buffer_count 1 --output_dir "$scratch/judged-in-one"
    cp "$scratch/check.log" "$scratch/plan"
    ZF_EMULATOR_MEMORY=$(total)
    export ZF_EMULATOR_MEMORY
    echo "evaluation alone: $all MiB on the device, $ZF_EMULATOR_MEMORY MiB with blocks in one slot"
    check "that is less" test "$ZF_EMULATOR_MEMORY" -lt "$all"
    check "emulated: evaluation alone with the least" "${alone[@]}" --$ZERO.offload_param.device auto \
        --output_dir "$scratch/judged-least"
    cp "$scratch/check.log" "$scratch/plan"
    check "emulated: parameters are on the host" says "^chosen: $ZERO.offload_param.device \"cpu\" "
    check "emulated: nothing else is chosen" test "$(grep -c '^chosen' "$scratch/plan")" = 2
    check "emulated: the same loss" cmp <(grep eval_loss "$scratch/judged/eval_results.json") \
        <(grep eval_loss "$scratch/judged-least/eval_results.json")
    check "emulated: by name" refuses "more than there is" "${alone[@]}" --output_dir "$scratch/refused"
    check "emulated: what would fit" grep -qF "it fits with" "$scratch/stderr"
    unset ZF_EMULATOR_MEMORY
fi
finish
