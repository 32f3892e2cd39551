#!/usr/bin/env bash
# What a run reports is of the model that it saves; the best model is its checkpoint's, to the bit;
# --overwrite_output_dir starts clean; a model that has diverged is no result.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun
export OMPI_MCA_odls_base_sigkill_timeout=0 # mpirun gives ranks that have ended with a fault no second to end

small=("${tiny[@]}" --max_seq_length 24 --logging_steps 100)

# is_of_the_model FOLDER: what all_results.json says is what a run of its own finds in the model, to
# the rounding of sums over batches.
is_of_the_model() {
    rm -rf "$scratch/alone"
    "$train" --task_name SST-2 "${tiny[@]:4}" --max_seq_length 24 --model_name_or_path "$1" \
        --do_train false --output_dir "$scratch/alone" >/dev/null &&
        python3 - "$1" "$scratch/alone" <<'END'
import json, math, sys
said, true = (json.load(open(folder + "/all_results.json")) for folder in sys.argv[1:])
for key in ("eval_loss", "eval_accuracy", "eval_samples"):
    assert math.isclose(said[key], true[key], rel_tol=1e-6), (key, said, true)
END
}
# The log's entries of a step say what model they are of: "final", "best", or the one in training.
each_step_once() {
    python3 - "$1/trainer_log.jsonl" <<'END'
import json, sys
entries = [e for e in map(json.loads, open(sys.argv[1])) if "eval_loss" in e]
names = [(e["step"], e.get("model")) for e in entries]
assert len(set(names)) == len(names) and names[-1][1], names
END
}

# With the learning rate up to the end, so that closing the last windows makes a difference.
for engine in adamw zenflow; do
    out=$scratch/$engine
    run=("$train" --config "$steady/$engine.json" --scheduler.type none --lr_scheduler_type constant
        "${small[@]}" --max_steps 7 --eval_strategy steps --eval_steps 7)
    check "$engine: runs" "${run[@]}" --output_dir "$out"
    check "$engine: the results are of the model that is saved" is_of_the_model "$out"
    check "$engine: the log says so" each_step_once "$out"
done

# best_is_left FOLDER: the best of three epochs, which is not the last, is what the run leaves.
best_is_left() {
    python3 - "$1" <<'END'
import json, sys
out = sys.argv[1]
log = [e for e in map(json.loads, open(out + "/trainer_log.jsonl")) if "eval_loss" in e]
losses = {e["step"]: e["eval_loss"] for e in log if "model" not in e}
step = max(losses, key=losses.get)
assert len(losses) == 3 and step < max(losses), losses  # else nothing is shown
results = json.load(open(out + "/all_results.json"))
assert results["best_global_step"] == step and results["global_step"] == max(losses), results
assert results["best_metric"] == results["eval_loss"] == losses[step], (results, losses)
last = log[-1]
assert (last["step"], last["model"], last["eval_loss"]) == (step, "best", losses[step]), last
kept = f"{out}/checkpoint-{step}/model.safetensors"
assert open(kept, "rb").read() == open(out + "/model.safetensors", "rb").read(), step
END
}
best=("${small[@]}" --num_train_epochs 3 --eval_strategy epoch --save_strategy epoch
    --load_best_model_at_end --metric_for_best_model eval_loss --greater_is_better)
zenflow=--zero_optimization.zenflow
for variant in "$steady/zenflow.json" "$steady/zenflow.json $zenflow.offload" \
    "$steady/zenflow.json $zenflow.accumulate host" "$steady/zenflow_auto.json"; do
    out=$scratch/best
    rm -rf "$out"
    # shellcheck disable=SC2086
    check "$variant: load_best_model_at_end runs" "$train" --config $variant "${best[@]}" \
        --output_dir "$out"
    check "$variant: the best model is its checkpoint's" best_is_left "$out"
    check "$variant: the results are of it" is_of_the_model "$out"
done
check "two ranks: load_best_model_at_end runs" ranks 2 "$train" --config "$steady/zenflow.json" \
    "${best[@]}" --per_device_train_batch_size 8 --output_dir "$scratch/best-2"
check "two ranks: the best model is its checkpoint's" best_is_left "$scratch/best-2"
check "two ranks: the results are of it" is_of_the_model "$scratch/best-2"

if [ -x "$build/zf-train-emulated" ]; then # not with ThreadSanitizer
    check "emulated: load_best_model_at_end runs" "$build/zf-train-emulated" --device cuda --config \
        "$steady/zenflow.json" "${best[@]}" --max_train_samples 32 --max_eval_samples 16 \
        --train_batch_size 8 --per_device_train_batch_size 8 --seed 4 --output_dir "$scratch/best-emulated"
    check "emulated: the best model is its checkpoint's" best_is_left "$scratch/best-emulated"
