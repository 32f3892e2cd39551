# Small models of three types with more blocks than slots, to be trained on sentences or on texts:
#
#   . tests/e2e/lib/common.sh "$@"
#   . tests/e2e/lib/deep_models.sh BLOCKS
#
# llama has heads in groups and a head of its own for texts; qwen3 also norms of q and k, heads that are together wider
# than the model, and its embeddings for a head. Matrices do not divide by three.

mkdir "$scratch"/{gpt2,llama,qwen3}
cat >"$scratch/gpt2/config.json" <<END
{"model_type": "gpt2", "vocab_size": 8000, "n_positions": 64, "n_embd": 32, "n_layer": $1, "n_head": 2}
END
llama="\"vocab_size\": 1003, \"max_position_embeddings\": 64, \"hidden_size\": 32, \"intermediate_size\": 40,
 \"num_hidden_layers\": $1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000"
cat >"$scratch/llama/config.json" <<END
{"model_type": "llama", $llama, "tie_word_embeddings": false}
END
cat >"$scratch/qwen3/config.json" <<END
{"model_type": "qwen3", $llama, "tie_word_embeddings": true, "head_dim": 16}
END
unset llama
sed -n '2,401s/\t.*//p' data/sample/SST-2/train.tsv >"$scratch/texts.txt"

# learns MODEL WHAT: the array of this name has the options for it; WHAT is sst2, with a score head, or texts.
learns() {
    learns=(--config_name "$scratch/$1" --task_name sst2)
    [ "$1" = gpt2 ] || learns+=(--tokenizer_name tests/fixtures/tokenizer/shapes/smollm2)
    [ "$2" != texts ] || learns+=(--task_name lm --train_file "$scratch/texts.txt" --do_predict false)
}
