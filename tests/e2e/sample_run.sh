#!/usr/bin/env bash
# configs/sample.json, shortened: what a run leaves in output_dir, that the effective configuration
# gives the same run again to the last bit, and that piped output is plain lines.

. tests/e2e/lib/common.sh "$@"
need python3
unset OMP_NUM_THREADS # as a user runs it

out=$scratch/out again=$scratch/again
check "the sample runs" "$train" --config configs/sample.json --max_train_samples 256 \
    --max_eval_samples 100 --num_train_epochs 1 --logging_steps 2 --output_dir "$out"
cp "$scratch/check.log" "$scratch/printed"

for file in model.safetensors config.json vocab.json merges.txt tokenizer_config.json \
    all_results.json train_results.json eval_results.json trainer_state.json trainer_log.jsonl README.md report.html \
    zf_train_config.json SST-2.tsv predict_results_sst2.txt; do
    check "$file is there" test -s "$out/$file"
done
check "nothing else is there" test "$(find "$out" -mindepth 1 | wc -l)" = 15
check "the log is JSON lines with steps" python3 - "$out" <<'END'
import json, sys
entries = [json.loads(line) for line in open(sys.argv[1] + "/trainer_log.jsonl")]
assert [e["step"] for e in entries if "loss" in e] == [2, 4, 6, 8], entries
assert all(e["epoch"] == e["step"] / 8 for e in entries), entries
END
check "the results are numbers, as the log's last evaluation" python3 - "$out" <<'END'
import json, math, sys
results = json.load(open(sys.argv[1] + "/all_results.json"))
last = json.loads(open(sys.argv[1] + "/trainer_log.jsonl").readlines()[-1])
assert all(math.isfinite(v) for v in results.values()), results
assert results["global_step"] == 8 and results["train_samples"] == 256, results
assert results["eval_samples"] == 100 and 0 <= results["eval_accuracy"] <= 1, results
assert results["eval_loss"] == last["eval_loss"], (results, last)
END
check "the submission has its header" test "$(head -n 1 "$out/SST-2.tsv")" = $'index\tprediction'
check "the submission has 200 rows" test "$(wc -l <"$out/SST-2.tsv")" = 201
check "the rows are labels, in order" awk -F '\t' \
    'NR > 1 && ($1 != NR - 2 || $2 !~ /^[01]$/) { exit 1 }' "$out/SST-2.tsv"
check "the start is told, once and by parts that add up" python3 - "$scratch/printed" <<'END'
import re, sys
lines = re.findall(r"the first step was done ([\d.]+) s after the start: (.*)", open(sys.argv[1]).read())
assert len(lines) == 1, lines
parts = dict(part.rsplit(" ", 1) for part in lines[0][1].split(", "))
assert list(parts) == ["program and MPI", "data", "device and plan", "host memory", "weights",
                       "checkpoint and reports", "the step itself"], parts
assert abs(sum(map(float, parts.values())) - float(lines[0][0])) <= 0.005 * (len(parts) + 1), lines
END
check "a table of results is printed" grep -Eq '^eval_accuracy +[01]\.[0-9]+$' "$scratch/printed"
check "steps are printed as lines" grep -q '^step 2/8  ' "$scratch/printed"
check "the results' numbers end in one column" awk '/^-+$/ { n = length } /^[a-z_]+ +[0-9,.]+$/ && length != n { exit 1 }' \
    "$scratch/printed"
check "piped output has no escape codes" not has_escape_codes "$scratch/printed"

check "the effective configuration runs" "$train" --config "$out/zf_train_config.json" \
    --output_dir "$again"
cp "$scratch/check.log" "$scratch/once-more"
check "nothing in it is warned of" not grep '^warning: ' "$scratch/once-more"
check "it gives the same model" cmp "$out/model.safetensors" "$again/model.safetensors"
check "it gives the same log" compare "$out/trainer_log.jsonl" "$again/trainer_log.jsonl" 0
check "it gives the same predictions" cmp "$out/SST-2.tsv" "$again/SST-2.tsv"
check "it gives the same configuration" diff <(grep -v '"output_dir"' "$out/zf_train_config.json") \
    <(grep -v '"output_dir"' "$again/zf_train_config.json")

# Evaluation alone, into the model's own folder.
before=$(sha256sum "$out"/{model.safetensors,config.json,trainer_log.jsonl,SST-2.tsv})
cp "$out/all_results.json" "$scratch/trained.json"
check "evaluation alone runs" "$train" --do_eval --model_name_or_path "$out" --task_name sst2 \
    --data_dir data/sample --max_eval_samples 50 --output_dir "$out" --zero_optimization.stage 3 \
    --zero_optimization.offload_param.device cpu --zero_optimization.offload_param.buffer_count 1
cp "$scratch/check.log" "$scratch/printed"
check "evaluation alone has parameters on the host, and says so" grep -q '^host memory of each rank: [0-9.]* MiB of parameters' \
    "$scratch/printed"
check "evaluation alone does not train" not grep -q '^step ' "$scratch/printed"
check "evaluation alone prints its results" grep -Eq '^eval_accuracy +[01]\.' "$scratch/printed"
check "evaluation alone leaves all else as it was" test "$before" = \
    "$(sha256sum "$out"/{model.safetensors,config.json,trainer_log.jsonl,SST-2.tsv})"
check "its results replace those of before" python3 - "$scratch/trained.json" "$out" <<'END'
import json, sys
before, after = json.load(open(sys.argv[1])), json.load(open(sys.argv[2] + "/all_results.json"))
assert after["eval_samples"] == 50 and before["eval_samples"] == 100, after
assert before["train_loss"] == after["train_loss"] and before.keys() == after.keys(), after
END

# From a model with two labels to a task with three.
check "a score head for other labels is replaced" "$train" --ignore_mismatched_sizes --task_name mnli \
    --model_name_or_path "$out" --data_dir tests/fixtures/glue --max_steps 1 --output_dir "$scratch/mnli"
check "the new one has the task's labels" grep -q '"2": "contradiction"' "$scratch/mnli/config.json"
judge=("$train" --do_eval --task_name sst2 --data_dir data/sample --max_eval_samples 8)
check "evaluation alone of random weights" "${judge[@]}" --config_name gpt --tokenizer_name data/sample/tokenizer
cp "$scratch/check.log" "$scratch/printed"
check "it prints its results" grep -q '^eval_accuracy' "$scratch/printed"
check "there is no model to ask then" not grep -q "Next\|zf-run" "$scratch/printed"
check "evaluation alone minds no windows" "${judge[@]}" --model_name_or_path "$out" --config configs/zenflow.json \
    --do_train false --zero_optimization.zenflow.update_interval 1000
check "evaluation alone goes on from no checkpoint" "${judge[@]}" --model_name_or_path "$out" --resume_from_checkpoint latest
cp "$scratch/check.log" "$scratch/printed"
check "and says so" grep -q "^warning: resume_from_checkpoint latest is not read: do_train is false" "$scratch/printed"
check "a plan goes on from no checkpoint" "$train" --config configs/sample.json --plan h100 --resume_from_checkpoint latest
cp "$scratch/check.log" "$scratch/printed"
check "and says so" grep -qx "warning: resume_from_checkpoint latest is not read: a plan is of a run from its start" \
    "$scratch/printed"
finish
