#!/usr/bin/env bash
# What people who know Transformers' Trainer and run_glue.py count on: the files of results and their keys,
# trainer_state.json through a resume, early stopping, save_strategy best, shares of all steps, the model card,
# and evaluation and prediction alone.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun

small=(--config configs/adamw.json "${tiny[@]}" --max_seq_length 24 --scheduler.type none --lr_scheduler_type constant)
# says FOLDER CONDITION: of r(FILE), the folder's JSON file of that name; and of log, its log_history.
says() {
    python3 - "$@" <<'END'
import json, os, sys
from math import isclose
folder, condition = sys.argv[1:]
def r(name):
    return json.load(open(os.path.join(folder, name)))
there = sorted(os.listdir(folder))
state = r("trainer_state.json") if "trainer_state.json" in there else {}
log = state.get("log_history")
steps = [e["step"] for e in log or [] if "loss" in e]
evaluated = [e["step"] for e in log or [] if "eval_loss" in e]
saved = sorted(int(n[11:]) for n in there if n.startswith("checkpoint-"))
assert eval(condition), (condition, there, state)
END
}

# The files and their keys are Transformers' own, with more beside them.
out=$scratch/files
check "a run" "$train" "${small[@]}" --max_steps 4 --logging_steps 2 --eval_strategy steps --eval_steps 2 \
    --save_strategy steps --save_steps 2 --load_best_model_at_end --early_stopping_patience 3 --per_device_eval_batch_size 24 \
    --output_dir "$out"
check "Transformers' files and keys" python3 - "$out" tests/fixtures/trainer/keys.json <<'END'
import json, math, sys
folder, expected = sys.argv[1], json.load(open(sys.argv[2]))
def read(name):
    return json.load(open(f"{folder}/{name}"))
for name in ("all_results.json", "eval_results.json", "train_results.json"):
    assert set(expected[name]) <= set(read(name)), (name, set(expected[name]) - set(read(name)))
for name in ("trainer_state.json", "checkpoint-4/trainer_state.json"):
    assert sorted(read(name)) == expected["trainer_state.json"], (name, sorted(read(name)))
log = read("trainer_state.json")["log_history"]
for what, word in (("a step", "loss"), ("an evaluation", "eval_loss"), ("training", "train_loss")):
    entry = next(e for e in log if word in e)
    missing = set(expected[what]) - set(entry)
    assert not missing, (what, missing)
stopping = read("checkpoint-4/trainer_state.json")["stateful_callbacks"]["EarlyStoppingCallback"]
shape = lambda o: {k: shape(v) for k, v in o.items()} if isinstance(o, dict) else type(o)
assert shape(stopping) == shape(expected["EarlyStoppingCallback"]), stopping
state, train, evaluation, both = (read(n) for n in ("trainer_state.json", "train_results.json",
                                                    "eval_results.json", "all_results.json"))
assert both == train | evaluation and not [k for k in train if k.startswith("eval_")], both
assert evaluation["epoch"] == train["epoch"] and evaluation["eval_samples"] == 64, evaluation
assert state["global_step"] == 4 and math.isclose(log[-1]["eval_loss"], both["eval_loss"], rel_tol=1e-8), state
best = min((e for e in log[:-2] if "eval_loss" in e), key=lambda e: e["eval_loss"])
assert (state["best_global_step"], state["best_metric"]) == (best["step"], best["eval_loss"]), state
assert state["best_model_checkpoint"] == f"{folder}/checkpoint-{best['step']}", state
speed = evaluation["eval_samples_per_second"] / evaluation["eval_steps_per_second"]
assert math.isclose(speed, 64 / 3, rel_tol=1e-6), evaluation  # three batches
END
check "a checkpoint is without times" not grep -q "_runtime\|per_second" "$out/checkpoint-4/trainer_state.json"
check "floating-point operations: 6 for each token and parameter that is not of an embedding" python3 - "$out" <<'END'
import json, math, struct, sys
with open(sys.argv[1] + "/model.safetensors", "rb") as file:
    tensors = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
