#!/usr/bin/env bash
# Ranks that were not started on the same, and two runs in one folder: one sentence that names what differs and
# who, status 1, and nothing is written.

. tests/e2e/lib/common.sh "$@"
need mpirun
export OMPI_MCA_odls_base_sigkill_timeout=0 # mpirun gives ranks that have ended with a fault no second to end

job=""
trap 'if [ -n "$job" ]; then kill -9 "$job" 2>/dev/null || true; fi; rm -rf "$scratch"' EXIT

run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --per_device_train_batch_size 8 --max_steps 2 --output_dir "$scratch/out")
# refused WHAT SENTENCE PROGRAM OPTION...: rank 1 runs the program with these options more, rank 0 without
refused() {
    local what=$1 sentence=$2 status=0
    shift 2
    rm -rf "$scratch/out"
    timeout 60 mpirun --oversubscribe --bind-to none -n 1 "${run[@]}" : -n 1 "$1" "${run[@]:1}" "${@:2}" \
        >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    check "$what: status 1" test "$status" = 1
    check "$what: says '$sentence'" grep -q "^zf-train: ranks were not started on the same: $sentence" "$scratch/stderr"
    check "$what: says so once" test "$(grep -c '^zf-train: ' "$scratch/stderr")" = 1
    check "$what: names the ranks" grep -q 'on rank 0 (.*), but .* on rank 1 (.*)$' "$scratch/stderr"
    check "$what: no model is written" test ! -e "$scratch/out/model.safetensors"
}

refused "another rate" "learning_rate: 0.001 on rank 0 .*, but 0.002 on rank 1" "$train" --learning_rate 2e-3
refused "another length" "num_train_epochs: 3.0 on rank 0 .*, but 4.0 on rank 1" "$train" --num_train_epochs 4
refused "another configuration file" "zero_optimization.zenflow.enabled: true on rank 0 .*, but false" "$train" \
    --config configs/zero_offload.json
refused "something else to do" "what to do: to run on rank 0 .*, but --print_config" "$train" --print_config

cp "$train" "$scratch/zf-train"
echo >>"$scratch/zf-train"
refused "another program" "the program: zf-train [0-9.]* ([0-9a-f]*) on rank 0" "$scratch/zf-train"

# Another copy of the data or the model is fine where it is the same.
cp -r data/sample "$scratch/data"
check "the same data elsewhere" mpirun --oversubscribe --bind-to none -n 1 "${run[@]}" : -n 1 "${run[@]}" \
    --data_dir "$scratch/data" --tokenizer_name "$scratch/data/tokenizer"
mv "$scratch/out" "$scratch/model"
for split in train:"the training data" dev:"the evaluation data"; do
    cp data/sample/SST-2/* "$scratch/data/SST-2/"
    sed -i '4s/.$/7/; 4s/7$/1/; 5s/^[a-z]*/seven/' "$scratch/data/SST-2/${split%%:*}.tsv"
    refused "one word of ${split%%:*}.tsv" "${split#*:}: [0-9]* examples of data/sample with the digest .*, but [0-9]* examples of $scratch/data with" \
        "$train" --data_dir "$scratch/data"
done
cp data/sample/SST-2/* "$scratch/data/SST-2/"
sed -i '6d' "$scratch/data/SST-2/train.tsv"
run+=(--max_train_samples 4000)
refused "one row less" "the training data: 4000 examples of data/sample .*, but 3999 examples of $scratch/data" "$train" \
    --data_dir "$scratch/data"

run=("$train" --config "$steady/zenflow.json" "${tiny[@]:2}" --model_name_or_path "$scratch/model" \
    --per_device_train_batch_size 8 --max_steps 2 --output_dir "$scratch/out")
cp -r "$scratch/model" "$scratch/other"
printf '\1\2' | dd of="$scratch/other/model.safetensors" bs=1 seek=100001 conv=notrunc status=none
refused "one weight" "the model's weights: those of $scratch/model with .*, but those of $scratch/other with" "$train" \
    --model_name_or_path "$scratch/other"
cp "$scratch/model/model.safetensors" "$scratch/other/"
sed -i 's/"resid_pdrop": [0-9.]*/"resid_pdrop": 0.25/' "$scratch/other/config.json"
refused "another config.json" "the model's config.json: that of $scratch/model with .*, but that of $scratch/other" "$train" \
    --model_name_or_path "$scratch/other"

# A checkpoint that one rank alone sees is rank 0's to find: no rank starts anew beside one that goes on.
run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --per_device_train_batch_size 8 --max_steps 4 --save_strategy steps
    --save_steps 2 --output_dir out --resume_from_checkpoint latest)
mkdir "$scratch/here" "$scratch/there"
paths=(--tokenizer_name "$root/data/sample/tokenizer" --data_dir "$root/data/sample" --config "$steady/zenflow.json")
check "a run with checkpoints" mpirun --oversubscribe --bind-to none --wdir "$scratch/here" -n 2 "${run[@]}" "${paths[@]}"
rm -rf "$scratch"/here/out/{checkpoint-4,model.safetensors}
status=0
timeout 60 mpirun --oversubscribe --bind-to none -n 1 --wdir "$scratch/here" "${run[@]}" "${paths[@]}" : \
    -n 1 --wdir "$scratch/there" "${run[@]}" "${paths[@]}" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
check "a folder that one rank does not see: status 1" test "$status" = 1
check "a folder that one rank does not see: says so" grep -q '^zf-train: out: none of its 1 checkpoint(s) is whole: out/checkpoint-2: there is no manifest.json' "$scratch/stderr"

# Two runs in one folder.
run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --max_steps 100000 --output_dir "$scratch/shared")
"${run[@]}" >"$scratch/log" 2>&1 &
job=$!
while ! [ -s "$scratch/shared/trainer_log.jsonl" ] && kill -0 "$job" 2>/dev/null; do sleep 0.05; done
for option in --overwrite_output_dir "--resume_from_checkpoint latest" ""; do
    status=0
    # shellcheck disable=SC2086
    "${run[@]}" $option >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    check "a second run ${option:-as it is}: status 1" test "$status" = 1
    check "a second run ${option:-as it is}: says who has the folder" grep -q \
        "^zf-train: output_dir $scratch/shared is in use: process $job on $(hostname) since 20.* UTC writes into it" "$scratch/stderr"
done
check "the first run goes on" kill -0 "$job"
kill -9 "$job"
wait "$job" || true
job=""
check "after its death nobody has it" "${run[@]}" --max_steps 2 --resume_from_checkpoint latest
check "after the end no lock is left" test ! -e "$scratch/shared/.zf_train.lock"

# "latest" where there is none: a sentence; but not over a model.
run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --max_steps 2 --resume_from_checkpoint latest)
check "the first start says latest too" "${run[@]}" --output_dir "$scratch/new"
cp "$scratch/check.log" "$scratch/printed"
check "and says that it starts anew" grep -q "^resume_from_checkpoint: $scratch/new holds no checkpoint yet; the run starts anew" \
    "$scratch/printed"
status=0
"${run[@]}" --output_dir "$scratch/new" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
check "a model and no checkpoint: status 1" test "$status" = 1
check "a model and no checkpoint: says so" grep -q 'new holds .*, and no checkpoint to go on from' "$scratch/stderr"
finish
