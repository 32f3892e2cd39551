#!/usr/bin/env bash
# What goes wrong around a run: a full disk, standard output that nobody can write to, files that are too large,
# links, pipes and control characters in the way, memory that is not there. One sentence each, never status 0 with
# something missing; and what there was before stays.

. tests/e2e/lib/common.sh "$@"
need python3 gcc

run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --max_steps 4)

# Standard output.
full() { # full COMMAND...: its standard output is a full disk
    "$@" >/dev/full
}
closed() {
    "$@" >&-
}
fails "a full standard output" "standard output could not be written whole" full "${run[@]}" --output_dir "$scratch/full"
check "the model is there all the same" test -s "$scratch/full/model.safetensors"
fails "a closed standard output" "standard output is closed" closed "${run[@]}" --output_dir "$scratch/closed"
check "nothing was begun" test ! -e "$scratch/closed"
for option in --help --version --print_config; do
    fails "$option to a full disk" "standard output could not be written whole" full "$train" $option
done
fails "zf-bench to a full disk" "standard output could not be written whole" full "$build/zf-bench" adam \
    --parameters 100000 --threads 1 --repeats 1

# output_dir is moved away under a run.
moved() {
    "${run[@]}" --max_steps 600 --logging_steps 1 --output_dir "$scratch/here" &
    while [ ! -s "$scratch/here/trainer_log.jsonl" ]; do sleep 0.01; done
    mv "$scratch/here" "$scratch/there"
    wait $!
}
check "a run whose output_dir goes" moved
cp "$scratch/check.log" "$scratch/printed"
check "makes it anew, and says so" grep -q "here is no longer there: it is made anew" "$scratch/printed"
check "its model is there" test -s "$scratch/here/model.safetensors"

# A timeline and CSV files on a full disk.
fails "a timeline on a full disk" "/dev/full: could not be written whole" "${run[@]}" --trace /dev/full \
    --output_dir "$scratch/timeline"
check "the model is there all the same" test -s "$scratch/timeline/model.safetensors"
mkdir -p "$scratch/csv/name"
ln -s /dev/full "$scratch/csv/name/Train_Samples_lr.csv"
fails "a CSV file on a full disk" "Train_Samples_lr.csv: cannot be written: No space left" "${run[@]}" --csv_monitor.enabled \
    --csv_monitor.output_path "$scratch/csv" --csv_monitor.job_name name --output_dir "$scratch/monitored"
for name in ../away /tmp/away a/../../away ..; do
    expected=2 fails "csv_monitor.job_name $name" "csv_monitor.job_name is .*within csv_monitor.output_path" "${run[@]}" \
        --csv_monitor.enabled --csv_monitor.output_path "$scratch/csv" --csv_monitor.job_name "$name" \
        --output_dir "$scratch/monitored"
done

# A limit on the size of files: of the optimizer's alone, then of the model's too.
limited() { # limited KIB COMMAND...
    (
        ulimit -f "$1"
        "${@:2}"
    )
}
saving=("${run[@]}" --save_strategy steps --save_steps 2 --scheduler.type none --lr_scheduler_type constant)
check "a whole run" "${saving[@]}" --output_dir "$scratch/whole"
fails "too large a checkpoint" "optimizer-.*: cannot be written: File too large" limited 5000 "${saving[@]}" \
    --output_dir "$scratch/limited"
check "nothing half-written" test -z "$(find "$scratch/limited" -name '*tmp*')"

# The disk is full when the last step's checkpoint is written: the model comes first, and the checkpoint before stays.
cp -r "$scratch/whole" "$scratch/last"
rm -rf "$scratch"/last/{checkpoint-4,model.safetensors,all_results.json}
fails "the last checkpoint has no room" "the model is written, but .*optimizer-.*: cannot be written" limited 5000 \
    "${saving[@]}" --save_total_limit 1 --output_dir "$scratch/last"
check "the model" cmp "$scratch/whole/model.safetensors" "$scratch/last/model.safetensors"
check "the checkpoint before it" test -e "$scratch/last/checkpoint-2/manifest.json" -a ! -e "$scratch/last/checkpoint-4"
cp -r "$scratch/whole" "$scratch/none"
rm -rf "$scratch"/none/{model.safetensors,all_results.json}
fails "the model has no room" "model.safetensors: cannot be written" limited 3000 "${saving[@]}" --save_total_limit 1 \
    --output_dir "$scratch/none"
check "both checkpoints stay" test -e "$scratch/none/checkpoint-2/manifest.json" -a -e "$scratch/none/checkpoint-4/manifest.json"
check "with room again" "${saving[@]}" --save_total_limit 1 --output_dir "$scratch/none"
check "the same model" cmp "$scratch/whole/model.safetensors" "$scratch/none/model.safetensors"

# Control characters of data are shown, not sent.
mkdir "$scratch/SST-2"
printf 'sentence\tlabel\ngood\t\033[2J\233\n' | iconv -f latin1 -t utf8 >"$scratch/SST-2/train.tsv"
fails "an escape sequence in a label" 'label is "\\x1b\[2J\\xc2\\x9b"' "${run[@]}" --data_dir "$scratch" --do_eval false \
    --output_dir "$scratch/escaped"
mkfifo "$scratch/pipe"
for key in train_file validation_file tokenizer_name; do
    file=$scratch/pipe
    if [ $key = tokenizer_name ]; then
        cp -r data/sample/tokenizer "$scratch/tokenizer"
        rm "$scratch/tokenizer/vocab.json"
        mkfifo "$scratch/tokenizer/vocab.json"
        file=$scratch/tokenizer
    fi
    fails "$key: a pipe that nobody writes to" "not a regular file" timeout 60 "${run[@]}" --$key "$file" \
        --output_dir "$scratch/piped"