n = sum(math.prod(t["shape"]) for name, t in tensors.items() if "wte" not in name and "wpe" not in name and "shape" in t)
state, results = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("trainer_state", "train_results"))
assert state["total_flos"] == 6 * n * state["num_input_tokens_seen"] > 0, (state["total_flos"], n)
assert math.isclose(results["total_flos"], state["total_flos"], rel_tol=1e-8), results
END

# Model and tokenizer pad with the same token: the tokenizer's own, or what ends a text.
pads_with() { # pads_with FOLDER TOKEN ID
    python3 - "$@" <<'END'
import json, sys
config, tokenizer = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("config", "tokenizer_config"))
assert (tokenizer["pad_token"], config["pad_token_id"]) == (sys.argv[2], int(sys.argv[3])), (tokenizer, config)
END
}
id_of() { # id_of FILE TOKEN: of an added token in a tokenizer.json
    python3 -c 'import json, sys
print(next(t["id"] for t in json.load(open(sys.argv[1]))["added_tokens"] if t["content"] == sys.argv[2]))' "$@"
}
end=$(python3 -c 'import json; print(json.load(open("data/sample/tokenizer/vocab.json"))["<|endoftext|>"])')
check "GPT-2's tokenizer pads with what ends a text" pads_with "$out" "<|endoftext|>" "$end"
for shape in llama2 qwen2; do
    check "$shape's tokenizer" "$train" "${small[@]}" --tokenizer_name "tests/fixtures/tokenizer/shapes/$shape" --max_steps 1 \
        --no_do_eval --output_dir "$scratch/$shape"
done
check "a preset's vocabulary is the tokenizer's" python3 -c 'import json, sys
vocab = json.load(open(sys.argv[2] + "/tokenizer.json"))["model"]["vocab"]
assert json.load(open(sys.argv[1] + "/config.json"))["vocab_size"] == len(vocab) != 8000, len(vocab)' \
    "$scratch/llama2" tests/fixtures/tokenizer/shapes/llama2
check "Llama's, too" pads_with "$scratch/llama2" "</s>" 2
check "Qwen's has one of its own" pads_with "$scratch/qwen2" "<|endoftext|>" \
    "$(id_of tests/fixtures/tokenizer/shapes/qwen2/tokenizer.json "<|endoftext|>")"
for eos in null 3; do # of a model without one, or with one that means nothing to the tokenizer
    mkdir "$scratch/eos-$eos"
    cat >"$scratch/eos-$eos/config.json" <<END
{"model_type": "llama", "vocab_size": 1000, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
 "num_attention_heads": 2, "max_position_embeddings": 64, "eos_token_id": $eos}
END
    check "a model whose eos_token_id is $eos" "$train" "${small[@]}" --config_name "$scratch/eos-$eos" \
        --tokenizer_name tests/fixtures/tokenizer/shapes/llama2 --max_steps 1 --no_do_eval --output_dir "$scratch/padded-$eos"
    check "with an eos_token_id of $eos, the tokenizer's" pads_with "$scratch/padded-$eos" "</s>" 2
done

# The model card.
check "the model card's metadata and results" python3 - "$out" <<'END'
import json, re, sys
card = open(sys.argv[1] + "/README.md").read()
results = json.load(open(sys.argv[1] + "/all_results.json"))
head = card.split("---\n")[1]
for line in ("library_name: transformers", "pipeline_tag: text-classification", "- generated_from_trainer",
             "- glue", "- accuracy", '- name: "files"', "      args: sst2", "      type: accuracy"):
    assert line in head.split("\n"), (line, head)
assert f"      value: {results['eval_accuracy']:.9g}\n" in head, head
assert f"- Accuracy: {results['eval_accuracy']:.4f}\n" in card and "- learning_rate: 0.001\n" in card, card
rows = re.findall(r"^\| [0-9.]+ \| [0-9.]+ \| (\d+) \| ([0-9.]+) \|", card, re.M)
assert [int(step) for step, _ in rows] == [2, 4], card
assert all(re.match(r"^\|( :?[^|]+:? ?\||:---:\|)+$", l) for l in card.split("\n") if l.startswith("|")), card
END
if python3 -c "import yaml" 2>/dev/null; then
    check "its metadata is YAML" python3 -c 'import sys, yaml
