#!/usr/bin/env bash
# Whatever is wrong with what zf-train is given, it ends with one sentence that names the place, and has
# written nothing. The status is 1, and 2 where the place is the command line.

. tests/e2e/lib/common.sh "$@"
need mpirun
export OMPI_MCA_odls_base_sigkill_timeout=0 # mpirun gives ranks that have ended with a fault no second to end

glue=$scratch/glue tokenizer=$scratch/tokenizer model=$scratch/model config=$scratch/config.json
out=$scratch/out
fresh() { # what a run takes, made anew, to be damaged
    chmod -R u+w "$scratch"
    rm -rf "$glue" "$tokenizer" "$model" "$out"
    mkdir -p "$glue"
    cp -r tests/fixtures/glue/{SST-2,CoLA,STS-B,RTE} "$glue"
    cp -r data/sample/tokenizer "$tokenizer"
    cp -r "$scratch/trained" "$model"
    cat >"$config" <<'END'
{
  "train_batch_size": 4,
  "training_arguments": {
    "per_device_eval_batch_size": 4,
    "max_steps": 2
  }
}
END
}
check "a model to be damaged" "$train" --task_name SST-2 --data_dir tests/fixtures/glue --max_steps 1 \
    --config_name gpt --tokenizer_name data/sample/tokenizer --output_dir "$scratch/trained"
rm -f "$scratch/trained"/{all_results.json,trainer_log.jsonl,zf_train_config.json}

# refused WHAT WORDS OPTION...: WORDS is a pattern that the sentence has; $expected: the status (1).
refused() {
    local what=$1 words=$2 status=0 expected=${expected:-1}
    shift 2
    "$@" >"$scratch/stdout" 2>"$scratch/stderr" </dev/null || status=$?
    sed "s|$scratch/||g" "$scratch/stderr"
    check "$what: status $expected" test "$status" = "$expected"
    check "$what: one line" test "$(grep -vc '^warning: ' "$scratch/stderr")" = 1
    check "$what: says '$words'" grep -Eq -- "^zf-train: .*($words)" "$scratch/stderr"
    check "$what: no results" test ! -s "$scratch/stdout"
    check "$what: nothing is written" test ! -e "$out"
}
misused() { # misused COMMAND...: the command line is at fault
    local expected=2
    "$@"
}
# alone WHAT WORDS OPTION...: a run on what fresh() made.
alone() {
    local what=$1 words=$2
    shift 2
    refused "$what" "$words" "$train" --config "$config" --data_dir "$glue" --output_dir "$out" "$@"
    fresh
}
task() { # with random initialisation
    alone "$1" "$2" --task_name "${3:-SST-2}" --config_name gpt --tokenizer_name "$tokenizer" "${@:4}"
}
trained() { # from a trained model
    alone "$1" "$2" --task_name SST-2 --device cpu --model_name_or_path "$model" "${@:3}" # a GPU's memory is told first
}
fresh

# The configuration and options.
misused refused "nothing at all" "task_name" "$train"
refused "no such configuration" "nowhere.json" "$train" --config "$scratch/nowhere.json"
echo '{"train_batch_size": 4,' >"$config"
task "a broken configuration" "config.json:[12]: "
sed -i 's/max_steps/max_step/' "$config"
task "an unknown key" 'config.json:5: .*max_step\b.*max_steps'
sed -i 's/"max_steps": 2/"max_steps": "two"/' "$config"
task "a key of a wrong type" 'config.json:5: .*max_steps is "two"'
sed -i 's/"train_batch_size": 4/"train_batch_size": 4, "train_batch_size": 8/' "$config"
task "a key given twice" 'train_batch_size'
sed -i '2a "zero_optimization": {"zenflow": {"topk_ratio": 5}},' "$config"
task "a value out of range" 'config.json:3: zero_optimization.zenflow.topk_ratio is 5, .*0.05'
sed -i 's/"max_steps": 2/"max_steps": 2,/' "$config"
task "a comma after the last item" "config.json:5: not valid JSON: a comma"
sed -i '3s|^|// data\n|' "$config"
task "a comment" "config.json:3: not valid JSON: a comment"
sed -i '2a "bf16": true,' "$config"
task "bf16 without its block" 'config.json:3: bf16 is true, .*\{"enabled": true\}'
task "batch sizes that do not fit" "train_batch_size" SST-2 --per_device_train_batch_size 3
misused task "an unknown task" 'task_name.*"?sst3"?.*sst2' sst3
misused task "an option without a value" "--seed" SST-2 --seed
misused task "an option that is no number" '--max_steps.*"?many"?' SST-2 --max_steps many
task "a batch beyond counting" 'per_device_eval_batch_size is 2000000000, .* at most' SST-2 \
    --per_device_eval_batch_size 2000000000
