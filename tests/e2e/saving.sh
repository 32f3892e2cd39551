#!/usr/bin/env bash
# Checkpoints come to the disk beside training, here a slow one: training goes on meanwhile, the next checkpoint
# waits, and a disk that is full, a signal and the run's end find what they would have found. With ZF_LONG=1 more of it.

. tests/e2e/lib/common.sh "$@"
need python3 strace mpirun pgrep
strace -e trace=none true 2>"$scratch/strace" || skip "strace cannot trace here"

# slow SECONDS FILE FAULT COMMAND...: what flushes FILE, or any if it is "", takes so long and has this fault
slow() {
    local options=(-f --seccomp-bpf -o "$scratch/strace" -e trace=fsync) inject=fsync
    [ "$1" = 0 ] || inject+=":delay_enter=$1s"
    [ -z "$2" ] || options+=(-P "$2")
    [ -z "$3" ] || inject+=":error=$3"
    strace "${options[@]}" -e "inject=$inject" "${@:4}"
}
saving=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --max_steps 8 --save_strategy steps)
sum() { # sum FOLDER: its checkpoints and model, by content
    (cd "$1" && find . -path '*checkpoint*' -type f -print0 -o -name model.safetensors -print0 | sort -z | xargs -0 sha256sum)
}
same() { # same FOLDER FOLDER
    diff <(sum "$1") <(sum "$2")
}
log_of() { # log_of FOLDER EXPRESSION: of its entries
    python3 -c 'import json, sys
entries = [json.loads(line) for line in open(sys.argv[1] + "/trainer_log.jsonl")]
at = {e["checkpoint"]: i for i, e in enumerate(entries) if "checkpoint" in e}
assert eval(sys.argv[2].strip()), entries' "$@"
}

# A fifth of a second for each file: the steps behind it are done meanwhile.
check "a run" "${saving[@]}" --save_steps 4 --output_dir "$scratch/whole"
check "a slow disk" slow 0.2 "" "" "${saving[@]}" --save_steps 4 --output_dir "$scratch/slow"
cp "$scratch/check.log" "$scratch/printed"
check "says how long training stopped, and when it was there" grep -q \
    '^checkpoint 4: training stopped for [0-9.]* s; on the disk [1-9][0-9.]* s later' "$scratch/printed"
check "training went on" log_of "$scratch/slow" '
    [e["step"] for e in entries[:at["checkpoint-4"]] if "loss" in e] == [1, 2, 3, 4, 5, 6, 7, 8]'
check "it did not stop for the disk" log_of "$scratch/slow" '
    entries[at["checkpoint-4"]]["save_seconds"] < entries[at["checkpoint-4"]]["disk_seconds"] / 2'
check "the next one waited" grep -q '^checkpoint 8 waits: checkpoint 4 is not on the disk yet' "$scratch/printed"
check "for which training stopped" log_of "$scratch/slow" 'entries[at["checkpoint-8"]]["save_seconds"] > 1'
check "the same bytes" same "$scratch/whole" "$scratch/slow"

# The disk is full when a file is to be flushed.
is_full() { # is_full WHAT WORDS COMMAND...
    fails "$@"
    check "$1: nothing half-written" test -z "$(find "$out" -name '*tmp*')"
}
goes_on() { # goes_on COMMAND...: with room again, to the same model
    check "with room again" "$@" --save_steps 4 --output_dir "$out"
    check "ends as if nothing had been" cmp "$model" "$out/model.safetensors"
}
full="cannot be written: No space left on device"
model=$scratch/whole/model.safetensors
out=$scratch/full
file=$out/tmp-checkpoint-4/model.safetensors
is_full "a file of the second checkpoint" "$file: $full" slow 0 "$file" ENOSPC "${saving[@]}" --save_steps 2 \
    --save_total_limit 1 --output_dir "$out"
