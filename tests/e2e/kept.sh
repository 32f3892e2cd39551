#!/usr/bin/env bash
# Which checkpoints stay and which go, what stands in their way, and what is told where a run goes on from one.

. tests/e2e/lib/common.sh "$@"
need python3

zenflow=("$train" --config "$steady/zenflow.json" "${tiny[@]}")
each_two=(--save_strategy steps --save_steps 2)
checkpoints() { # checkpoints FOLDER
    (cd "$1" && echo *checkpoint*)
}
spoil() { # spoil FILE: another byte in the middle of it
    printf x | dd of="$1" bs=1 seek=100000 conv=notrunc 2>"$scratch/dd"
}
said() { # said WHAT PATTERN: by the last command checked, whose words are in $scratch/printed
    check "$1" grep -Eq -- "$2" "$scratch/printed"
}
run() { # run WHAT COMMAND...
    check "$@"
    cp "$scratch/check.log" "$scratch/printed"
}

base=$scratch/base
check "a run" "${zenflow[@]}" --max_steps 6 "${each_two[@]}" --output_dir "$base"
begin() { # begin: a folder as that run left it before its end
    out=$scratch/out
    rm -rf "$out"
    cp -r "$base" "$out"
    rm "$out/model.safetensors"
}

# What is unfinished does not count for save_total_limit.
begin
cp -r "$out/checkpoint-6" "$out/checkpoint-7"
rm "$out/checkpoint-7/manifest.json"
run "an unfinished checkpoint among them" "${zenflow[@]}" --max_steps 8 "${each_two[@]}" --save_total_limit 2 \
    --resume_from_checkpoint latest --output_dir "$out"
check "the last two whole ones are kept" test "$(checkpoints "$out")" = "checkpoint-6 checkpoint-7 checkpoint-8"
said "only they are there to go on from" '^  checkpoint-6 \+ 1 '

# A name that no checkpoint is given is nobody's.
begin
cp -r "$out/checkpoint-6" "$out/checkpoint-0005"
mkdir "$out/checkpoint-0009"
run "names with zeros before them" "${zenflow[@]}" --max_steps 8 "${each_two[@]}" --save_total_limit 1 \
    --resume_from_checkpoint latest --output_dir "$out"
check "stay as they are" test "$(checkpoints "$out")" = "checkpoint-0005 checkpoint-0009 checkpoint-8"

# What is no folder, and has the name of a checkpoint to come: it is said before the first step, and stays.
begin
rm -r "$out"/checkpoint-{4,6}
cp "$out/trainer_log.jsonl" "$scratch/log"
in_the_way() { # in_the_way WHAT
    fails "$1" "checkpoint-4: it is no folder, but the checkpoint of step 4 would have this name" "${zenflow[@]}" \
        --max_steps 6 "${each_two[@]}" --resume_from_checkpoint latest --output_dir "$out"
    check "$1: nothing has begun" cmp "$scratch/log" "$out/trainer_log.jsonl"
}
echo mine >"$out/checkpoint-4"
in_the_way "a file"
check "a file: it stays" grep -qx mine "$out/checkpoint-4"
ln -sf nowhere "$out/checkpoint-4"
in_the_way "a link that leads nowhere"
check "the link stays" test "$(readlink "$out/checkpoint-4")" = nowhere
ln -s nowhere "$out/checkpoint-1"
ln -sf nowhere "$out/checkpoint-7"
rm "$out/checkpoint-4"
check "links before and behind the run's steps" "${zenflow[@]}" --max_steps 6 "${each_two[@]}" --save_total_limit 1 \
    --resume_from_checkpoint latest --output_dir "$out"
check "they stay" test -L "$out/checkpoint-1" -a -L "$out/checkpoint-7" -a -d "$out/checkpoint-6"

# One that comes on the way.
begin
rm -r "$out"/checkpoint-{4,6}
fails "a file that comes while the run goes on" "checkpoint-300: it is no folder" bash -c '
    "$@" & job=$!
    while ! grep -q "\"step\": 3," "$0/trainer_log.jsonl" && kill -0 $job; do sleep 0.01; done
    echo mine >"$0/checkpoint-300"
    wait $job' "$out" "${zenflow[@]}" --max_steps 3000 --save_strategy steps --save_steps 300 --eval_strategy no \
    --resume_from_checkpoint latest --output_dir "$out"
check "it stays" grep -qx mine "$out/checkpoint-300"
check "what was saved stays" test -s "$out/checkpoint-2/manifest.json"
check "nothing half-written is left" test -z "$(find "$out" -name 'tmp-*')"

# The best model is damaged. It is said before the first step; what comes later costs no training.
best=(--load_best_model_at_end --greater_is_better --eval_strategy steps --scheduler.type none
    --lr_scheduler_type constant --learning_rate 1e-5)
