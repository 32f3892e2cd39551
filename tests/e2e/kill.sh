#!/usr/bin/env bash
# kill -9, after which the command run again leaves, to the bit, what it would have left: at every system call that
# changes a file, by whichever thread, of checkpoints and of a run's end, over folders that are there and over none;
# and at random moments, of the program, of one of several ranks, of mpirun.

. tests/e2e/lib/common.sh "$@"
need python3 gcc mpirun pgrep
check "a program that kills at a call" gcc -O1 -o "$scratch/kill_at" tests/e2e/lib/kill_at.c
status=0
"$scratch/kill_at" 0 "$scratch" "$scratch/calls" true || status=$?
[ "$status" != 77 ] || skip "nothing can be traced here"

calls=5 seed=0 moments=2 sizes="1 2"
if [ "${ZF_LONG:-}" = 1 ]; then
    calls=0 moments=67 sizes="1 2 4"
fi
killed=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --max_train_samples 32 --max_steps 3 --save_strategy steps
    --save_steps 1 --save_total_limit 1 --eval_strategy steps --eval_steps 1 --load_best_model_at_end)
kill_at_calls() { # kill_at_calls START COMMAND...
    rm -rf "$scratch/work"
    mkdir "$scratch/work"
    python3 tests/e2e/lib/kill_at_calls.py "$scratch/kill_at" "$calls" "$seed" "$scratch/work" "$@"
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

# Evaluation and prediction alone, killed as they write their results, whose half a next run removes; and asked to
# stop there, which leaves whole files or none and, behind the last of them, is too late.
judged=("$train" --do_eval --do_predict --model_name_or_path "$scratch/there" --task_name sst2 --data_dir data/sample
    --max_seq_length 32 --max_eval_samples 8 --max_predict_samples 8)
at_file() { # at_file SIGNAL FILE OPTION...: its status in $status, when FILE's temporary takes its name; into $scratch/judged
    local number
    rm -rf "$scratch/judged"
    "$scratch/kill_at" 0 "$scratch/judged" "$scratch/calls" "${judged[@]}" --output_dir "$scratch/judged" >"$scratch/log" 2>&1
    number=$(grep -E "rename .*/$2\.[0-9]+\.tmp" "$scratch/calls" | cut -d ' ' -f 1)
    rm -rf "$scratch/judged"
    status=0
    ZF_KILL_SIGNAL=$1 "$scratch/kill_at" "$number" "$scratch/judged" "$scratch/calls" "${judged[@]}" \
        --output_dir "$scratch/judged" >"$scratch/log" 2>&1 || status=$?
}
no_temporaries() {
    test -z "$(find "$scratch/judged" -name '*.tmp')"
}
at_file 9 all_results.json
check "evaluation alone, killed: a half is left" not no_temporaries
check "evaluation alone, killed: again" "${judged[@]}" --output_dir "$scratch/judged"
check "evaluation alone, killed: no half is left" no_temporaries
for file in all_results.json eval_results.json predict_results_sst2.txt SST-2.tsv; do
    at_file 15 $file
    check "asked to stop at $file: no half is left" no_temporaries
    check "asked to stop at $file: it is there" test -s "$scratch/judged/$file"
    case $file in
    *.json) check "asked to stop at $file: status" test "$status" = 75 ;;
    *) check "asked to stop at $file: all is there" test "$status" = 0 -a -s "$scratch/judged/SST-2.tsv" ;;
    esac
done

# At random moments, until there have been enough of them; what has come to its end begins anew.
job=""
trap '[ -z "$job" ] || kill -9 "$job" 2>/dev/null || true; rm -rf "$scratch"' EXIT
RANDOM=${ZF_KILL_SEED:=$([ "${ZF_LONG:-0}" = 1 ] && echo $$ || echo 1)}
echo "ZF_KILL_SEED=$ZF_KILL_SEED"
launch() { # launch RANKS FOLDER: in the background, as $job
    local launcher=()
    [ "$1" = 1 ] || launcher=(mpirun -n "$1" --oversubscribe --bind-to none)
    "${launcher[@]}" "$train" --config "$steady/zenflow.json" "${tiny[@]}" --per_device_train_batch_size $((16 / $1)) \
        --max_steps 40 --save_strategy steps --save_steps 2 --save_total_limit 2 --resume_from_checkpoint latest \
        --output_dir "$2" >"$scratch/log" 2>&1 &
    job=$!
}
same() { # same FOLDER FOLDER: model and checkpoints
    (cd "$1" && find . -name '*.safetensors' -o -name '*.json' -path '*checkpoint*' | sort) >"$scratch/names"
    diff "$scratch/names" <(cd "$2" && find . -name '*.safetensors' -o -name '*.json' -path '*checkpoint*' | sort) &&
        while read -r name; do cmp "$1/$name" "$2/$name" || return 1; done <"$scratch/names"
}
ended() { # ended: of itself, as it would have
    local status=0
    wait "$job" || status=$?
    job=""
    [ $status = 0 ] && same "$scratch/undisturbed" "$scratch/random" && return
    echo "status $status:"
    tail -n 3 "$scratch/log"
    return 1
}
milliseconds_since() { # milliseconds_since MICROSECONDS: until the log's last word, which a run has at its end
    local at
    at=$(stat -c %.6Y "$scratch/log")
    echo $(((${at/./} - $1) / 1000))
}
random_kills() { # random_kills RANKS MOMENTS
    local n=$1 left=$2 milliseconds began at pids victim faults=0
    rm -rf "$scratch/undisturbed" "$scratch/random"
    began=${EPOCHREALTIME/./}
    launch "$n" "$scratch/undisturbed"
    wait "$job"
    milliseconds=$(milliseconds_since "$began")
    while [ "$left" -gt 0 ]; do
        began=${EPOCHREALTIME/./}
        launch "$n" "$scratch/random"
        at=$((RANDOM % milliseconds))
        sleep "$(printf '%d.%03d' $((at / 1000)) $((at % 1000)))"
        mapfile -t pids < <(pgrep -P "$job" || true; echo "$job")
        victim=${pids[RANDOM % ${#pids[@]}]}
        if kill -9 "$victim" 2>/dev/null; then
            wait "$job" 2>/dev/null || true
            left=$((left - 1))
            are_gone "${pids[@]}" || are_gone "${pids[@]}" || { echo "ranks that stay" && faults=$((faults + 1)); }
        else
            ended || faults=$((faults + 1))
            milliseconds=$(milliseconds_since "$began") # others share the machine
            rm -rf "$scratch/random"
        fi
    done
    launch "$n" "$scratch/random"
    ended && [ $faults = 0 ]
}
for n in $sizes; do
    check "$moments random moments on $n rank(s)" random_kills $n $moments
    grep -v '^ok' "$scratch/check.log" | tail -n 5 || true
done
finish
