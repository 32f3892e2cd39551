#!/usr/bin/env bash
# Where TensorBoard's event files, of report_to and of DeepSpeed's tensorboard block, are written and when; and
# DeepSpeed's CSV files. What is in the event files: tensorboard_reader.sh.

. tests/e2e/lib/common.sh "$@"
need python3
unset TENSORBOARD_LOGGING_DIR

run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --eval_strategy steps --eval_steps 4 --logging_steps 2
    --save_strategy steps --save_steps 6)
monitors=(--report_to tensorboard --tensorboard.enabled --tensorboard.output_path "$scratch/monitor"
    --tensorboard.job_name a/b --csv_monitor.enabled --csv_monitor.job_name csv)
event_files() {
    find "$1" -name 'events.out.tfevents.*' | wc -l
}

says() { # says WORDS COMMAND...: it fails, with a sentence that has them
    ! "${@:2}" >"$scratch/said" 2>&1 && grep -Eq -- "^zf-train: .*$1" "$scratch/said"
}

check "a run" "${run[@]}" "${monitors[@]}" --max_steps 8 --output_dir "$scratch/out"
check "a folder by date and host" bash -c "ls '$scratch/out/runs' | grep -Eq '^[A-Z][a-z]{2}[0-9]{2}_[0-9-]{8}_$(hostname)\$'"

# It had got to step 8 when it was resumed from step 6, and goes on to 12.
check "goes on" "${run[@]}" "${monitors[@]}" --max_steps 12 --output_dir "$scratch/out" \
    --resume_from_checkpoint "$scratch/out/checkpoint-6"
check "in the same folder" test "$(find "$scratch/out/runs" -mindepth 1 -type d | wc -l) $(event_files "$scratch/out/runs")" = "1 2"
check "CSV files as DeepSpeed names and writes them" python3 - "$scratch/out" <<'END'
import json, sys
out = sys.argv[1]
log = [json.loads(line) for line in open(out + "/trainer_log.jsonl")]
def rows(name):
    text = open(f"{out}/csv/Train_Samples_{name}.csv", newline="").read()
    lines = text.split("\r\n")
    assert lines[0] == f"step,{name}" and lines[-1] == "" and "\n" not in text.replace("\r\n", ""), text
    return [(int(step), float(value)) for step, value in (line.split(",") for line in lines[1:-1])]
lr, loss = rows("lr"), rows("train_loss")
assert [s for s, _ in lr] == [s for s, _ in loss] == [16 * step for step in range(1, 13)], (lr, loss)
for e in log:
    at = 16 * e["step"]
    if "loss" in e: # the log's is the mean since the last entry
        assert abs(dict(lr)[at] - e["learning_rate"]) < 1e-8
        assert abs((dict(loss)[at] + dict(loss)[at - 16]) / 2 - e["loss"]) < 1e-6
assert rows("eval_accuracy") == [(16 * e["step"], e["eval_accuracy"]) for e in log if "eval_accuracy" in e]
assert [s for s, _ in rows("eval_loss")] == [64, 128, 192], rows("eval_loss")
END

# Names.
for name in wandb mlflow tensorboard,wandb tensorbord none,tensorboard; do
    check "report_to $name is refused" says '--report_to is .*report_to "tensorboard"' "${run[@]}" --report_to "$name" \
        --output_dir "$scratch/refused"
done
echo '{"wandb": {"enabled": true}}' >"$scratch/wandb.json"
check "DeepSpeed's wandb is refused" says 'wandb.json:1: wandb is .*"wandb sync FOLDER" imports' "$train" \
    --config "$scratch/wandb.json" "${tiny[@]}" --output_dir "$scratch/refused"
check "nothing is begun" test ! -e "$scratch/refused"
check "report_to all, in logging_dir" "${run[@]}" --max_steps 2 --report_to all --logging_dir "$scratch/logs" \
    --output_dir "$scratch/all"
check "is TensorBoard" test "$(event_files "$scratch/logs")" = 1
check "TENSORBOARD_LOGGING_DIR" env TENSORBOARD_LOGGING_DIR="$scratch/env" "${run[@]}" --max_steps 2 \
    --report_to tensorboard --output_dir "$scratch/variable"
check "is where they are" test "$(event_files "$scratch/env")" = 1
echo '{"training_arguments": {"report_to": ["tensorboard"]}}' >"$scratch/list.json"
check "a list" "$train" --config "$scratch/list.json" "${tiny[@]}" --max_steps 2 --task_name sst2 --output_dir "$scratch/list"
check "is its names" test "$(event_files "$scratch/list/runs")" = 1
check "report_to none" "${run[@]}" --max_steps 2 --report_to none --output_dir "$scratch/none"
check "writes none" test ! -e "$scratch/none/runs"
mkdir "$scratch/file"
touch "$scratch/file/runs"
check "a folder that cannot be made is named" says "$scratch/file/runs" "${run[@]}" --overwrite_output_dir \
    --report_to all --output_dir "$scratch/file"

finish