misused task "too many threads" '--num_threads is 100000, .*4096' SST-2 --num_threads 100000
misused task "steps below none" '--max_steps is -5, .* -1 ' SST-2 --max_steps -5
misused task "a device against another" '--use_cpu .*"cuda"' SST-2 --use_cpu --device cuda
misused task "evaluation before the first step" "--eval_on_start" SST-2 --eval_on_start
misused task "a stray argument" 'stray' SST-2 stray
task "an unknown preset" 'gtp2.*gpt2' SST-2 --config_name gtp2
misused alone "no tokenizer" "tokenizer_name" --task_name SST-2 --config_name gpt
misused alone "no model" "model_name_or_path" --task_name SST-2
misused task "no text for lm" "train_file" lm
best=(--load_best_model_at_end --eval_strategy epoch --save_strategy epoch)
misused task "a metric that the task lacks" '--metric_for_best_model is "f1", .*SST-2 gives loss, accuracy$' \
    SST-2 "${best[@]}" --metric_for_best_model eval_f1
misused task "a metric of another split" 'metric_for_best_model is .*CoLA gives loss, matthews_correlation$' \
    CoLA "${best[@]}" --metric_for_best_model matthews_correlation_mm
CUDA_VISIBLE_DEVICES='' task "cuda without a GPU" 'device is "cuda"' SST-2 --device cuda
SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 task "ranks of srun that stand alone" 'srun .*"mpirun -n 2 '
WORLD_SIZE=2 RANK=1 LOCAL_RANK=1 task "ranks of torchrun" 'torchrun .*"mpirun -n 2 '
PMI_SIZE=2 PMI_RANK=1 task "ranks of another MPI" 'PMI.*"mpirun -n 2 '

# Data.
task "no such folder" "nowhere" SST-2 --data_dir "$scratch/nowhere"
rm "$glue/SST-2/dev.tsv"
task "no dev split" "SST-2/dev.tsv"
printf 'a good film\t7\r\n' >>"$glue/SST-2/train.tsv"
task "a label that is none" 'SST-2/train.tsv:[0-9]+: .*"?7"?'
printf 'a film without a label\r\n' >>"$glue/SST-2/train.tsv"
task "a row without its label" "SST-2/train.tsv:[0-9]+: "
printf 'a\t1\tb\tc\n' >>"$glue/SST-2/dev.tsv"
task "a row with too many columns" "SST-2/dev.tsv:[0-9]+: "
sed -i '1s/sentence/text/' "$glue/SST-2/train.tsv"
task "a header without its columns" 'SST-2/train.tsv:1: .*"?sentence'
printf 'bad \xff\xfe text\t1\n' >>"$glue/SST-2/train.tsv"
task "text that is not UTF-8" "SST-2/train.tsv:[0-9]+: .*UTF-8"
: >"$glue/SST-2/train.tsv"
task "an empty file" "SST-2/train.tsv"
sed -i '2,$d' "$glue/SST-2/train.tsv"
task "a header alone" "train"
sed -i '$s/[0-9.]*\r*$/high/' "$glue/STS-B/train.tsv"
task "a score that is no number" "STS-B/train.tsv:[0-9]+: .*high" STS-B
rm "$glue/CoLA/train.tsv" && mkdir "$glue/CoLA/train.tsv"
task "a folder in a file's place" "CoLA/train.tsv" CoLA
task "another task's file" "dev.tsv:1: " RTE --validation_file "$glue/SST-2/dev.tsv"
: >"$scratch/empty.txt"
task "an empty text" "empty.txt" lm --train_file "$scratch/empty.txt"