check "the first one stays, alone" test "$(cd "$out" && echo *checkpoint*)" = checkpoint-2
check "no model is written" test ! -e "$out/model.safetensors"
goes_on "${saving[@]}"
steps=5
[ "${ZF_LONG:-0}" != 1 ] || steps="5 8"
for step in $steps; do # noticed when all steps are done
    out=$scratch/late-$step
    file=$out/tmp-checkpoint-$step/model.safetensors
    is_full "checkpoint $step, at the end" "the model is written, but $file: $full" slow 2 "$file" ENOSPC "${saving[@]}" \
        --save_steps $step --output_dir "$out"
    check "the model" cmp "$model" "$out/model.safetensors"
done

# On two ranks, one of which has no room.
pair=(mpirun -n 2 --oversubscribe --bind-to none "${saving[@]}" --per_device_train_batch_size 8)
check "two ranks" "${pair[@]}" --save_steps 4 --output_dir "$scratch/pair"
model=$scratch/pair/model.safetensors
out=$scratch/pair-full
file=$out/tmp-checkpoint-4/optimizer-00002-of-00002.safetensors
is_full "the second rank's file" "$file: $full" slow 0 "$file" ENOSPC "${pair[@]}" --save_steps 2 --output_dir "$out"
check "the first one stays" test "$(cd "$out" && echo *checkpoint*)" = checkpoint-2
goes_on "${pair[@]}"

# A signal while one is on its way: both are there at the end.
out=$scratch/stopped
slow 2 "$out/tmp-checkpoint-4/model.safetensors" "" "${saving[@]}" --max_steps 1000000 --save_steps 4 --output_dir "$out" \
    --save_total_limit 9 >"$scratch/log" 2>&1 &
job=$!
for ((i = 0; i < 600; i++)); do
    ! grep -q '"step": 6,' "$out/trainer_log.jsonl" 2>/dev/null || break
    sleep 0.1
done
status=0
kill -TERM "$(pgrep -P "$(pgrep -P "$job" strace)")"
wait "$job" || status=$?
check "a signal: status 75" test "$status" = 75
last=$(sed -n "s|^stopped by SIGTERM; $out/checkpoint-\([0-9]*\) is written.*|\1|p" "$scratch/log")
for step in 4 "${last:-none}"; do
    check "a signal: checkpoint $step is whole" python3 tests/e2e/lib/sign.py check "$out/checkpoint-$step"
done
[ "${ZF_LONG:-0}" = 1 ] || finish

check "two ranks and a slow disk" slow 0.2 "" "" "${pair[@]}" --save_steps 4 --output_dir "$scratch/pair-slow"
check "the same bytes of both" same "$scratch/pair" "$scratch/pair-slow"
check "training went on" log_of "$scratch/pair-slow" '
    [e["step"] for e in entries[:at["checkpoint-4"]] if "loss" in e] == [1, 2, 3, 4, 5, 6, 7, 8]'

model=$scratch/whole/model.safetensors
out=$scratch/folder
is_full "its folder, with the manifest" "$out/tmp-checkpoint-4: $full" slow 0 "$out/tmp-checkpoint-4" ENOSPC "${saving[@]}" \
    --save_steps 2 --output_dir "$out"
check "the first one stays" test "$(cd "$out" && echo *checkpoint*)" = checkpoint-2
goes_on "${saving[@]}"
out=$scratch/lost
file=$out/tmp-checkpoint-5/model.safetensors
is_full "the best one, at the end" "the model is written, but $file: $full" slow 2 "$file" ENOSPC "${saving[@]}" \
    --save_steps 5 --load_best_model_at_end --eval_strategy steps --eval_steps 5 --output_dir "$out"
check "the last step's model instead" cmp "$model" "$out/model.safetensors"

# The best one, and as many as are to stay.
best=(--save_steps 2 --save_total_limit 1 --load_best_model_at_end --eval_strategy steps --eval_steps 2)
check "a run that seeks the best model" "${saving[@]}" "${best[@]}" --output_dir "$scratch/best"
check "on a slow disk" slow 0.05 "" "" "${saving[@]}" "${best[@]}" --output_dir "$scratch/best-slow"
untimed() { # untimed FOLDER: the same, of the files that hold evaluations' times the names alone
    sum "$1" | sed -E '/(trainer_state|manifest)\.json$/s/^[0-9a-f]+//'
}
check "the same bytes there, but for evaluations' times" diff <(untimed "$scratch/best") <(untimed "$scratch/best-slow")
finish
