#!/usr/bin/env bash
# Checkpoints can be trusted: the same run writes the same bytes; what is damaged, or of another run, is refused
# by name; what is broken or unfinished stops nobody; a run that diverges keeps what is good.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun
export OMPI_MCA_odls_base_sigkill_timeout=0 # mpirun gives ranks that have ended with a fault no second to end

zenflow=("$train" --config "$steady/zenflow.json" "${tiny[@]}")
saving=("${zenflow[@]}" --max_steps 6 --save_strategy steps --save_steps 2)
sign() { # sign COMMAND FOLDER
    python3 tests/e2e/lib/sign.py "$@"
}
sum() { # sum FOLDER: what it holds, by content
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

# The same bytes, whatever memory held before: malloc fills what it gives with one byte or another.
for config in zenflow adamw zero_offload zenflow_auto; do
    for fill in 1 254; do
        check "$config: memory begins with $fill" env MALLOC_PERTURB_=$fill MALLOC_MMAP_THRESHOLD_=1073741824 \
            "$train" --config "$steady/$config.json" "${tiny[@]}" --max_steps 5 --save_strategy steps --save_steps 1 \
            --output_dir "$scratch/$config-$fill"
        for step in 1 2 5; do
            sum "$scratch/$config-$fill/checkpoint-$step"
        done >"$scratch/$config-$fill.sums"
    done
    check "$config: the same bytes" cmp "$scratch/$config-1.sums" "$scratch/$config-254.sums"
done
check "with windows on the host" "$train" --config "$steady/zenflow.json" "${tiny[@]}" --max_steps 5 --save_strategy steps \
    --save_steps 1 --zero_optimization.zenflow.accumulate host --output_dir "$scratch/elsewhere"
for file in model.safetensors optimizer-00001-of-00001.safetensors; do
    check "the same bytes there: $file" cmp "$scratch/zenflow-1/checkpoint-5/$file" "$scratch/elsewhere/checkpoint-5/$file"
done

# The manifest.
run=$scratch/run
check "a run" "${saving[@]}" --output_dir "$run"
check "the log says how long training stood still for them, and when they were on the disk" python3 - "$run" <<'END'
import json, sys
entries = [e for e in map(json.loads, open(sys.argv[1] + "/trainer_log.jsonl")) if "checkpoint" in e]
assert [(e["step"], e["checkpoint"]) for e in entries] == [(n, f"checkpoint-{n}") for n in (2, 4, 6)], entries
assert all(e["save_seconds"] > 0 and e["disk_seconds"] > 0 for e in entries), entries
END
check "two ranks" ranks 2 "${saving[@]}" --per_device_train_batch_size 8 --output_dir "$scratch/pair"
for folder in "$run/checkpoint-2" "$run/checkpoint-6" "$scratch/pair/checkpoint-4"; do
    check "$folder: its manifest is what libxxhash says" sign check "$folder"
done
if command -v xxhsum >/dev/null; then
    check "small files: as xxhsum prints it" grep -q \
        "$(xxhsum -H2 "$run/checkpoint-2/vocab.json" | cut -d ' ' -f 1)" "$run/checkpoint-2/manifest.json"
else
    echo "skipped: xxhsum is not installed"
fi
going_on=("${zenflow[@]}" --max_steps 6 --output_dir "$scratch/on" --resume_from_checkpoint)
cp -r "$run/checkpoint-4" "$scratch/flips"
flips=36 seed=0
if [ "${ZF_LONG:-}" = 1 ]; then
    flips=500 seed=${ZF_SEED:-0}
    [ "$seed" != random ] || seed=$RANDOM
fi
check "$flips single bits" python3 tests/e2e/lib/bit_flips.py $flips $seed "$scratch/flips" "$scratch/on" \
    "$run/model.safetensors" "${going_on[@]}" "$scratch/flips"
tail -n 3 "$scratch/check.log"
check "and none: the checkpoint is as it was" sign check "$scratch/flips"

refused() { # refused WHAT WORDS COMMAND...
    rm -rf "$scratch/on"
    fails "$@"
    check "$1: no model is written" test ! -e "$scratch/on/model.safetensors"
}
bad=$scratch/bad
bad_copy() { # bad_copy FOLDER
    rm -rf "$bad"
    cp -r "$1" "$bad"
}
shard=optimizer-00001-of-00002.safetensors
pair=("${going_on[@]}" "$bad" --per_device_train_batch_size 8)
bad_copy "$scratch/pair/checkpoint-4"
cp "$scratch/pair/checkpoint-2/$shard" "$bad"
refused "another step's optimizer file" "$shard: it is damaged" ranks 2 "${pair[@]}"
sign sign "$bad"
refused "the same, signed" "of another step or run than rank 0's" ranks 2 "${pair[@]}"
bad_copy "$scratch/pair/checkpoint-4"
cp "$bad/$shard" "$bad/optimizer-00002-of-00002.safetensors"
sign sign "$bad"
refused "another rank's optimizer file, signed" "its channels of .* begin at 0, but those of rank 1" ranks 2 "${pair[@]}"
bad_copy "$scratch/pair/checkpoint-4"
cp "$run/checkpoint-4/optimizer-00001-of-00001.safetensors" "$bad"
refused "optimizer files of two runs" "several numbers of ranks" ranks 2 "${pair[@]}"
bad_copy "$run/checkpoint-4"
cp "$run/checkpoint-2/trainer_state.json" "$bad"
sign sign "$bad"
refused "another step's state, signed" "it is of step 4, but trainer_state.json of step 2" "${going_on[@]}" "$bad"
rm "$bad/vocab.json"
refused "a file that is not there" "vocab.json: cannot be read" "${going_on[@]}" "$bad"
bad_copy "$run/checkpoint-4"
rm "$bad/manifest.json"
refused "no manifest" "$bad: there is no manifest.json" "${going_on[@]}" "$bad"
bad_copy "$run/checkpoint-4"
sed -i 's/"config.json"/"..\/config.json"/' "$bad/manifest.json"
refused "a manifest that names what lies elsewhere" "manifest.json: it is damaged" "${going_on[@]}" "$bad"
bad_copy "$run/checkpoint-4"
rm "$bad/model.safetensors"
mkfifo "$bad/model.safetensors"
refused "a pipe in place of a file" "model.safetensors: cannot be read: not a regular file" timeout 60 "${going_on[@]}" "$bad"
bad_copy "$run/checkpoint-4"
sed -i 's/"layer_norm_epsilon": 1e-0*5/"layer_norm_epsilon": 1e-3/' "$bad/config.json"
sign sign "$bad"
refused "another model of equal size, signed" "config.json:[0-9]*: .*layer_norm_epsilon" "${going_on[@]}" "$bad"

# Another task's data of equal size: the same sentences in another order, or with other labels.
mkdir -p "$scratch/data/SST-2"
for split in dev test; do
    cp "data/sample/SST-2/$split.tsv" "$scratch/data/SST-2"
done
sed -n 1p data/sample/SST-2/train.tsv >"$scratch/data/SST-2/train.tsv"
sed -n 2,129p data/sample/SST-2/train.tsv | tac >>"$scratch/data/SST-2/train.tsv"
refused "other data of equal size" "manifest.json:[0-9]*: .*made with train_data .*: the examples or their tokens are others" "${going_on[@]}" "$run/checkpoint-4" \
    --data_dir "$scratch/data"
refused "another seed" "manifest.json:[0-9]*: .*seed 42, but this run has 43" "${going_on[@]}" "$run/checkpoint-4" --seed 43
check "another learning rate is told" "${going_on[@]}" "$run/checkpoint-4" --learning_rate 2e-3 --lr_scheduler_type cosine
cp "$scratch/check.log" "$scratch/printed"
check "by its name and values" grep -q 'warning: learning_rate was 0.001 .* is 0.002 from here on' "$scratch/printed"
check "and a schedule by its own" grep -q 'lr_scheduler_type was linear .* is cosine from' "$scratch/printed"
check "a run that is done" "${going_on[@]}" "$run/checkpoint-4" --max_steps 4
cp "$scratch/check.log" "$scratch/printed"
check "is said to be" grep -q 'nothing is left to train: the checkpoint is of step 4, and the run has 4' "$scratch/printed"

# The newest is broken or unfinished.
latest=$scratch/latest
cp -r "$run" "$latest"
printf x | dd of="$latest/checkpoint-6/model.safetensors" bs=1 seek=100000 conv=notrunc 2>"$scratch/dd"
mkdir "$latest/checkpoint-999" "$latest/tmp-checkpoint-8"
touch "$latest/checkpoint-1000" "$latest/tmp-checkpoint-8/model.safetensors" "$latest/model.safetensors.1.tmp"
rm "$latest/model.safetensors"
check "the one before the broken one" "${zenflow[@]}" --max_steps 6 --output_dir "$latest" --resume_from_checkpoint latest
cp "$scratch/check.log" "$scratch/printed"
check "the unfinished one is named" grep -q 'warning: .*checkpoint-999: it has no manifest' "$scratch/printed"
check "the broken one is named" grep -q 'warning: .*checkpoint-6/model.safetensors: it is damaged' "$scratch/printed"
check "it goes on from there" grep -q 'resuming from .*checkpoint-4' "$scratch/printed"
check "to the same model" cmp "$run/model.safetensors" "$latest/model.safetensors"
check "what dead runs left is gone" test ! -e "$latest/checkpoint-999" -a ! -e "$latest/tmp-checkpoint-8" \
    -a ! -e "$latest/model.safetensors.1.tmp"
check "a file is none of ours" test -f "$latest/checkpoint-1000"
for step in 2 4; do
    printf x | dd of="$latest/checkpoint-$step/vocab.json" bs=1 seek=100 conv=notrunc 2>"$scratch/dd"
done
refused "all are broken" "none of its 3 checkpoint.s. is whole: .*checkpoint-6" "${zenflow[@]}" --max_steps 6 \
    --output_dir "$latest" --resume_from_checkpoint latest
chmod a-rwx "$latest"
if [ "$(id -u)" -ne 0 ]; then
    refused "a folder that cannot be read" "cannot be read" "${zenflow[@]}" --max_steps 6 --output_dir "$latest"
fi
chmod u+rwx "$latest"

# A checkpoint takes the place of another of its name, where the file system exchanges names or not.
check "again, over what is there" "${saving[@]}" --output_dir "$run" --resume_from_checkpoint "$run/checkpoint-2"
check "nothing is left beside them" test "$(cd "$run" && echo *checkpoint*)" = "checkpoint-2 checkpoint-4 checkpoint-6"
if strace -e trace=none true 2>"$scratch/strace"; then
    check "without renameat2" strace -f -o "$scratch/strace" -e trace=renameat2 -e inject=renameat2:error=EINVAL \
        "${saving[@]}" --output_dir "$run" --resume_from_checkpoint "$run/checkpoint-2"
    check "it was asked for" grep -q 'renameat2.*INJECTED' "$scratch/strace"
    check "nothing is left beside them then" test "$(cd "$run" && echo *checkpoint*)" = \
        "checkpoint-2 checkpoint-4 checkpoint-6"
    check "what is written and removed, in order" strace -f -y -o "$scratch/strace" -e trace=fsync,rename,renameat2 \
        "${saving[@]}" --save_total_limit 1 --output_dir "$scratch/durable"
    check "an old checkpoint goes when the new one is on the disk" python3 - "$scratch/strace" "$scratch/durable" <<'END'
import re, sys
calls, out = re.sub(r"^\d+ +", "", open(sys.argv[1]).read(), flags=re.M).splitlines(), sys.argv[2]
def find(pattern, after=-1):
    return next(i for i, call in enumerate(calls) if i > after and re.match(pattern.replace("OUT", out), call))
for step in (4, 6):
    published = find(rf'rename\("OUT/tmp-checkpoint-{step}", "OUT/checkpoint-{step}"\) += 0')
    for name in ("model.safetensors", "optimizer-00001-of-00001.safetensors", "manifest.json"):
        assert find(rf"fsync\(\d+<OUT/tmp-checkpoint-{step}/{name}(\.\d+\.tmp)?>") < published, name
    assert find(rf"fsync\(\d+<OUT/tmp-checkpoint-{step}>\) += 0") < published
    durable = find(r"fsync\(\d+<OUT>\) += 0", published)
    removed = find(rf'rename\("OUT/checkpoint-{step - 2}", "OUT/tmp-checkpoint-{step - 2}"\) += 0')
    assert durable < removed, (published, durable, removed)
END
    mv "$run/checkpoint-6" "$run/checkpoint-6.replaced" # as after a kill between two renames
    check "goes on" "${saving[@]}" --output_dir "$run"
    cp "$scratch/check.log" "$scratch/printed"
    check "from what was put aside" grep -q 'resuming from .*checkpoint-6' "$scratch/printed"
else
    echo "skipped: strace cannot trace here"
fi

# load_best_model_at_end across folders: the best model lies in the first one, twice removed.
best=(--load_best_model_at_end --greater_is_better --eval_strategy steps --save_strategy steps --save_steps 2 --eval_steps 2
    --scheduler.type none --lr_scheduler_type constant --learning_rate 1e-5)
check "the first folder" "${zenflow[@]}" "${best[@]}" --max_steps 4 --output_dir "$scratch/first"
check "the best is not the last" grep -q '"best_global_step": 2' "$scratch/first/all_results.json"
check "the second goes on from it" "${zenflow[@]}" "${best[@]}" --max_steps 6 --output_dir "$scratch/second" \
    --resume_from_checkpoint "$scratch/first/checkpoint-4"
check "all is done: again in the second" "${zenflow[@]}" "${best[@]}" --max_steps 6 --output_dir "$scratch/second"
check "all is done: into a third" "${zenflow[@]}" "${best[@]}" --max_steps 6 --output_dir "$scratch/third" \
    --resume_from_checkpoint "$scratch/second/checkpoint-6"
for folder in first second third; do
    check "$folder: the best model" cmp "$scratch/first/checkpoint-2/model.safetensors" "$scratch/$folder/model.safetensors"
done

# Divergence: the learning rate rises until steps are skipped, and what was saved before stays.
check "a good beginning" "${zenflow[@]}" --max_steps 3 --save_strategy steps --save_steps 1 --save_total_limit 1 \
    --output_dir "$scratch/diverges"
diverging=("${zenflow[@]}" --max_steps 40 --save_strategy steps --save_steps 1 --save_total_limit 1
    --output_dir "$scratch/diverges" --learning_rate 1e18)
check "it diverges" not "${diverging[@]}"
cp "$scratch/check.log" "$scratch/printed"
check "steps are skipped" grep -q 'the step is skipped' "$scratch/printed"
check "the last good checkpoint is there" "${zenflow[@]}" --max_steps 3 --output_dir "$scratch/on" \
    --resume_from_checkpoint "$scratch/diverges/checkpoint-3"
finish