done
# Files that are written as the run goes on: nobody is waited for.
mkdir -p "$scratch/piped/csv/name"
mkfifo "$scratch/piped/trainer_log.jsonl" "$scratch/piped/csv/name/Train_Samples_lr.csv" "$scratch/piped/pipe"
fails "a log that is a pipe" "trainer_log.jsonl: cannot be written: a pipe that nobody reads" timeout 60 "${run[@]}" \
    --overwrite_output_dir --output_dir "$scratch/piped"
fails "a timeline that is a pipe" "pipe: cannot be written: a pipe that nobody reads" timeout 60 "${run[@]}" \
    --trace "$scratch/piped/pipe" --output_dir "$scratch/new"
check "a timeline that is a pipe: nothing was begun" test ! -e "$scratch/new"
fails "a CSV file that is a pipe" "Train_Samples_lr.csv: cannot be written: a pipe that nobody reads" timeout 60 "${run[@]}" \
    --csv_monitor.enabled --csv_monitor.output_path "$scratch/piped/csv" --csv_monitor.job_name name --output_dir "$scratch/new"
check "a timeline for who reads it" timeout 60 "${run[@]}" --overwrite_output_dir --output_dir "$scratch/new" \
    --trace >(cat >"$scratch/read.json")
for ((i = 0; i < 100; i++)); do
    [ "$(tail -n 1 "$scratch/read.json" 2>/dev/null)" != ']' ] || break
    sleep 0.1
done
check "it is whole" python3 -m json.tool "$scratch/read.json" /dev/null

# Calls for memory that find none, at many places: the sentence, or the same model.
preload=$scratch/out_of_memory.so
check "a library that has no memory" gcc -O1 -shared -fPIC -o "$preload" tests/e2e/lib/out_of_memory.c -ldl
if [ ! -s "$preload" ] || nm -D "$train" | grep -q __asan_init; then
    echo "skipped: memory that is not there: this build's memory is the sanitizer's"
    finish
fi

# A limit on memory, from what programs do not start with to what they need: a sentence of ours, or all is done.
within() { # within KIB COMMAND...
    (
        ulimit -c 0
        ulimit -v "$1"
        timeout 60 "${@:2}"
    )
}
limits() { # limits FIRST STEP LAST COMMAND...
    local limit status done=0 refused=0 wrong=0 last=
    for ((limit = $1; limit <= $3; limit += $2)); do
        status=0
        rm -rf "$scratch/limited"
        within $limit "${@:4}" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
        if [ $status = 0 ]; then
            done=$((done + 1))
        elif [ $status = 1 ] && grep -Eq '^zf-(train|run): ' "$scratch/stderr"; then
            refused=$((refused + 1))
        elif [ $status != 127 ] || ! grep -q 'error while loading shared libraries' "$scratch/stderr"; then
            wrong=$((wrong + 1)) last="$limit KiB: status $status, $(tail -n 1 "$scratch/stderr")"
        fi
    done
    echo "$done runs had enough, $refused did not"
    check "a limit on memory, ${*:4:1}: $last" test $wrong = 0
    check "a limit on memory, ${*:4:1}: tells where it is too low, and where not" test $refused -gt 3 -a $done -gt 0
}
step=6000
[ "${ZF_LONG:-}" != 1 ] || step=1000
export OMP_NUM_THREADS=2
limits 60000 $step 260000 "${run[@]}" --device cpu --max_steps 1 --output_dir "$scratch/limited"
limits 60000 $step 200000 "$build/zf-run" --device cpu "$scratch/whole" "a fine film"
cat >"$scratch/rank.sh" <<'END'
ulimit -c 0
ulimit -v "$ZF_LIMIT"
exec "$@"
END
if command -v mpirun >/dev/null; then # whose ranks are limited, not itself
    within() {
        ZF_LIMIT=$1 timeout 60 mpirun -n 2 --oversubscribe --bind-to none bash "$scratch/rank.sh" "${@:2}"
    }
    limits 66000 $((4 * step)) 330000 "${run[@]}" --per_device_train_batch_size 8 --device cpu --max_steps 1 \
        --output_dir "$scratch/limited"
fi
export OMP_NUM_THREADS=1

check "how many there are" env LD_PRELOAD="$preload" ZF_FAIL_AT=0 ZF_COUNT_FILE="$scratch/count" "${run[@]}" \
    --device cpu --max_steps 1 --output_dir "$scratch/memory"
count=$(cat "$scratch/count")
samples=25
[ "${ZF_LONG:-}" != 1 ] || samples=410
echo "$count calls for memory; $samples of them fail"
check "all of them are many" test "$count" -gt 2000
wrong=0 last=
for ((i = 0; i < samples; i++)); do
    # Half of them at the beginning, where files are read.
    at=$((i % 2 ? 1 + i * count / samples : 1 + i * 2000 / samples)) status=0
    rm -rf "$scratch/less"
    LD_PRELOAD="$preload" ZF_FAIL_AT=$at timeout 60 "${run[@]}" --device cpu --max_steps 1 --output_dir "$scratch/less" \
        >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    if [ $status = 0 ] && cmp -s "$scratch/memory/model.safetensors" "$scratch/less/model.safetensors"; then
        continue
    elif [ $status = 1 ] && [ "$(grep -c '^zf-train: ' "$scratch/stderr")" = 1 ]; then
        continue
    fi
    wrong=$((wrong + 1)) last="call $at: status $status, $(tail -n 1 "$scratch/stderr")"
done
check "$samples calls that find no memory: $last" test $wrong = 0
finish