fi

# The best by one measure is not the best by another.
cp -r "$scratch/best-2" "$scratch/other"
for other in "--metric_for_best_model accuracy" --no_greater_is_better; do
    # shellcheck disable=SC2086
    check "another measure of the best is refused: $other" not "$train" --config "$steady/zenflow.json" \
        "${best[@]}" --output_dir "$scratch/other" $other
done

# Results go beside the model that they are of.
check "another model's folder is refused" not "$train" --do_eval --task_name SST-2 "${tiny[@]:4}" \
    --model_name_or_path "$scratch/best" --output_dir "$scratch/adamw"

# A step that is not saved cannot be the best.
check "evaluated more often than saved" "$train" --config "$steady/zenflow.json" "${best[@]}" \
    --max_steps 8 --eval_strategy steps --save_strategy steps --eval_steps 1 --save_steps 4 \
    --output_dir "$scratch/rare"
check "the best is one that is saved" test -f "$scratch/rare/model.safetensors"
check "a metric of MNLI's mismatched split" "$train" --config configs/adamw.json "${best[@]}" \
    --task_name mnli --data_dir tests/fixtures/glue --num_train_epochs 1 --train_batch_size 4 \
    --per_device_train_batch_size 4 --metric_for_best_model accuracy_mm --output_dir "$scratch/mm"
check "perplexity is best where it is least" python3 - "$("$train" --config configs/lm.json \
    --load_best_model_at_end --eval_strategy epoch --save_strategy epoch --print_config \
    --metric_for_best_model perplexity | grep greater_is_better)" <<'END'
import sys
assert "= false" in sys.argv[1], sys.argv
END

