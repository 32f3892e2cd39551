#!/usr/bin/env bash
# kill -9 at every system call that changes a file, of checkpoints and of a run's end, over folders that are there
# and over none: the command run again leaves, to the bit, what it would have left.

. tests/e2e/lib/common.sh "$@"
need python3 strace
strace -e trace=none true 2>"$scratch/strace" || skip "strace cannot trace here"

calls=5 seed=0
if [ "${ZF_LONG:-}" = 1 ]; then
    calls=0
fi
killed=("$train" --config configs/zenflow.json "${tiny[@]}" --max_train_samples 32 --max_steps 3 --save_strategy steps
    --save_steps 1 --save_total_limit 1 --eval_strategy steps --eval_steps 1 --load_best_model_at_end)
kill_at_calls() { # kill_at_calls START COMMAND...
    rm -rf "$scratch/work"
    mkdir "$scratch/work"
    python3 tests/e2e/lib/kill_at_calls.py $calls $seed "$scratch/work" "$@"
}
mkdir "$scratch/empty"
check "into an empty folder" kill_at_calls "$scratch/empty" "${killed[@]}" --output_dir "$scratch/work/out"
head -n 3 "$scratch/check.log"

# Checkpoints of these names, and a model, are there: those of a run that had got further.
check "a run" "${killed[@]}" --save_total_limit 9 --output_dir "$scratch/there"
check "over what is there" kill_at_calls "$scratch/there" "${killed[@]}" --output_dir "$scratch/work/out" \
    --resume_from_checkpoint "$scratch/there/checkpoint-1"
head -n 3 "$scratch/check.log"
cp -r "$scratch/there" "$scratch/other"
check "over another run's" kill_at_calls "$scratch/other" "${killed[@]}" --output_dir "$scratch/work/out" --seed 43 \
    --overwrite_output_dir
head -n 3 "$scratch/check.log"
finish