out=$scratch/best
check "a run whose best step is not its last" "${zenflow[@]}" "${best[@]}" "${each_two[@]}" --eval_steps 2 --max_steps 6 \
    --output_dir "$out"
rm "$out/model.safetensors"
on=("${zenflow[@]}" "${best[@]}" "${each_two[@]}" --eval_steps 2 --max_steps 12 --resume_from_checkpoint latest --output_dir "$out")
spoil "$out/checkpoint-2/model.safetensors"
cp "$out/trainer_log.jsonl" "$scratch/log"
fails "the best is damaged" "best model so far is that of step 2, for load_best_model_at_end, but .*checkpoint-2/model.safetensors: it is damaged" "${on[@]}"
check "nothing has begun" cmp "$scratch/log" "$out/trainer_log.jsonl"
mv "$out/checkpoint-2" "$scratch/aside"
fails "the best is not there" "best model so far is that of step 2, .*but .*checkpoint-2 is not there" "${on[@]}"
check "without it the run goes on" "${zenflow[@]}" "${each_two[@]}" --max_steps 12 --resume_from_checkpoint latest --output_dir "$out"
# Steps may be ahead of the disk, so it is the checkpoint that is waited for; as many steps again come behind it.
lost() { # lost WHAT WORDS COMMAND...: which does something to the best checkpoint while the run goes on
    rm -rf "$out"
    fails "$1" "the model is written, but it is the last step's, since of the best one .*checkpoint-500$2" bash -c '
        out=$0 command=$1
        shift
        "$@" & job=$!
        while ! test -e "$out/checkpoint-500" && kill -0 $job; do sleep 0.01; done
        eval "$command"
        wait $job' "$out" "$3" "${zenflow[@]}" "${best[@]}" --greater_is_better false --max_steps 1000 --save_strategy steps --save_steps 500 --eval_steps 500 \
        --output_dir "$out"
    check "$1: the last model is there" test -s "$out/model.safetensors"
    check "$1: so is its checkpoint" test -s "$out/checkpoint-1000/manifest.json"
    check "$1: the log says of which it is" grep -q '"step": 1000, .*"model": "final"' "$out/trainer_log.jsonl"
}
lost "the best is damaged on the way" "/vocab.json: it is damaged" 'echo >>"$out/checkpoint-500/vocab.json"'
lost "the best is removed on the way" " is not there" 'rm -r "$out/checkpoint-500"'

# Training diverges with finite numbers. What was saved before stays, and what comes later is no checkpoint.
begin
rm -r "$out"/checkpoint-6
constant=(--scheduler.type none --lr_scheduler_type constant)
run "parameters explode" "${zenflow[@]}" "${constant[@]}" --max_steps 8 --save_strategy steps --save_steps 1 --save_total_limit 1 \
    --learning_rate 100 --resume_from_checkpoint latest --output_dir "$out"
said "it is said once" 'warning: step 6: the loss is [0-9.e+]*: training diverges .* above 100 no checkpoint is made'
check "not twice" test "$(grep -c 'training diverges' "$scratch/printed")" = 1
check "steps are not skipped" grep -q '"skipped_steps": 0' "$out/all_results.json"
check "the good one stays, and those after it are none" test "$(checkpoints "$out")" = "checkpoint-4 checkpoint-5"
run "from what had exploded already" "${zenflow[@]}" "${constant[@]}" --max_steps 8 --save_strategy steps --save_steps 1 \
    --save_total_limit 1 --resume_from_checkpoint "$out/checkpoint-5" --overwrite_output_dir --output_dir "$out"
check "nothing goes for it" test "$(checkpoints "$out")" = "checkpoint-4 checkpoint-5"
run "a run that goes on from the good one" "${zenflow[@]}" "${constant[@]}" --max_steps 8 --save_strategy steps --save_steps 1 \
    --save_total_limit 1 --resume_from_checkpoint "$out/checkpoint-4" --output_dir "$out"
check "leaves one" test "$(checkpoints "$out")" = checkpoint-8

# Scores may be great, and so may be their squares.
python3 - "$scratch/scores.csv" <<'END'
import sys
with open(sys.argv[1], "w") as file:
    print("sentence,label", *(f"a text of {i} words,{i * 10.5}" for i in range(64)), sep="\n", file=file)
END
scores=("$train" --config configs/adamw.json --config_name gpt --tokenizer_name data/sample/tokenizer --train_file "$scratch/scores.csv"
    --max_seq_length 32 --train_batch_size 16 --per_device_train_batch_size 16 --logging_steps 1 "${constant[@]}" --max_steps 4
    --save_strategy steps --save_steps 1 --save_total_limit 1 --overwrite_output_dir --output_dir "$scratch/scores")