# --overwrite_output_dir.
out=$scratch/over
saving=("$train" --config "$steady/zenflow.json" "${small[@]}" --save_strategy steps --output_dir "$out")
checkpoints() {
    (cd "$out" && echo checkpoint-*)
}
check "a first run" "${saving[@]}" --save_steps 2 --max_steps 8
mkdir "$out/tmp-checkpoint-9" "$out/checkpoint-mine" "$out/notes"
touch "$out/checkpoint-10" # a file is none of ours
cp -r "$out/checkpoint-4" "$scratch/elsewhere"
all="checkpoint-10 checkpoint-2 checkpoint-4 checkpoint-6 checkpoint-8 checkpoint-mine"
files() { # what the run before left
    md5sum "$out"/*.json* "$out"/model.safetensors
}
before=$(files)
for why in "--resume_from_checkpoint $scratch/nowhere" "--data_dir $scratch/nowhere" \
    "--resume_from_checkpoint $scratch/elsewhere --seed 43" "--model_name_or_path $out/checkpoint-4" \
    "--csv_monitor.enabled --csv_monitor.output_path $out/all_results.json"; do
    # shellcheck disable=SC2086
    check "refused: $why" not "${saving[@]}" --max_steps 8 --overwrite_output_dir $why
    check "what was there stays" test "$(checkpoints)" = "$all" -a "$(files)" = "$before"
done
check "goes on inside" "${saving[@]}" --save_steps 5 --max_steps 5 --overwrite_output_dir \
    --resume_from_checkpoint "$out/../over/checkpoint-4/"
check "its past stays, another future goes" test "$(checkpoints)" = \
    "checkpoint-10 checkpoint-2 checkpoint-4 checkpoint-5 checkpoint-mine"
check "starts anew" "${saving[@]}" --save_steps 3 --max_steps 4 --seed 43 --save_total_limit 1 \
    --overwrite_output_dir
check "old checkpoints are gone, what is not ours is not" test "$(checkpoints)" = \
    "checkpoint-10 checkpoint-3 checkpoint-mine"
check "nor is it beside them" test -d "$out/notes" -a ! -e "$out/tmp-checkpoint-9"
check "latest is the new run's" "${saving[@]}" --max_steps 4 --seed 43 --overwrite_output_dir \
    --resume_from_checkpoint latest
check "a checkpoint from elsewhere" "${saving[@]}" --save_steps 5 --max_steps 5 \
    --overwrite_output_dir --resume_from_checkpoint "$scratch/elsewhere"
check "old checkpoints are gone then too" test "$(checkpoints)" = \
    "checkpoint-10 checkpoint-5 checkpoint-mine"

# Divergence. A good model stays as it is.
good=$scratch/good
check "a good model" "$train" --config configs/adamw.json "${small[@]}" --max_steps 2 \
    --output_dir "$good"
before=$(cd "$good" && sha256sum model.safetensors all_results.json)
no_results() { # no_results WHAT WORDS COMMAND...
    fails "$@"
    check "$1: no table" not grep -q '^eval_accuracy' "$scratch/stdout"
}
for engine in adamw zenflow; do
    diverging=("$train" --config "$steady/$engine.json" "${small[@]}" --max_steps 6
        --learning_rate 1e30 --overwrite_output_dir --output_dir "$good")
    no_results "$engine diverges" "step 6: .*not finite.*learning_rate" "${diverging[@]}" --do_eval false
    no_results "$engine diverges, evaluated" "step [2-5]: dev .*not finite.*learning_rate" \
        "${diverging[@]}" --eval_strategy steps --eval_steps 1
    no_results "$engine diverges on two ranks" "step 6: .*not finite" ranks 2 "${diverging[@]}" \
        --per_device_train_batch_size 8
    no_results "$engine: weights diverge" "checkpoint-[2-5]/model.safetensors.*not finite" "${diverging[@]}" \
        --learning_rate 3e38 --weight_decay 10 --save_strategy steps --save_steps 1
    check "$engine: the good model is as it was" test "$before" = \
        "$(cd "$good" && sha256sum model.safetensors all_results.json)"
done
check "a run that skips steps" "$train" --config configs/adamw.json "${small[@]}" --max_steps 6 \
    --learning_rate 1e4 --output_dir "$scratch/skips"
cp "$scratch/check.log" "$scratch/printed"
check "skipped steps are in the results" python3 - "$scratch" <<'END'
import json, re, sys
skipped = json.load(open(sys.argv[1] + "/skips/all_results.json"))["skipped_steps"]
printed = open(sys.argv[1] + "/printed").read()
assert 0 < skipped < 6 and skipped == printed.count("the step is skipped"), skipped
assert re.search(rf"\nskipped_steps +{skipped}\n", printed), printed
END
check "none are, too" grep -q '"skipped_steps": 0' "$good/all_results.json"

damage() { # damage FOLDER PARAMETER VALUE: its first element gets the value
    python3 - "$@" <<'END'
import json, struct, sys
with open(sys.argv[1] + "/model.safetensors", "r+b") as file:
    n = struct.unpack("<Q", file.read(8))[0]
    at = json.loads(file.read(n))[sys.argv[2]]["data_offsets"][0]
    file.seek(8 + n + at)
    file.write(struct.pack("<f", float(sys.argv[3])))
END
}
# With logits of 1e25 the loss is finite, and the gradient's norm is not.
cp -r "$good" "$scratch/huge"
damage "$scratch/huge" score.weight 1e25
no_results "every step is skipped" "not finite in any of the 3 steps" "$train" --config \
    configs/adamw.json --task_name SST-2 "${small[@]:4}" --model_name_or_path "$scratch/huge" \
    --max_steps 3 --output_dir "$scratch/unlearned"
check "nothing learned, no model" test ! -e "$scratch/unlearned/model.safetensors"

# A model that is not finite, evaluated.
damage "$good" transformer.ln_f.weight nan
evaluated=("$train" --task_name SST-2 "${tiny[@]:4}" --model_name_or_path "$good" --do_train false)
no_results "a model of NaN" "dev has no results: .*not finite" "${evaluated[@]}"
no_results "a model of NaN on two ranks" "dev has no results: .*not finite" ranks 2 "${evaluated[@]}" \
    --per_device_train_batch_size 8
no_results "a model of NaN predicts" "test has no results: .*not finite" "${evaluated[@]}" --do_eval false \
    --do_predict --output_dir "$scratch/predicted"
check "no predictions are written" test ! -e "$scratch/predicted/SST-2.tsv"
# Tokens that begin and end a text are the tokenizer's: where it puts nothing in front, what ends one begins it.
token_is() { # token_is FOLDER KEY ID
    python3 -c 'import json, sys; c = json.load(open(sys.argv[1] + "/config.json")); assert c[sys.argv[2]] == int(sys.argv[3]), c' "$@"
}
check "a Llama with Llama's tokenizer runs" "$train" --task_name SST-2 "${small[@]}" --config_name llama \
    --tokenizer_name tests/fixtures/tokenizer/shapes/llama2 --max_steps 1 --output_dir "$scratch/tokens"
check "it begins a text with <s>" token_is "$scratch/tokens" bos_token_id 1
check "and ends it with </s>" token_is "$scratch/tokens" eos_token_id 2
end=$(python3 -c 'import json; print(json.load(open("data/sample/tokenizer/vocab.json"))["<|endoftext|>"])')
check "GPT-2's tokenizer begins it with what ends one" token_is "$scratch/adamw" bos_token_id "$end"
finish
