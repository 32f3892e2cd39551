#!/usr/bin/env bash
# TensorBoard's own reader finds in event files, of report_to and of DeepSpeed's tensorboard block, what the log has: after a
# run that was resumed, too. scripts/setup.sh --tests installs it; or ZF_PYTHON names a Python that has it.

. tests/e2e/lib/common.sh "$@"
need python3
python=$(python_with tensorboard) || skip "no Python has tensorboard: scripts/setup.sh --tests makes build-python, which has it"
unset TENSORBOARD_LOGGING_DIR

run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --eval_strategy steps --eval_steps 4 --logging_steps 2
    --save_strategy steps --save_steps 6 --report_to tensorboard --tensorboard.enabled --tensorboard.output_path
    "$scratch/monitor" --tensorboard.job_name a/b --csv_monitor.enabled --csv_monitor.job_name csv --output_dir "$scratch/out")
check "a run" "${run[@]}" --max_steps 8
check "goes on" "${run[@]}" --max_steps 12 --resume_from_checkpoint "$scratch/out/checkpoint-6"
[ "$failures" = 0 ] || finish
"$python" tests/e2e/lib/read_events.py "$scratch"/out/runs/* >"$scratch/transformers.json"
"$python" tests/e2e/lib/read_events.py "$scratch/monitor/a/b" >"$scratch/deepspeed.json"
check "TensorBoard finds the log, in Transformers' tags" python3 - "$scratch" <<'END'
import json, sys
found = json.load(open(sys.argv[1] + "/transformers.json"))
log = [json.loads(line) for line in open(sys.argv[1] + "/out/trainer_log.jsonl")]
same = lambda a, b: len(a) == len(b) and all(s == t and abs(v - w) <= 1e-6 * abs(w) for (s, v), (t, w) in zip(a, b))
for key in "loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "eval_accuracy", "eval_runtime":
    tag = key.replace("eval_", "eval/") if key.startswith("eval_") else "train/" + key
    expected = [[e["step"], e[key]] for e in log if key in e]
    if key == "epoch": # Transformers' summary of the training has it once more
        expected.append(expected[-1])
    assert expected and same(found[tag], expected), (tag, found[tag], expected)
results = json.load(open(sys.argv[1] + "/out/all_results.json"))
# The first part's summary is at step 8, which the second has done again.
assert same(found["train/train_loss"], [[12, results["train_loss"]]]), found["train/train_loss"]
assert same(found["train/train_runtime"], [[12, results["train_runtime"]]])
assert json.loads(found["texts"]["args/text_summary"])["csv_monitor"]["job_name"] == "csv"
model = json.load(open(sys.argv[1] + "/out/config.json"))
assert json.loads(found["texts"]["model_config/text_summary"]) == model and model["n_layer"] == 2
END
check "and DeepSpeed's, at its samples" python3 - "$scratch" <<'END'
import json, sys
found = json.load(open(sys.argv[1] + "/deepspeed.json"))
for name in "train_loss", "lr", "eval_loss", "eval_accuracy":
    rows = [line.split(",") for line in open(f"{sys.argv[1]}/out/csv/Train_Samples_{name}.csv").read().split("\n")[1:-1]]
    points = found["Train/Samples/" + name]
    assert [s for s, _ in points] == [int(s) for s, _ in rows], (name, points, rows)
    assert all(abs(v - float(w)) <= 1e-6 * abs(float(w)) for (_, v), (_, w) in zip(points, rows, strict=True)), name
END
finish
