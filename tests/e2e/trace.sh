#!/usr/bin/env bash
# --trace FILE: a timeline that viewers take, of all ranks, which agrees with the log.

. tests/e2e/lib/common.sh "$@"
need python3

short=("${tiny[@]}" --max_train_samples 64 --max_steps 8 --do_predict false --overwrite_output_dir)
zenflow=(--config "$steady/zenflow.json")
traced() { # traced NAME COMMAND...: its results in $scratch/NAME, its timeline in $scratch/NAME.json
    local name=$1
    shift
    check "$name" "$@" --output_dir "$scratch/$name" --trace "$scratch/$name.json"
}
agrees() { # agrees NAME RANKS STEPS SPAN...
    local name=$1
    shift
    check "$name: the timeline" python3 tests/e2e/lib/check_trace.py "$scratch/$name.json" "${@:1:2}" \
        "$scratch/$name/trainer_log.jsonl" "${@:3}"
}

saving=(--eval_strategy steps --eval_steps 3 --save_strategy steps --save_steps 4)
traced zenflow "$train" "${zenflow[@]}" "${short[@]}" "${saving[@]}" --per_device_train_batch_size 8
agrees zenflow 1 8 window parameters AdamW evaluate save
traced adamw "$train" --config configs/adamw.json "${short[@]}"
agrees adamw 1 8
selecting=(--zero_optimization.zenflow.select_strategy step --zero_optimization.zenflow.select_interval 4)
traced host "$train" "${zenflow[@]}" "${short[@]}" "${selecting[@]}" --learning_rate 0.1 \
    --zero_optimization.zenflow.topk_ratio 0.3 --zero_optimization.zenflow.accumulate host
agrees host 1 8 gradients accumulate parameters AdamW 'state, to the device' 'state, to the host' \
    'windows, to the device'
traced offload "$train" "${zenflow[@]}" "${short[@]}" --zero_optimization.zenflow.offload true
agrees offload 1 8 'state, to the device' 'state, to the host'
cp -r "$scratch/adamw" "$scratch/broken"
echo '{}' >"$scratch/broken/model.safetensors"
check "a broken model: status" not "$train" "${zenflow[@]}" --model_name_or_path "$scratch/broken" \
    --data_dir data/sample --max_steps 1 --output_dir "$scratch/none" --trace "$scratch/none.json"
cp "$scratch/check.log" "$scratch/printed"
check "a broken model: it is what is wrong" grep -q '^zf-train: .*model.safetensors: ' "$scratch/printed"
check "a broken model: no timeline" test ! -e "$scratch/none.json"
check "only where it is asked for" not ls "$scratch"/zenflow.*.json

if command -v mpirun >/dev/null; then
    traced two ranks 2 "$train" "${zenflow[@]}" "${short[@]}" "${saving[@]}" --per_device_train_batch_size 8
    agrees two 2 8 window parameters AdamW evaluate save
    check "two: one file" test "$(cd "$scratch" && echo two*)" = "two two.json"

    # What other ranks keep in the meantime is in nobody's way, whatever is called as one might think.
    mkdir "$scratch/others"
    echo mine | tee "$scratch/others/tr.1.json" "$scratch/others/target" >/dev/null
    ln -s target "$scratch/others/tr.json.1"
    cp -r "$scratch/others" "$scratch/before"
    check "others' files" ranks 2 "$train" "${zenflow[@]}" "${short[@]}" --per_device_train_batch_size 8 \
        --output_dir "$scratch/others/out" --trace "$scratch/others/tr.json"
    check "others' files: the timeline" python3 tests/e2e/lib/check_trace.py "$scratch/others/tr.json" 2 8 \
        "$scratch/others/out/trainer_log.jsonl"
    rm -r "$scratch"/others/{out,tr.json}
    check "others' files are as they were" diff -r --no-dereference "$scratch/before" "$scratch/others"

    # Where it cannot be written: one sentence, and no rank is left.
    status=0
    ranks 2 "$train" "${zenflow[@]}" "${short[@]}" --per_device_train_batch_size 8 --output_dir "$scratch/no" \
        --trace "$scratch/absent/t.json" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    check "it cannot be written: status" test "$status" != 0
    check "it cannot be written: one sentence" test "$(grep -c \
        "^zf-train: $scratch/absent/t.json: cannot be written: No such file or directory" "$scratch/stderr")" = 1

    # A run that dies leaves timelines that a viewer takes as they are: it adds the bracket.
    ranks 2 "$train" "${zenflow[@]}" "${short[@]}" --max_steps 1000000 --per_device_train_batch_size 8 \
        --output_dir "$scratch/killed" --trace "$scratch/killed.json" >"$scratch/log" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do
        if grep -q '"step": 4,' "$scratch/killed/trainer_log.jsonl" 2>/dev/null; then break; fi
        sleep 0.1
    done
    mapfile -t pids < <(pgrep -P "$job")
    kill -9 "${pids[@]}"
    wait "$job" || true
    for rank in 0 1; do
        check "a run that dies: rank $rank" python3 - "$scratch/killed.json" $rank <<'END'
import glob, json, sys
path, = [sys.argv[1]] if sys.argv[2] == "0" else glob.glob(f"{sys.argv[1]}.rank{sys.argv[2]}.*.tmp")
text = open(path).read()
assert text.startswith("[\n{") and text.endswith("}"), (text[:9], text[-9:])
spans = [e for e in json.loads(text + "]") if e["ph"] == "X"]
assert {e["pid"] for e in spans} == {int(sys.argv[2])}
assert {3} <= {e["args"]["step"] for e in spans if e["name"] == "update"}
END
    done
fi

# Where streams run when they please, and long after they were given their work.
emulated=$build/zf-train-emulated
[ -x "$emulated" ] || {
    echo "not checked: $emulated is not built"
    finish
}
few=("${short[@]}" --max_train_samples 24 --max_eval_samples 8 --train_batch_size 4 --per_device_train_batch_size 2
    --max_seq_length 16 --device cuda)
for seed in 1 2 3; do
    export ZF_EMULATOR_SEED=$seed
    traced "cuda$seed" "$emulated" "${zenflow[@]}" "${few[@]}" "${saving[@]}"
    agrees "cuda$seed" 1 8 window parameters AdamW evaluate save
    cp "$scratch/check.log" "$scratch/share"
    cat "$scratch/share"
    # Measured as the host gives the device its work, they would be a thirtieth of a step.
    check "cuda$seed: passes take the device's time" awk '$1 < 0.2 { exit 1 }' "$scratch/share"
done
finish
