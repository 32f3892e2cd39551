#!/usr/bin/env bash
# What cmake --install puts somewhere else runs there, and knows nothing of the build.

. tests/e2e/lib/common.sh "$@"
need cmake readelf
prefix=$scratch/prefix share=$scratch/prefix/share/zf-train

check "cmake --install" cmake --install "$build" --prefix "$prefix"
for file in bin/zf-train bin/zf-bench share/doc/zf-train/README.md share/doc/zf-train/LICENSE \
    share/zf-train/scripts/download_glue.sh share/zf-train/scripts/download_gpt2.sh; do
    check "$file" test -s "$prefix/$file"
done
check "all configurations" diff -r configs "$share/configs"
for program in zf-train zf-bench zf-run; do
    readelf -d "$prefix/bin/$program" >"$scratch/dynamic"
    check "$program: nothing of it is looked for in the build" not grep -F -e "$build" -e "$root" "$scratch/dynamic"
    check "$program finds its libraries" not grep 'not found' <(ldd "$prefix/bin/$program")
done

# From another folder, without this one's environment.
mkdir "$scratch/elsewhere"
cd "$scratch/elsewhere"
clean=(env -i "HOME=$scratch" "PATH=$PATH" "OMP_NUM_THREADS=$OMP_NUM_THREADS" "LSAN_OPTIONS=$LSAN_OPTIONS")
short=(--max_train_samples 64 --max_eval_samples 16 --max_steps 2 --do_predict false)
check "the installed program trains" "${clean[@]}" "$prefix/bin/zf-train" --config "$share/configs/sample.json" \
    --data_dir "$share/data/sample" --tokenizer_name "$share/data/sample/tokenizer" --output_dir out "${short[@]}"
check "a model" test -s out/model.safetensors
check "the installed zf-run answers" "${clean[@]}" "$prefix/bin/zf-run" out "a good film"
check "the installed script trains the sample" "${clean[@]}" bash "$share/scripts/finetune_gpt_glue.sh" "${short[@]}"
check "the same model" cmp out/model.safetensors output/sample/model.safetensors
check "zf-bench" "${clean[@]}" "$prefix/bin/zf-bench" adam --parameters 100000 --threads 1 --repeats 1
finish