# Tokenizer.
rm "$tokenizer/merges.txt"
task "no merges" "tokenizer"
echo '["a"]' >"$tokenizer/vocab.json"
task "a vocabulary that is no object" "tokenizer/vocab.json"
truncate -s 5000 "$tokenizer/vocab.json"
task "a cut vocabulary" "tokenizer/vocab.json:[0-9]+"
printf '#version: 0.2\na b c\n' >"$tokenizer/merges.txt"
task "a merge of three" "tokenizer/merges.txt:2: "
printf '#version: 0.2\n\xc4\xa0xyzzy q\n' >"$tokenizer/merges.txt"
task "a merge that is in no vocabulary" "tokenizer/merges.txt:2: "
rm "$tokenizer"/* && head -c 100 tests/fixtures/tokenizer/spm_bpe.model >"$tokenizer/tokenizer.model"
task "a cut SentencePiece model" "tokenizer.model"
rm "$tokenizer"/*
task "a folder without a tokenizer" "tokenizer"
for type in mistral qwen2; do # Transformers would read another one from what is written
    mkdir "$scratch/$type"
    echo "{\"model_type\": \"$type\", \"vocab_size\": 8000, \"hidden_size\": 16, \"intermediate_size\": 24,
        \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1}" >"$scratch/$type/config.json"
    task "GPT-2's tokenizer and a model of type $type" "the tokenizer of .*GPT2Tokenizer.*type $type .*choose a tokenizer" \
        SST-2 --config_name "$scratch/$type"
done
task "GPT-2's tokenizer and Qwen2.5's preset" "Qwen2Tokenizer" SST-2 --config_name qwen2.5-0.5b
qwen=tests/fixtures/tokenizer/shapes/qwen2
check "Qwen's tokenizer and a model of type qwen2" "$train" --config "$config" --task_name SST-2 --data_dir "$glue" \
    --config_name "$scratch/qwen2" --tokenizer_name "$qwen" --output_dir "$scratch/of-qwen"
check "it is evaluated with GPT-2's, which writes no model" "$train" --config "$config" --task_name SST-2 --data_dir "$glue" \
    --model_name_or_path "$scratch/of-qwen" --tokenizer_name "$tokenizer" --do_eval
task "a plan refuses what a run does" "the tokenizer of .*GPT2Tokenizer.*type qwen2 .*choose a tokenizer" SST-2 \
    --config_name "$scratch/qwen2" --plan h100
check "and takes Qwen's" "$train" --config "$config" --task_name SST-2 --data_dir "$glue" --plan h100 \
    --config_name "$scratch/qwen2" --tokenizer_name "$qwen"

# Model.
trained "no such model" "nowhere" --model_name_or_path "$scratch/nowhere"
rm "$model/config.json"
trained "no config.json" "model/config.json"
sed -i 's/"n_head": *3/"n_head": 5/' "$model/config.json"
trained "heads that do not divide the width" "model/config.json.*n_head"
sed -i 's/"n_layer": *2/"n_layer": 3/' "$model/config.json"
trained "a layer that is not there" "model.safetensors.*h.2"
sed -i 's/"n_embd": *96/"n_embd": 48/' "$model/config.json"
trained "another width" "model.safetensors.*(96|48)"
sed -i 's/"model_type": *"gpt2"/"model_type": "gemma"/' "$model/config.json"
trained "another architecture" 'model/config.json.*gemma'
rm "$model"/* && echo '{"architectures": ["BertModel"], "model_type": "bert"}' >"$model/config.json"
echo '[PAD]' >"$model/vocab.txt"
trained "BERT's folder" 'model/config.json:1: .*"bert".*GPT-2'
trained "a model of the hub" 'download_gpt2.sh FOLDER openai-community/gpt2"' \
    --model_name_or_path openai-community/gpt2
trained "labels of another number" 'config.json:[0-9]+: .* 2 labels .*mnli has 3: --ignore_mism' \
    --task_name MNLI
for names in "positive negative" "1 0"; do # in words, or as GLUE's files spell them
    sed -i "s/\"0\": \"negative\"/\"0\": \"${names% *}\"/; s/\"1\": \"positive\"/\"1\": \"${names#* }\"/" \
        "$model/config.json"
    trained "labels in another order: $names" \
        "config.json:[0-9]+: .*\"${names% *}\" as label 0, .*sst2 has it as label 1"
done
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 548105171\n' 0 \
    >"$model/model.safetensors"
trained "a pointer in the weights' place" 'model.safetensors: .*Git LFS.*"git lfs pull"'
rm "$model/model.safetensors"
trained "no weights" "model.safetensors"
truncate -s 100000 "$model/model.safetensors"
trained "cut weights" "model.safetensors"
printf '\377\377\377\377\377\377\377\177' | dd of="$model/model.safetensors" conv=notrunc status=none
trained "a header of a wrong length" "model.safetensors"
sed -i 's/"vocab_size": *8000/"vocab_size": 100/' "$model/config.json"
trained "fewer embeddings than tokens" "vocab_size|8000"

# Output.
echo text >"$scratch/file"
task "a file in output_dir's place" "scratch|/file" SST-2 --output_dir "$scratch/file/sub"
as_user=()
if [ "$(id -u)" = 0 ]; then # who may write everywhere
    as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
fi
mkdir "$scratch/locked"
chmod a=rx "$scratch/locked" "$scratch"
if "${as_user[@]}" test -x "$train" -a ! -w "$scratch/locked" 2>/dev/null; then
    refused "an output_dir that may not be written" "locked.*Permission denied" "${as_user[@]}" \
        "$train" --config "$config" --data_dir "$glue" --output_dir "$scratch/locked/out/deeper" \
        --task_name SST-2 --config_name gpt --tokenizer_name "$tokenizer"
fi
fresh
before=$(cd "$model" && sha256sum ./*)
refused "an output_dir that holds a model" "output_dir.*--overwrite_output_dir" "$train" \
    --config "$config" --task_name SST-2 --data_dir "$glue" --model_name_or_path "$model" \
    --output_dir "$model"
check "that model is as it was" test "$before" = "$(cd "$model" && sha256sum ./*)"
mkdir "$scratch/others" && echo text >"$scratch/others/notes.txt"
refused "an output_dir that holds other files" "output_dir.*--overwrite_output_dir" "$train" \
    --config "$config" --task_name SST-2 --data_dir "$glue" --model_name_or_path "$model" \
    --output_dir "$scratch/others"
check "they are as they were" test "$(ls "$scratch/others")" = notes.txt
# full WHAT WORDS: a run on what fresh() made, that has no place for a file.
full() {
    local what=$1 words=$2 status=0
    shift 2
    (
        trap '' XFSZ # a write beyond the limit fails, as on a full disk
        ulimit -f "$limit"
        exec "$train" --config "$config" --data_dir "$glue" --output_dir "$out" --task_name SST-2 \
            --model_name_or_path "$model" --overwrite_output_dir "$@"
    ) >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    check "$what: status 1" test "$status" = 1
    check "$what: one sentence" test "$(grep -c '^zf-train: ' "$scratch/stderr")" = 1
    check "$what: says '$words'" grep -Eq -- "^zf-train: .*($words)" "$scratch/stderr"
    check "$what: no half-written file" test -z "$(find "$out" -name '*tmp*')"
    fresh
}
limit=1000
full "no place for the model" "model.safetensors"
full "no place for a checkpoint" "checkpoint-1" --save_strategy steps --save_steps 1
mkdir "$out"
ln -s /dev/full "$out/trainer_log.jsonl"
limit=unlimited
full "no place for the log" "trainer_log.jsonl"

# Under mpirun the sentence stands once.
pair() {
    local what=$1 words=$2 status=0
    shift 2
    ranks 2 "$train" --config "$config" --data_dir "$glue" --output_dir "$out" --task_name SST-2 \
        --config_name gpt --tokenizer_name "$tokenizer" "$@" >"$scratch/stdout" 2>"$scratch/stderr" ||
        status=$?
    check "two ranks, $what: status ${expected:-1}" test "$status" = "${expected:-1}"
    check "two ranks, $what: one sentence" test "$(grep -c '^zf-train: ' "$scratch/stderr")" = 1
    check "two ranks, $what: says '$words'" grep -Eq -- "^zf-train: .*($words)" "$scratch/stderr"
    check "two ranks, $what: nothing is written" test ! -e "$out"
    fresh
}
misused pair "an unknown option" "learning_rate" --learning_rat 3
pair "fewer examples than ranks" "1 training examples for 2 ranks" --max_train_samples 1 \
    --per_device_train_batch_size 2
pair "a batch that does not divide" "train_batch_size" --per_device_train_batch_size 4
printf 'a good film\t7\n' >>"$glue/SST-2/train.tsv"
pair "a bad row" "SST-2/train.tsv:[0-9]+: "
truncate -s 5000 "$tokenizer/vocab.json"
pair "a cut vocabulary" "tokenizer/vocab.json:[0-9]+"
pair "another kind's tokenizer" "the tokenizer of .*Qwen2Tokenizer" --config_name "$scratch/qwen2"
finish