y = yaml.safe_load(open(sys.argv[1] + "/README.md").read().split("---\n")[1])
assert y["model-index"][0]["results"][0]["metrics"][0]["type"] == "accuracy", y' "$out"
fi
for chosen in keep_up auto; do
    check "update_interval $chosen" "$train" --config configs/zenflow.json "${tiny[@]}" --max_steps 14 --no_do_eval \
        --zero_optimization.zenflow.update_interval $chosen --output_dir "$scratch/$chosen"
    check "its card has the interval that was chosen" python3 -c '
import json, sys
last = [e for e in map(json.loads, open(sys.argv[1] + "/trainer_log.jsonl")) if "loss" in e][-1]
card, = [l for l in open(sys.argv[1] + "/README.md") if l.startswith("- optimizer: ")]
says = "and update_interval=%s, at the end %d\n" % (sys.argv[2], last["update_interval"])
assert last["step"] == 14 and card.endswith(says) and "-2" not in card, (card, says)' "$scratch/$chosen" $chosen
done
echo "# mine" >"$scratch/mine"
cp "$scratch/mine" "$out/README.md"
check "trained again" "$train" "${small[@]}" --max_steps 1 --no_do_eval --overwrite_output_dir --output_dir "$out"
check "a card that no run has written stays" cmp "$scratch/mine" "$out/README.md"
check "results of the model before are gone" test ! -e "$out/eval_results.json" -a -e "$out/train_results.json"

# Early stopping: by the greatest loss, so that after the first few evaluations there is none better.
stop=("$train" "${small[@]}" --max_steps 12 --eval_strategy steps --eval_steps 1 --greater_is_better
    --metric_for_best_model eval_loss --early_stopping_patience 3 --save_strategy steps --save_steps 1)
whole=$scratch/whole
check "a run that stops early" "${stop[@]}" --output_dir "$whole"
cp "$scratch/check.log" "$scratch/printed"
stopped=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["global_step"])' "$whole/all_results.json")
check "it stops, after $stopped steps" test "$stopped" -ge 4 -a "$stopped" -lt 12
check "it says so" grep -q "early stopping after step $stopped of 12: eval_loss, at best .* 3 evaluation" "$scratch/printed"
check "that the best model is not loaded, too" grep -q "without load_best_model_at_end" "$scratch/printed"
check "no earlier, and no later" python3 - "$whole" <<'END'
import json, sys
log = [json.loads(l) for l in open(sys.argv[1] + "/trainer_log.jsonl")]
losses = [e["eval_loss"] for e in log if "eval_loss" in e and "model" not in e]
best, waited = None, 0
for i, loss in enumerate(losses):
    waited = 0 if best is None or loss > best else waited + 1
    best = loss if best is None else max(best, loss)
    assert (waited >= 3) == (i + 1 == len(losses)), (i, losses)
END
check "the model is that of so many steps" "$train" "${small[@]}" --max_steps "$stopped" --output_dir "$scratch/short"
check "to the bit" cmp "$whole/model.safetensors" "$scratch/short/model.safetensors"
same_history() { # same_history FOLDER FOLDER: but for times
    python3 - "$@" <<'END'
import json, sys
a, b = ([{k: v for k, v in e.items() if "_runtime" not in k and "_per_second" not in k}
         for e in json.load(open(f + "/trainer_state.json"))["log_history"]] for f in sys.argv[1:])
assert a == b and len(a) > 5, (a, b)
END
}
for step in 1 $((stopped - 1)) "$stopped"; do
    again=$scratch/again-$step
    cp -r "$whole" "$again"
    for later in "$again"/checkpoint-*; do
        [ "${later##*-}" -le "$step" ] || rm -r "$later"
    done
    rm "$again"/{model.safetensors,all_results.json,trainer_state.json}
    check "goes on after step $step" "${stop[@]}" --output_dir "$again"
    check "from $step: the same end" cmp "$whole/model.safetensors" "$again/model.safetensors"
    check "from $step: the same log" compare "$whole/trainer_log.jsonl" "$again/trainer_log.jsonl" 0
    check "from $step: the same history" same_history "$whole" "$again"