run "great scores" "${scores[@]}"
check "their loss is above 100" python3 - "$scratch/scores/trainer_log.jsonl" <<'END'
import json, sys
assert all(e["loss"] > 10000 for e in map(json.loads, open(sys.argv[1])) if "loss" in e)
END
check "but training does not diverge" test "$(checkpoints "$scratch/scores")" = checkpoint-4
run "answers beyond all scores" "${scores[@]}" --learning_rate 100
said "it does there" 'training diverges'

# What is configured otherwise than where the checkpoint was made, and changes the run's numbers, is told.
told() { # told KEY WAS IS OPTION...
    rm -rf "$scratch/on"
    run "another $1" "${zenflow[@]}" --max_steps 8 --resume_from_checkpoint "$base/checkpoint-4" --output_dir "$scratch/on" "${@:4}"
    said "it is told" "warning: $1 was $2 where the checkpoint was made, and is $3 from here on"
}
zenflow+=(--optimizer.type Adam)
told optimizer.params.adam_w_mode true false --optimizer.params.adam_w_mode false
told scheduler.params.warmup_min_lr 0 0.0001 --scheduler.params.warmup_min_lr 1e-4
told scheduler.params.warmup_num_steps 1 3 --warmup_steps 3 --warmup_ratio 0
told scheduler.params.warmup_type linear log --scheduler.params.warmup_type log
told gradient_accumulation_steps 1 2 --per_device_train_batch_size 8 --gradient_accumulation_steps 2
told per_device_train_batch_size 16 8 --per_device_train_batch_size 8 --gradient_accumulation_steps 2
told zero_optimization.zenflow.select_strategy auto step --zero_optimization.zenflow.select_strategy step \
    --zero_optimization.zenflow.select_interval 8
run "nothing else" "${zenflow[@]}" --max_steps 6 --resume_from_checkpoint "$base/checkpoint-4" --output_dir "$scratch/on"
check "and nothing is told" not grep -q 'from here on' "$scratch/printed"
"$train" --help | sed -n 's/^ *--\([a-z][^ ]*\).*/\1/p' | grep -vxE 'config|print_config|help|version' >"$scratch/keys"
check "every key of the configuration is decided on" python3 - "$base/checkpoint-4/manifest.json" "$scratch/keys" <<'END'
import json, sys
manifest, keys = json.load(open(sys.argv[1])), open(sys.argv[2]).read().split()
lists = {
    "refused": [*manifest["identity"]],
    "told": [*manifest["configuration"]],
    "refused by the optimizer's files": """
        zero_optimization.zenflow.enabled zero_optimization.offload_optimizer.device zero_optimization.zenflow.topk_ratio
        zero_optimization.zenflow.overlap_step zero_optimization.zenflow.stagger zero_optimization.zenflow.apply_lag
        zero_optimization.zenflow.full_warm_up_rounds zero_optimization.zenflow.deferred_update bf16""".split(),
    "the model's, which the checkpoint has": """
        model_name_or_path config_name ignore_mismatched_sizes""".split(),
    "shown by the digest of the training data": """
        tokenizer_name data_dir train_file validation_split_percentage text_column text_pair_column label_column
        do_regression max_seq_length max_train_samples""".split(),
    "told as max_steps, warmup_steps, device or by adam_w_mode": """
        num_train_epochs warmup_ratio use_cpu optimizer.type""".split(),
    "of evaluation and prediction": """
        validation_file test_file max_eval_samples max_predict_samples per_device_eval_batch_size""".split(),
    "what is done, when, and for how long": """
        do_train do_eval do_predict output_dir overwrite_output_dir resume_from_checkpoint max_runtime ddp_timeout plan
        plan_ranks eval_strategy eval_steps eval_delay save_strategy save_steps save_total_limit load_best_model_at_end
        metric_for_best_model greater_is_better early_stopping_patience early_stopping_threshold""".split(),
    "reports": """
        logging_steps logging_strategy logging_first_step disable_tqdm trace html_report report_to logging_dir
        tensorboard.enabled tensorboard.output_path tensorboard.job_name csv_monitor.enabled csv_monitor.output_path
        csv_monitor.job_name""".split(),
    "where things live and how many compute: the same bits": """
        num_threads gradient_checkpointing zero_optimization.stage zero_optimization.offload_optimizer.zero_copy
        zero_optimization.offload_param.device zero_optimization.stage3_prefetch_bucket_size
        zero_optimization.offload_param.buffer_count zero_optimization.zenflow.offload
        zero_optimization.zenflow.pt_reserved_cores_perc zero_optimization.zenflow.accumulate
        zero_optimization.zenflow.device_windows""".split(),
}
decided = sorted(key for names in lists.values() for key in names)
assert len(keys) > 100
assert not set(keys) - set(decided), ("nobody says what becomes of these in a run that goes on", set(keys) - set(decided))
assert len(set(decided)) == len(decided), [key for key in decided if decided.count(key) > 1]
assert not set(decided) - set(keys) - {"train_samples", "train_data"}, set(decided) - set(keys)
END

finish
