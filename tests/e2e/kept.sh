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

finish
