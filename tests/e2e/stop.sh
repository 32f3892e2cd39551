#!/usr/bin/env bash
# A run that is asked to stop, by a signal or by max_runtime, saves what it has done and exits with status 75;
# the same command goes on from there, as often as it takes, and ends in the uninterrupted run's bits. With
# ZF_LONG=1 fifty signals at random moments.

. tests/e2e/lib/common.sh "$@"
need mpirun pgrep python3

job=""
trap 'if [ -n "$job" ]; then kill -9 "$job" 2>/dev/null || true; fi; rm -rf "$scratch"' EXIT
RANDOM=${ZF_STOP_SEED:=$([ "${ZF_LONG:-0}" = 1 ] && echo $$ || echo 1)}
echo "ZF_STOP_SEED=$ZF_STOP_SEED"

options=("${tiny[@]}" --max_steps 60 --resume_from_checkpoint latest --save_strategy no)
# A script starts in the background with SIGINT ignored, which zf-train leaves so.
started=(env --default-signal=INT,HUP)
launch() { # launch RANKS FOLDER OPTION...: in the background, as $job
    local n=$1 out=$2 launcher=()
    shift 2
    [ "$n" = 1 ] || launcher=(mpirun -n "$n" --oversubscribe --bind-to none)
    "${launcher[@]}" "${started[@]}" "$train" "${options[@]}" --per_device_train_batch_size $((16 / n)) --output_dir "$out" "$@" \
        >"$scratch/log" 2>&1 &
    job=$!
}
has_step() { # has_step FOLDER STEP
    grep -q "\"step\": $2," "$1/trainer_log.jsonl" 2>/dev/null
}
await_step() { # await_step FOLDER STEP: or the end of the job
    while ! has_step "$1" "$2" && kill -0 "$job" 2>/dev/null; do sleep 0.01; done
}
pid_of() { # pid_of launcher|rank: a rank where there are several, else the program
    local ranks=()
    mapfile -t ranks < <(pgrep -P "$job" zf-train || true)
    if [ "$1" = rank ] && [ ${#ranks[@]} -gt 0 ]; then
        echo "${ranks[RANDOM % ${#ranks[@]}]}"
    else
        echo "$job"
    fi
}
ends=()
end_of() { # end_of SIGNAL PID: sends it and waits for the job, whose status is then in $status
    local began=$EPOCHREALTIME
    status=0
    kill -"$1" "$2" 2>/dev/null || true
    wait "$job" || status=$?
    job=""
    ends+=($(((${EPOCHREALTIME/./} - ${began/./}) / 1000)))
}
same() { # same FOLDER FOLDER: the model, each step once, and the final results but for times
    cmp "$1/model.safetensors" "$2/model.safetensors" && compare "$1/trainer_log.jsonl" "$2/trainer_log.jsonl" 0 &&
        diff <(grep -v -e runtime -e per_second "$1/all_results.json") \
            <(grep -v -e runtime -e per_second "$2/all_results.json")
}

signals=0
# interrupted NAME RANKS WHO SIGNALS OPTION...: stops the run with one signal after another, then lets it end.
interrupted() {
    local name=$1 n=$2 who=$3 list=$4 signal step=0 out
    out=$scratch/out
    shift 4
    rm -rf "$out"
    for signal in $list; do
        launch "$n" "$out" "$@"
        step=$((step + 1 + RANDOM % 12))
        await_step "$out" $step
        sleep "0.0$((RANDOM % 10))"
        end_of "$signal" "$(pid_of "$who")"
        signals=$((signals + 1))
        [ "$status" != 0 ] || break
        check "$name: SIG$signal: status 75" test "$status" = 75
        check "$name: SIG$signal: says what is saved, and where" grep -q \
            "^stopped by SIG$signal; $out/checkpoint-[0-9]* is written" "$scratch/log"
        step=$(sed -n "s|^stopped by .*$out/checkpoint-\([0-9]*\) is written.*|\1|p" "$scratch/log")
        check "$name: SIG$signal: it is there" test -s "$out/checkpoint-${step:-none}/trainer_state.json"
        check "$name: SIG$signal: no model yet" test ! -e "$out/model.safetensors"
        step=${step:-0}
    done
    launch "$n" "$out" "$@"
    status=0
    wait "$job" || status=$?
    job=""
    check "$name: goes on to its end" test "$status" = 0
    check "$name: ends as if it had never stopped" same "$whole" "$out"
}
# whole_run RANKS OPTION...: what the interrupted ones are compared with, in $whole
whole_run() {
    whole=$scratch/whole
    rm -rf "$whole"
    launch "$1" "$whole" "${@:2}"
    check "an uninterrupted run" wait "$job"
    job=""
}

zenflow=(--config "$steady/zenflow.json")
whole_run 1 "${zenflow[@]}"

# What was ignored when the program began, stays so: a terminal that goes, for nohup, and Ctrl-C, for a script's jobs.
for n in 1 2; do
    started=(env --ignore-signal=INT,HUP)
    rm -rf "$scratch/out"
    launch $n "$scratch/out" "${zenflow[@]}" --max_steps 1000000 --eval_strategy no
    started=(env --default-signal=INT,HUP)
    await_step "$scratch/out" 2
    before=$(wc -l <"$scratch/out/trainer_log.jsonl")
    for signal in HUP INT; do
        kill -$signal "$(pid_of rank)"
    done
    await_step "$scratch/out" $((before + 20))
    check "ignored, $n rank(s): goes on" has_step "$scratch/out" $((before + 20))
    end_of TERM "$(pid_of rank)"
    unset 'ends[-1]'
    check "ignored, $n rank(s): until it is asked by another: status 75" test "$status" = 75
    check "ignored, $n rank(s): by which" grep -q '^stopped by SIGTERM; ' "$scratch/log"
done

interrupted "one rank" 1 rank "TERM INT HUP" "${zenflow[@]}" --save_total_limit 1
check "what was gone on from goes when a newer one has been" test "$(find "$scratch/out" -name 'checkpoint-*' | wc -l)" = 1
whole_run 2 "${zenflow[@]}"
interrupted "two ranks, by mpirun" 2 launcher USR1 "${zenflow[@]}"
interrupted "two ranks, one of them" 2 rank TERM "${zenflow[@]}"
best=(--config configs/adamw.json --load_best_model_at_end --eval_strategy steps --eval_steps 15 --save_strategy steps
    --save_steps 15 --save_total_limit 1)
whole_run 1 "${best[@]}"
interrupted "the best model" 1 rank TERM "${best[@]}"

# Nobody reads what the run prints, as mpirun does not while it ends its job: it stands still, until it is asked to stop.
rm -rf "$scratch/out"
mkfifo "$scratch/unread"
exec 9<>"$scratch/unread"
python3 -c 'import fcntl; fcntl.fcntl(9, fcntl.F_SETPIPE_SZ if hasattr(fcntl, "F_SETPIPE_SZ") else 1031, 4096)'
"$train" "${options[@]}" "${zenflow[@]}" --max_steps 1000000 --output_dir "$scratch/out" >&9 2>"$scratch/log" &
job=$!
await_step "$scratch/out" 1
lines=0 before=-1
while [ "$lines" != "$before" ]; do
    before=$lines
    sleep 0.5
    lines=$(wc -l <"$scratch/out/trainer_log.jsonl")
done
(sleep 60 && kill -9 $job) 2>/dev/null &
watchdog=$!
end_of TERM "$job"
kill $watchdog 2>/dev/null || true
check "nobody reads: status 75" test "$status" = 75
check "nobody reads: it is saved" test -n "$(ls "$scratch"/out/checkpoint-*/manifest.json)"
exec 9>&-

# In an evaluation on the way: it ends, the step is saved, and the evaluation comes again when the run goes on. It
# takes seconds from the step's line on, so that the signal comes in time.
many() { # many FILE: the header, and its rows ten times
    head -n 1 "$1"
    for ((i = 0; i < 10; i++)); do sed 1d "$1"; done
}
mkdir -p "$scratch/data/SST-2"
cp data/sample/SST-2/train.tsv "$scratch/data/SST-2"
many data/sample/SST-2/dev.tsv >"$scratch/data/SST-2/dev.tsv"
many data/sample/SST-2/test.tsv | awk 'BEGIN { OFS = FS = "\t" } NR > 1 { $1 = NR - 2 } { print }' >"$scratch/data/SST-2/test.tsv"
long=("${zenflow[@]}" --data_dir "$scratch/data" --max_steps 9 --max_eval_samples 2400 --max_seq_length 128
    --per_device_eval_batch_size 1 --eval_strategy steps --eval_steps 6)
in_an_evaluation() { # in_an_evaluation WHAT RANKS OPTION...
    local what="in an evaluation on the way$1" n=$2
    shift 2
    whole_run "$n" "${long[@]}" "$@"
    rm -rf "$scratch/out"
    launch "$n" "$scratch/out" "${long[@]}" "$@"
    await_step "$scratch/out" 6
    end_of TERM "$(pid_of rank)"
    check "$what: status 75" test "$status" = 75
    check "$what: the step is saved" grep -q '"unevaluated": true' "$scratch/out/checkpoint-6/trainer_state.json"
    check "$what: no other step is done" not has_step "$scratch/out" 7
    check "$what: that evaluation has no results" not grep -q eval_loss "$scratch/out/trainer_log.jsonl"
    launch "$n" "$scratch/out" "${long[@]}" "$@"
    check "$what: goes on to its end" wait "$job"
    job=""
    check "$what: ends as if it had never stopped" same "$whole" "$scratch/out"
    check "$what: with each evaluation once" test "$(grep -c eval_loss "$scratch/out/trainer_log.jsonl")" = \
        "$(grep -c eval_loss "$whole/trainer_log.jsonl")"
}
in_an_evaluation "" 1
in_an_evaluation ", which finds the best" 1 --save_strategy steps --save_steps 6 --load_best_model_at_end --greater_is_better
check "its checkpoint is as if it had never stopped" cmp <(sed "s|$whole||" "$whole/checkpoint-6/trainer_state.json") \
    <(sed "s|$scratch/out||" "$scratch/out/checkpoint-6/trainer_state.json")
in_an_evaluation " of two ranks" 2

# In predictions, of which there are many, so that the signal comes in time: the model is written, and the same command makes them.
predicting=("${zenflow[@]}" --data_dir "$scratch/data" --max_steps 4 --do_train --do_eval --do_predict --max_predict_samples 3000
    --max_seq_length 128 --per_device_eval_batch_size 1)
in_predictions() { # in_predictions RANKS OPTION...
    rm -rf "$scratch/out"
    launch "$1" "$scratch/out" "${predicting[@]}" "${@:2}"
    while [ ! -e "$scratch/out/all_results.json" ] && kill -0 "$job" 2>/dev/null; do sleep 0.01; done
    end_of TERM "$(pid_of rank)"
}
for n in 1 2; do
    whole_run $n "${predicting[@]}" --save_strategy steps --save_steps 4
    in_predictions $n --save_strategy steps --save_steps 4
    check "in predictions of $n: status 75" test "$status" = 75
    check "in predictions of $n: it is said" grep -q "^stopped by SIGTERM; the model and its results are written" "$scratch/log"
    check "in predictions of $n: the model is there" test -s "$scratch/out/model.safetensors"
    check "in predictions of $n: they are not" test -z "$(find "$scratch/out" -name '*predict*' -o -name '*.tsv')"
    launch "$n" "$scratch/out" "${predicting[@]}" --save_strategy steps --save_steps 4
    check "in predictions of $n: the same command" wait "$job"
    job=""
    check "in predictions of $n: makes them" cmp "$whole/SST-2.tsv" "$scratch/out/SST-2.tsv"
done
in_predictions 1
unset 'ends[-1]'
check "in predictions without a checkpoint: they come to their end" test "$status" = 0 -a -s "$scratch/out/SST-2.tsv"

# What depends on when a signal comes, or on how mpirun ends its job, is tried in the long ring.
by_the_clock()
{
    # SIGTERM and SIGINT make mpirun end its job: it waits for this timeout, here ten seconds, sends its ranks SIGTERM, and
    # waits as long again before it kills them. Meanwhile it reads nothing, however much its ranks print.
    for signal in TERM INT; do
        rm -rf "$scratch/out"
        export OMPI_MCA_odls_base_sigkill_timeout=10
        launch 2 "$scratch/out" "${zenflow[@]}" --max_steps 1000000 --eval_strategy no
        unset OMPI_MCA_odls_base_sigkill_timeout
        await_step "$scratch/out" 1
        end_of $signal "$job"
        unset 'ends[-1]'
        check "SIG$signal to mpirun: status 1, its own" test "$status" = 1
        check "SIG$signal to mpirun: it is there" test -n "$(ls "$scratch"/out/checkpoint-*/trainer_state.json)"
    done

    # In the end, while the model is evaluated, there is nothing left to train.
    slow=("${zenflow[@]}" --max_steps 6 --max_eval_samples 800 --max_seq_length 128 --per_device_eval_batch_size 1)
    whole_run 1 "${slow[@]}"
    rm -rf "$scratch/out"
    launch 1 "$scratch/out" "${slow[@]}"
    await_step "$scratch/out" 6
    end_of TERM "$job"
    check "in the last evaluation: status 75" test "$status" = 75
    check "in the last evaluation: the last step is saved" test -d "$scratch/out/checkpoint-6"
    check "in the last evaluation: no results yet" test ! -e "$scratch/out/all_results.json"
    launch 1 "$scratch/out" "${slow[@]}"
    check "in the last evaluation: goes on to its end" wait "$job"
    check "in the last evaluation: ends as if it had never stopped" same "$whole" "$scratch/out"

    # The best model is loaded over a last step that has no checkpoint: there is nothing to save it from.
    rm -rf "$scratch/out"
    launch 1 "$scratch/out" "${slow[@]}" --load_best_model_at_end --eval_strategy steps --eval_steps 4 --save_strategy best
    while ! grep -q 'loading the best model' "$scratch/log" && kill -0 "$job" 2>/dev/null; do sleep 0.01; done
    check "in the best model's evaluation: it is under way" kill -0 "$job"
    end_of TERM "$job"
    unset 'ends[-1]'
    check "in the best model's evaluation: the run comes to its end" test "$status" = 0
    check "in the best model's evaluation: with its results" test -s "$scratch/out/all_results.json"
    check "in the best model's evaluation: the last step is not saved" test ! -e "$scratch/out/checkpoint-6"
}

if [ "${ZF_LONG:-0}" = 1 ]; then
    by_the_clock
    for n in 1 2; do
        for engine in zenflow zenflow_auto zero_offload; do
            whole_run $n --config "$steady/$engine.json"
            while [ $signals -lt $((6 + 7 * n)) ] || [ $((RANDOM % 3)) != 0 ]; do
                interrupted "$engine on $n" $n rank "TERM USR1 TERM" --config "$steady/$engine.json"
                [ $signals -lt 50 ] || break
            done
        done
    done
    while [ $signals -lt 50 ]; do
        interrupted "$engine on $n" $n rank "TERM INT TERM HUP" --config "$steady/$engine.json"
    done
fi
mapfile -t ends < <(printf '%s\n' "${ends[@]}" | sort -n)
echo "$signals signals; from signal to exit: median ${ends[$((${#ends[@]} / 2))]} ms, longest ${ends[-1]} ms"

# max_runtime counts from the program's start: the first step is done, and no other where it is over by then.
whole_run 1 "${zenflow[@]}"
rm -rf "$scratch/out"
for start in 1 2 3; do
    status=0
    launch 1 "$scratch/out" "${zenflow[@]}" --max_runtime 0.001s
    wait "$job" || status=$?
    check "max_runtime, start $start: status 75" test "$status" = 75
    check "max_runtime, start $start: a step is done, and it says so" grep -q \
        "^stopped by max_runtime; $scratch/out/checkpoint-$start is written" "$scratch/log"
done
launch 1 "$scratch/out" "${zenflow[@]}" --max_runtime 10m
check "max_runtime: with time enough to the end" wait "$job"
check "max_runtime: ends as if it had never stopped" same "$whole" "$scratch/out"
rm -rf "$scratch/out"
began=${EPOCHREALTIME/./} status=0
launch 1 "$scratch/out" "${zenflow[@]}" --max_steps 1000000 --max_runtime 2s
wait "$job" || status=$?
took=$(((${EPOCHREALTIME/./} - began) / 1000))
job=""
check "max_runtime: 2 s are over, after $took ms" test "$status" = 75 -a "$took" -ge 2000 -a "$took" -lt 20000
check "max_runtime: many steps are done" has_step "$scratch/out" 5

# Whoever reads what is printed may go: the run ends, its model is there, and its status tells.
rm -rf "$scratch/out"
job=""
status=0
{ "$train" "${options[@]}" "${zenflow[@]}" --output_dir "$scratch/out" 2>"$scratch/stderr" || echo $? >"$scratch/status"; } | head -n 1 >"$scratch/first"
check "a broken pipe: status 1" test "$(cat "$scratch/status")" = 1
check "a broken pipe: one sentence" grep -q '^zf-train: standard output could not be written whole' "$scratch/stderr"
check "a broken pipe: the run came to its end" cmp "$whole/model.safetensors" "$scratch/out/model.safetensors"

finish
