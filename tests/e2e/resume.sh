#!/usr/bin/env bash
# Checkpoints: a run that goes on from one ends as if it had never stopped; what is damaged or
# belongs to another run is refused; save_total_limit and load_best_model_at_end.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun
tiny+=(--device cpu) # where other ranks give the same losses to fp32's rounding; places.sh resumes on a GPU, if there is one

short=(--max_steps 8 --eval_strategy steps --eval_steps 4)
saving=("${short[@]}" --save_strategy steps --save_steps 3)

same_results() { # same_results FOLDER FOLDER: but for how long it took
    python3 - "$@" <<'END'
import json, sys
a, b = ({k: v for k, v in json.load(open(folder + "/all_results.json")).items()
         if "runtime" not in k and "per_second" not in k} for folder in sys.argv[1:])
assert a == b and {"eval_loss", "train_loss"} <= set(a), (a, b)
END
}

for engine in adamw zenflow; do
    whole=$scratch/$engine-whole stopped=$scratch/$engine-stopped first=$scratch/$engine-first
    run=("$train" --config "$steady/$engine.json" "${tiny[@]}")
    check "$engine: a run without checkpoints" "${run[@]}" "${short[@]}" --output_dir "$whole"
    check "$engine: a run with checkpoints" "${run[@]}" "${saving[@]}" --output_dir "$stopped"
    check "$engine: saving changes nothing" cmp "$whole/model.safetensors" \
        "$stopped/model.safetensors"
    cp -r "$stopped/checkpoint-3" "$first"

    # As after a crash between steps 3 and 6: the log is ahead of the last checkpoint.
    rm -rf "$stopped"/{checkpoint-6,model.safetensors,all_results.json}
    check "$engine: goes on from the last checkpoint in output_dir" "${run[@]}" "${saving[@]}" \
        --output_dir "$stopped"
    check "$engine: gives the same model" cmp "$whole/model.safetensors" \
        "$stopped/model.safetensors"
    check "$engine: gives the same log, each step once" compare "$whole/trainer_log.jsonl" \
        "$stopped/trainer_log.jsonl" 0

    check "$engine: goes on in another folder" "${run[@]}" "${short[@]}" --output_dir \
        "$scratch/$engine-other" --resume_from_checkpoint "$first"
    check "$engine: gives the same model there" cmp "$whole/model.safetensors" \
        "$scratch/$engine-other/model.safetensors"
    check "$engine: logs the same losses there" compare "$whole/trainer_log.jsonl" \
        "$scratch/$engine-other/trainer_log.jsonl" 0 4

    # At the last step nothing is left to do but what follows training.
    last=$scratch/$engine-last
    run+=(--scheduler.type none --lr_scheduler_type constant)
    check "$engine: a run that saves at its end" "${run[@]}" "${short[@]}" --save_strategy steps \
        --save_steps 4 --output_dir "$last"
    cp -r "$last" "$scratch/$engine-once"
    check "$engine: the same command again" "${run[@]}" "${short[@]}" --save_strategy steps \
        --save_steps 4 --output_dir "$last"
    check "$engine: goes on from the last step" "${run[@]}" "${short[@]}" --output_dir \
        "$scratch/$engine-8" --resume_from_checkpoint "$last/checkpoint-8"
    for again in "$last" "$scratch/$engine-8"; do
        check "$engine: gives the same model again" cmp "$scratch/$engine-once/model.safetensors" \
            "$again/model.safetensors"
        check "$engine: gives the same results again" same_results "$scratch/$engine-once" "$again"
    done
    check "$engine: gives the same log again" compare "$scratch/$engine-once/trainer_log.jsonl" \
        "$last/trainer_log.jsonl" 0
    run=("$train" --config "$steady/$engine.json" "${tiny[@]}")

    check "$engine: goes on with two ranks" ranks 2 "${run[@]}" "${short[@]}" \
        --per_device_train_batch_size 8 --output_dir "$scratch/$engine-2" \
        --resume_from_checkpoint "$first"
    check "$engine: two ranks go on alike" compare "$whole/trainer_log.jsonl" \
        "$scratch/$engine-2/trainer_log.jsonl" 2e-5 4
done

# Two ranks' checkpoint, on one rank; and checkpoint-3 by its step, at the end of an epoch.
check "two ranks save" ranks 2 "$train" --config "$steady/zenflow.json" "${tiny[@]}" "${saving[@]}" \
    --per_device_train_batch_size 8 --output_dir "$scratch/pair"