done
check "goes on in another folder" "${stop[@]}" --resume_from_checkpoint "$whole/checkpoint-2" --output_dir "$scratch/moved"
check "the history goes along" same_history "$whole" "$scratch/moved"
check "two ranks" ranks 2 "${stop[@]}" --per_device_train_batch_size 8 --output_dir "$scratch/pair"
check "two ranks stop there too" says "$scratch/pair" "state['global_step'] == $stopped"
check "a greater threshold" "${stop[@]}" --early_stopping_threshold 9 --output_dir "$scratch/threshold"
check "stops after the first three" says "$scratch/threshold" "state['global_step'] == 4"
check "the best model is left" "${stop[@]}" --load_best_model_at_end --output_dir "$scratch/best"
check "of the greatest loss" says "$scratch/best" \
    'isclose(r("all_results.json")["eval_loss"], state["best_metric"], rel_tol=1e-8) and state["best_metric"] == max(e["eval_loss"] for e in log if "eval_loss" in e)'
check "another measure is refused on the way" not "${stop[@]}" --no_greater_is_better --output_dir "$scratch/other" \
    --resume_from_checkpoint "$whole/checkpoint-2"
check "other evaluation data, too" not "${stop[@]}" --max_eval_samples 5 --output_dir "$scratch/other" \
    --resume_from_checkpoint "$whole/checkpoint-2"
cp "$scratch/check.log" "$scratch/refused"
check "and that is said" grep -q "is the best on other evaluation data than this run's" "$scratch/refused"
check "but not none" "$train" "${small[@]}" --no_do_eval --greater_is_better --metric_for_best_model eval_loss --save_strategy steps \
    --save_steps 1 --max_steps 3 --output_dir "$scratch/none" \
    --resume_from_checkpoint "$whole/checkpoint-2"
check "which others may not follow" not "${stop[@]}" --max_eval_samples 5 --output_dir "$scratch/none" --resume_from_checkpoint latest
check "and the same may" "${stop[@]}" --output_dir "$scratch/none" --resume_from_checkpoint latest
check "a metric that the task has not is refused" not "${stop[@]}" --metric_for_best_model f1 --output_dir "$scratch/other"

# save_strategy best.
check "save_strategy best" "$train" "${small[@]}" --max_steps 8 --eval_strategy steps --eval_steps 2 \
    --save_strategy best --load_best_model_at_end --metric_for_best_model accuracy --output_dir "$scratch/bests"
check "checkpoints are of the best so far" python3 - "$scratch/bests" <<'END'
import json, os, sys
folder = sys.argv[1]
log = [json.loads(l) for l in open(folder + "/trainer_log.jsonl")]
best, expected = None, []
for e in (e for e in log if "eval_loss" in e and "model" not in e):
    if best is None or e["eval_accuracy"] > best:
        best = e["eval_accuracy"]
        expected.append(e["step"])
saved = sorted(int(n[11:]) for n in os.listdir(folder) if n.startswith("checkpoint-"))
assert saved == expected and 8 in [e["step"] for e in log if "eval_loss" in e], (saved, expected)
assert log[-1]["model"] == "best" and log[-1]["step"] == saved[-1], log[-1]
END
check "the last step may be the best" "$train" "${small[@]}" --max_steps 5 --eval_strategy steps --eval_steps 2 \
    --save_strategy steps --save_steps 2 --load_best_model_at_end --output_dir "$scratch/last"
check "it is evaluated and saved" says "$scratch/last" 'saved == [2, 4, 5] and 5 in evaluated'

# Shares of all steps, and when to log and to evaluate.
check "shares of all steps" "$train" "${small[@]}" --max_steps 10 --logging_steps 0.25 --eval_strategy steps \
    --eval_steps 0.35 --save_strategy steps --save_steps 0.5 --warmup_steps 0.5 --lr_scheduler_type \
    constant_with_warmup --output_dir "$scratch/shares"
check "are rounded up" says "$scratch/shares" 'steps == [3, 6, 9] and evaluated == [4, 8, 10] and saved == [5, 10]'
check "warm-up, too" says "$scratch/shares" \
    '[round(e["learning_rate"], 9) for e in log if "loss" in e] == [0.0004, 0.001, 0.001]'
