#!/usr/bin/env bash
# zf-train --device cuda under the emulator: it learns the bundled sample as the CPU device does, plans
# its memory, and says what to change where that does not fit. How --device is chosen.
# ZF_FULL_SAMPLE=1: also the whole of configs/sample.json, which takes minutes.

. tests/e2e/lib/common.sh "$@"
need python3
emulated=$build/zf-train-emulated

# Without CUDA, or without a GPU that it may see, `cuda` is a fault and `auto` is the CPU.
out=$scratch/none status=0
CUDA_VISIBLE_DEVICES='' "$train" "${tiny[@]}" --task_name SST-2 --device cuda --output_dir "$out" \
    >"$scratch/stdout" 2>"$scratch/stderr" </dev/null || status=$?
cat "$scratch/stderr"
check "no GPU: status 1" test "$status" = 1
check "no GPU: one sentence" test "$(wc -l <"$scratch/stderr")" = 1
check "no GPU: it names the device" grep -q '^zf-train: device is "cuda", but ' "$scratch/stderr"
check "no GPU: nothing is written" test ! -e "$out"
export CUDA_VISIBLE_DEVICES=''
check "no GPU: auto runs" "$train" "${tiny[@]}" --task_name SST-2 --device auto --max_steps 1 \
    --output_dir "$scratch/auto"
unset CUDA_VISIBLE_DEVICES
cp "$scratch/check.log" "$scratch/printed"
check "no GPU: auto is the CPU" grep -q 'on the cpu device' "$scratch/printed"

[ -x "$emulated" ] || { # a build without the emulator
    echo "not checked: $emulated is not built"
    finish
}

# The sample's first sentences, few enough to be learned by heart in the time that the emulator takes
# for them.
few=$scratch/few.tsv
head -n 33 data/sample/SST-2/train.tsv >"$few"
by_heart=(--config "$steady/sample.json" --train_file "$few" --validation_file "$few" --do_predict false
    --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --max_steps 40 --logging_steps 1)

check "the CPU device learns" "$train" "${by_heart[@]}" --device cpu --output_dir "$scratch/cpu"
check "the emulated device learns" "$emulated" "${by_heart[@]}" --device cuda \
    --output_dir "$scratch/cuda"
cp "$scratch/check.log" "$scratch/printed"
check "it says so" grep -q 'on the cuda device' "$scratch/printed"
check "as well, and on the same way" python3 - "$scratch" <<'END'
import json, sys
def read(device):
    folder = f"{sys.argv[1]}/{device}/"
    losses = [e["loss"] for e in map(json.loads, open(folder + "trainer_log.jsonl")) if "loss" in e]
    return json.load(open(folder + "all_results.json")), losses
(cpu, cpu_losses), (cuda, cuda_losses) = read("cpu"), read("cuda")
print(cpu["eval_accuracy"], cuda["eval_accuracy"], cpu["train_loss"], cuda["train_loss"])
print([f"{a:.4f} {b:.4f}" for a, b in zip(cpu_losses, cuda_losses)])
assert cpu["eval_accuracy"] > 0.95 and abs(cpu["eval_accuracy"] - cuda["eval_accuracy"]) <= 0.02
assert abs(cpu_losses[0] - cuda_losses[0]) < 0.01 * cpu_losses[0]
assert abs(cpu["train_loss"] - cuda["train_loss"]) < 0.05 * cpu["train_loss"]
END
for row in parameters gradients windows 'important state' activations workspace total free; do
    check "the memory table has $row" grep -Eq "^  $row +[0-9.]+ [MG]iB$" "$scratch/printed"
done
check "parameters are bf16" python3 -c 'import json, sys
assert json.load(open(sys.argv[1]))["bf16"]["enabled"] is True' "$scratch/cuda/zf_train_config.json"
check "the model is one for the CPU device" "$train" --task_name SST-2 --do_train false --device cpu \
    --model_name_or_path "$scratch/cuda" --data_dir data/sample --validation_file "$few" \
    --output_dir "$scratch/evaluated"
cp "$scratch/check.log" "$scratch/printed"
check "with the same accuracy" grep -Eq '^eval_accuracy +(1\.0|0\.9[5-9])' "$scratch/printed"

# zf-run beside a GPU: a classifier is on it, a language model, for which it has no operators, is not.
label() {
    "$@" "$(sed -n 2p "$few" | cut -f 1)" 2>/dev/null | cut -f 1
}
check "zf-run classifies on it" test "$(label "$build/zf-run-emulated" "$scratch/cuda")" = "$(label "$build/zf-run" "$scratch/cuda")"
check "or where it is told to" test -n "$(label "$build/zf-run-emulated" "$scratch/cuda" --device cuda)"
check "a language model" "$train" --task_name lm --config_name llama --tokenizer_name data/sample/tokenizer --train_file README.md \
    --max_seq_length 32 --max_steps 2 --do_eval false --device cpu --output_dir "$scratch/lm"