check "one rank goes on from two ranks' checkpoint" "$train" --config "$steady/zenflow.json" \
    "${tiny[@]}" "${short[@]}" --output_dir "$scratch/single" \
    --resume_from_checkpoint "$scratch/pair/checkpoint-3"
check "one rank goes on alike" compare "$scratch/pair/trainer_log.jsonl" \
    "$scratch/single/trainer_log.jsonl" 2e-5 4

refused() { # refused WHAT WORDS FOLDER OPTION...
    rm -rf "$scratch/no"
    fails "$1" "$2" "$train" --config "$steady/zenflow.json" "${tiny[@]}" "${short[@]}" --output_dir "$scratch/no" \
        --resume_from_checkpoint "${@:3}"
    check "$1: no model is written" test ! -e "$scratch/no/model.safetensors"
}
good=$scratch/zenflow-first bad=$scratch/bad
optimizer=optimizer-00001-of-00001.safetensors
damage() { # damage FILE COMMAND...: a copy of the checkpoint in which COMMAND makes FILE, and checksums are right
    local file=$1
    shift
    rm -rf "$bad"
    cp -r "$good" "$bad"
    "$@" <"$good/$file" >"$bad/$file"
    python3 tests/e2e/lib/sign.py sign "$bad"
}
refused "no such checkpoint" "nowhere is not a folder" "$scratch/nowhere"
refused "another engine's checkpoint" "so it could not go on exactly" "$scratch/adamw-first"
refused "another seed" "manifest.json:[0-9]*: .*seed 42, but this run has 43" "$good" --seed 43
refused "another batch size" "train_batch_size 16" "$good" --train_batch_size 8 \
    --per_device_train_batch_size 8
refused "another topk_ratio" "so it could not go on exactly" "$good" \
    --zero_optimization.zenflow.topk_ratio 0.3
refused "another rule of deferred updates" "full_warm_up_rounds 0, but this run has .*all_steps" "$good" \
    --zero_optimization.zenflow.deferred_lr_scale 1 \
    --zero_optimization.zenflow.deferred_update all_steps
damage $optimizer head -c 5000
refused "a cut optimizer file" "$optimizer" "$bad"
damage $optimizer head -c -4
refused "an optimizer file without its last number" "$optimizer" "$bad"
rm "$bad/$optimizer"
refused "no optimizer file" "optimizer-00001-of" "$bad"
damage model.safetensors head -c 100000
refused "a cut model file" "model.safetensors" "$bad"
damage trainer_state.json head -c 40
refused "a cut state" "trainer_state.json" "$bad"
damage trainer_state.json sed 's/"global_step": 3/"global_step": "three"/'
refused "a garbled state" "trainer_state.json:[0-9]*: global_step" "$bad"
damage $optimizer cat "$scratch/adamw-first/$optimizer"
refused "another checkpoint's optimizer file" "$optimizer" "$bad"

damage $optimizer env LC_ALL=C sed '1s/"layout"/"yaloot"/'
refused "a checkpoint from before layouts had numbers" "layout 1, but this program reads layout 4" "$bad"

limited=$scratch/limited
check "save_total_limit runs" "$train" --config configs/adamw.json "${tiny[@]}" --max_steps 8 \
    --save_strategy steps --save_steps 2 --save_total_limit 2 --output_dir "$limited"
check "the last two are kept" test "$(cd "$limited" && echo checkpoint-*)" = \
    "checkpoint-6 checkpoint-8"
check "nothing half-written is left" test -z "$(find "$limited" -name 'tmp-*' -o -name '*.tmp*')"

# By the greatest loss, so that the best model is not the last.
best=$scratch/best
check "load_best_model_at_end runs" "$train" --config configs/adamw.json "${tiny[@]}" \
    --max_steps 8 --save_strategy steps --save_steps 2 --eval_strategy steps --eval_steps 2 \
    --save_total_limit 1 --greater_is_better --load_best_model_at_end --output_dir "$best"
check "the best model is the result" python3 - "$best" <<'END'
import glob, json, sys
out = sys.argv[1]
log = [json.loads(line) for line in open(out + "/trainer_log.jsonl")]
results = json.load(open(out + "/all_results.json"))
evaluations = {e["step"]: e["eval_loss"] for e in log if "eval_loss" in e and "model" not in e}
step = max(evaluations, key=evaluations.get)
assert step < 8, (step, evaluations)  # else nothing is shown
assert results["eval_loss"] == evaluations[step], (results, evaluations)
kept = f"{out}/checkpoint-{step}/model.safetensors"
assert open(kept, "rb").read() == open(out + "/model.safetensors", "rb").read()
assert len(glob.glob(out + "/checkpoint-*")) <= 2
END
finish
