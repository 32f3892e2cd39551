#!/usr/bin/env bash
# Transformers loads an exported folder as it is, and predicts the same label for every sentence of a
# dev split. ZF_PYTHON names the Python that has Transformers (default: python3).

. tests/e2e/lib/common.sh "$@"
python=${ZF_PYTHON:-python3}
"$python" -c "import torch, transformers" 2>/dev/null || skip "$python has no Transformers"

# same NAME DEV OPTION...: trains for a little, in fp32 as Transformers, and predicts a dev split made into a test split.
same() {
    local name=$1 dev=$2 out=$scratch/$1
    shift 2
    awk -F '\t' -v OFS='\t' 'NR == 1 { print "index", "sentence" } NR > 1 { print NR - 2, $1 }' \
        "$dev" >"$scratch/$name.tsv"
    check "$name: trains" "$train" --config configs/sample.json --max_train_samples 640 --device cpu \
        --num_train_epochs 8 --max_eval_samples 16 --test_file "$scratch/$name.tsv" --output_dir "$out" "$@"
    check "$name: Transformers gives the same labels" "$python" tests/e2e/lib/predict.py "$out" \
        "$scratch/$name.tsv" "$out/predict_results_sst2.txt"
    tail -n 1 "$scratch/check.log"
    check "$name: Transformers reads trainer_state.json" "$python" -c 'import sys
from transformers import TrainerState
from transformers.modelcard import parse_log_history
state = TrainerState.load_from_json(sys.argv[1] + "/trainer_state.json")
train, lines, results = parse_log_history(state.log_history)
assert train["train_loss"] > 0 and results["Accuracy"] >= 0 and state.global_step > 0, state' "$out"
}
same sample data/sample/SST-2/dev.tsv
for shape in llama2 mistral; do # with a token in front of each sentence
    same "$shape" data/sample/SST-2/dev.tsv --tokenizer_name "tests/fixtures/tokenizer/shapes/$shape"
done
same llama data/sample/SST-2/dev.tsv --config_name llama

# A tokenizer of any kind and a model of any type: Transformers gives the tokenizer's ids with what is written, or the run is refused.
shapes=(tests/fixtures/tokenizer/shapes/*/)
for shape in llama2 llama3 smollm2; do # of no class and type
    cp -r "tests/fixtures/tokenizer/shapes/$shape" "$scratch/plain-$shape"
    rm "$scratch/plain-$shape/config.json"
    echo '{"model_max_length": 512}' >"$scratch/plain-$shape/tokenizer_config.json"
    shapes+=("$scratch/plain-$shape/")
done
written=()
for type in mistral qwen2 qwen3 gpt; do # the last one is a preset of type gpt2
    model=$type
    if [ $type != gpt ]; then
        model=$scratch/of-type-$type
        mkdir "$model"
        echo "{\"model_type\": \"$type\", \"vocab_size\": 1200, \"hidden_size\": 16, \"intermediate_size\": 24, \"head_dim\": 8,
            \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1}" >"$model/config.json"
    fi
    for shape in "${shapes[@]}"; do
        out=$scratch/$type-$(basename "$shape")-written
        if "$train" --config configs/sample.json --max_train_samples 32 --max_steps 1 --no_do_eval --config_name "$model" \
            --tokenizer_name "$shape" --output_dir "$out" >"$scratch/log" 2>&1; then
            written+=("$shape" "$out")
        else
            check "$(basename "$shape") and a model of type $type: the tokenizer is refused" grep "choose a tokenizer of that kind" "$scratch/log"
        fi
    done
done
if ! "$python" -c "import sentencepiece, google.protobuf" 2>/dev/null; then
    echo "without shapes/llama2_model: $python has no sentencepiece or protobuf"
    kept=()
    for folder in "${written[@]}"; do
        [[ $folder = *llama2_model* ]] || kept+=("$folder")
    done
    written=("${kept[@]}")
fi
check "what is written gives the same ids" "$python" tests/e2e/lib/same_ids.py "${written[@]}"
tail -n 1 "$scratch/check.log"
shared=$root/../shared
if [ -d "$shared/glue/SST-2" ]; then
    same glue "$shared/glue/SST-2/dev.tsv" --data_dir "$shared/glue" \
        --tokenizer_name "$shared/gpt2-bpe"
else
    echo "without GLUE's own SST-2: $shared/glue is not there"
fi
finish