check "is the CPU's, unless it is told otherwise" bash -c '"$0" "$@" >"$1/emulated" && "${0%-emulated}" "$@" | cmp - "$1/emulated"' \
    "$build/zf-run-emulated" "$scratch/lm" --max_new_tokens 4 "The"
fails "zf-run --device cuda" "the cuda device does not generate: --device cpu does" "$build/zf-run-emulated" "$scratch/lm" \
    --device cuda "The"

# Masters are the model's fp32 values, though the device has them in bf16: a step of length 0 leaves
# them as they were loaded.
check "a step that moves nothing" "$emulated" "${by_heart[@]}" --device cuda --max_steps 1 \
    --learning_rate 0 --save_strategy steps --save_steps 1 --model_name_or_path "$scratch/cpu" \
    --output_dir "$scratch/still"
check "masters are the fp32 values" python3 - "$scratch/cpu/model.safetensors" \
    "$scratch/still/checkpoint-1/optimizer-00001-of-00001.safetensors" <<'END'
import json, struct, sys
def read(path):
    data = open(path, "rb").read()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: data[8 + n:][slice(*v["data_offsets"])] for k, v in header.items()}
model, state = map(read, sys.argv[1:])
masters = {k[:-len(".master")]: v for k, v in state.items() if k.endswith(".master")}
assert masters.keys() == model.keys() and len(masters) > 20, (masters.keys(), model.keys())
two = [model["score.weight"][i:i + 4] for i in range(0, len(model["score.weight"]), 4)]
half = len(two) // 2  # labels' weights one after the other; in the engine they are columns
model["score.weight"] = b"".join(a + b for a, b in zip(two[:half], two[half:]))
different = [k for k in model if model[k] != masters[k]]
assert not different, different
assert any(struct.unpack("<H", v[i:i + 2])[0] for v in model.values() for i in range(0, 64, 4))
END

if [ "${ZF_FULL_SAMPLE:-0}" = 1 ]; then
    for device in cpu cuda; do
        check "the whole sample on the $device device" "$emulated" --config "$steady/sample.json" \
            --device $device --output_dir "$scratch/whole-$device"
    done
    check "the same accuracy, to 0.02" python3 - "$scratch" <<'END'
import json, sys
cpu, cuda = (json.load(open(f"{sys.argv[1]}/whole-{d}/all_results.json"))["eval_accuracy"]
             for d in ("cpu", "cuda"))
print(cpu, cuda)
assert cpu > 0.9 and cuda > cpu - 0.02
END
fi

# Two ranks, each with a GPU of its own and both with the same, against one.
if command -v mpirun >/dev/null; then
    short=("${by_heart[@]}" --device cuda --max_steps 4 --do_eval false)
    check "one rank" "$emulated" "${short[@]}" --output_dir "$scratch/one"
    for gpus in 1 2; do
        export ZF_EMULATOR_DEVICES=$gpus
        check "two ranks, $gpus GPU(s)" ranks 2 "$emulated" "${short[@]}" \
            --per_device_train_batch_size 4 --output_dir "$scratch/two-$gpus"
        cp "$scratch/check.log" "$scratch/printed-$gpus"
        unset ZF_EMULATOR_DEVICES
        check "the same losses but for rounding" compare "$scratch/one/trainer_log.jsonl" \
            "$scratch/two-$gpus/trainer_log.jsonl" 0.05
    done
    check "sharing is said once" test "$(grep -c '^warning: 2 ranks .* share' \
        "$scratch/printed-1")" = 1
    check "and only where it is" not grep -q '^warning: .* share' "$scratch/printed-2"
fi

# Memory.
needs() { # needs OPTION...: the total of device memory, the first table, in KiB
    "$emulated" "${by_heart[@]}" --device cuda --max_steps 1 --output_dir "$scratch/needs" \
        --overwrite_output_dir "$@" 2>&1 |
        awk '$1 == "total" && !seen++ { print int($2 * ($3 == "GiB" ? 1048576 : 1024)) }'
}
big=(--per_device_train_batch_size 32)
kept=$(needs "${big[@]}") again=$(needs "${big[@]}" --gradient_checkpointing)
echo "$kept KiB; with gradient_checkpointing $again KiB"
check "gradient_checkpointing saves memory" test "$again" -lt "$kept"
status=0
ZF_EMULATOR_MEMORY=8 "$emulated" "${by_heart[@]}" "${big[@]}" --device cuda \
    --output_dir "$scratch/full" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
cat "$scratch/stderr"
check "too little memory: status 1" test "$status" = 1
check "too little memory: by how much" grep -Eq \
    '^zf-train: this run needs .* of device memory, .* more than there is \(.*\): ' "$scratch/stderr"
check "too little memory: what would help" grep -q \
    'the least that this run can need is .*: a smaller max_seq_length or model' "$scratch/stderr"
check "too little memory: nothing is written" test ! -e "$scratch/full"
finish