check "the configuration that is left has steps" grep -q '"eval_steps": 4,' "$scratch/shares/zf_train_config.json"
check "an epoch's end" "$train" "${small[@]}" --num_train_epochs 3 --logging_strategy epoch --eval_strategy epoch \
    --eval_delay 1.5 --save_strategy no --output_dir "$scratch/epochs"
check "is when it logs, and evaluates after the delay" says "$scratch/epochs" 'steps == [8, 16, 24] and evaluated == [16, 24]'
check "no log" "$train" "${small[@]}" --max_steps 4 --logging_strategy no --output_dir "$scratch/silent"
check "but the results" says "$scratch/silent" 'steps == [] and evaluated == [4] and state["log_history"][0]["train_loss"] > 0'

# Evaluation and prediction alone, as run_glue.py.
alone=(--model_name_or_path "$whole" --task_name sst2 --data_dir data/sample --max_eval_samples 32 --max_predict_samples 16)
sums() {
    find "$whole" -type f -exec sha256sum {} + | sort
}
before=$(sums)
check "prediction alone, into the model's folder" "$train" --do_predict "${alone[@]}" --output_dir "$whole"
cp "$scratch/check.log" "$scratch/printed"
check "prints no table of nothing" not grep -q -- '-----' "$scratch/printed"
check "adds two files, and overwrites none" test "$(comm -13 <(echo "$before") <(sums) | sed 's|.*/||' | sort | xargs)" = \
    "SST-2.tsv predict_results_sst2.txt"
check "removes none" test -z "$(comm -23 <(echo "$before") <(sums))"
check "with the labels' names" awk -F '\t' 'NR == 1 ? $0 != "index\tprediction" : $2 !~ /^(negative|positive)$/ { exit 1 }' \
    "$whole/predict_results_sst2.txt"
before=$(sums)
check "once more is refused" not "$train" --do_predict "${alone[@]}" --output_dir "$whole"
cp "$scratch/check.log" "$scratch/printed"
check "and says why" grep -q "predict_results_sst2.txt: it is there already: .*--overwrite_output_dir" "$scratch/printed"
check "nothing has changed" test "$before" = "$(sums)"
check "but by --overwrite_output_dir" "$train" --do_predict "${alone[@]}" --max_predict_samples 8 \
    --overwrite_output_dir --output_dir "$whole"
check "there are the new ones" test "$(wc -l <"$whole/predict_results_sst2.txt")" = 9
check "and the checkpoints still" test -d "$whole/checkpoint-1"
check "evaluation alone" "$train" --do_eval "${alone[@]}" --output_dir "$scratch/judged"
check "leaves its results, and those of all" says "$scratch/judged" \
    'there == ["all_results.json", "eval_results.json"] and r(there[0]) == r(there[1]) and r(there[0])["eval_samples"] == 32'

# Tasks with two metrics, and with two splits.
check "MRPC" "$train" --config configs/adamw.json "${tiny[@]}" --task_name mrpc --data_dir tests/fixtures/glue \
    --train_batch_size 4 --per_device_train_batch_size 4 --max_steps 1 --metric_for_best_model combined_score \
    --eval_strategy epoch --do_train --do_predict --output_dir "$scratch/mrpc"
check "the combined score is the mean" says "$scratch/mrpc" \
    'abs(r("eval_results.json")["eval_combined_score"] * 2 - r("eval_results.json")["eval_accuracy"] - r("eval_results.json")["eval_f1"]) < 1e-7'
check "MNLI" "$train" --config configs/adamw.json "${tiny[@]}" --task_name mnli --data_dir tests/fixtures/glue \
    --train_batch_size 4 --per_device_train_batch_size 4 --max_steps 1 --do_train --do_eval --do_predict \
    --output_dir "$scratch/mnli"
check "has both splits" says "$scratch/mnli" \
    '{"eval_accuracy", "eval_accuracy_mm", "eval_steps_per_second_mm"} <= set(r("eval_results.json")) and "eval_combined_score" not in r("eval_results.json") and {"predict_results_mnli.txt", "predict_results_mnli-mm.txt"} <= set(there)'
finish
