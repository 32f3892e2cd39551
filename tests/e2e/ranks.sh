#!/usr/bin/env bash
# The same global batch on 1, 2 and 4 ranks, and accumulated on one, gives the same losses. With ZF_LONG=1
# each engine is tried in all these ways, else ZenFlow is.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun
tiny+=(--device cpu) # where sums are of fp32: on a GPU parameters are bf16, and their rounding hides what this is about
unset OMPI_MCA_mpi_yield_when_idle OMPI_MCA_pml # as a user runs it

for engine in adamw zero_offload zenflow; do
    others=(2 4)
    if [ "${ZF_LONG:-0}" != 1 ] && [ $engine != zenflow ]; then others=(2); fi
    for n in 1 "${others[@]}"; do
        check "$engine on $n" ranks "$n" "$train" --config "$steady/$engine.json" "${tiny[@]}" \
            --per_device_train_batch_size $((16 / n)) --max_steps 6 --seed 7 \
            --output_dir "$scratch/$engine-$n"
    done
    check "$engine accumulated" "$train" --config "$steady/$engine.json" "${tiny[@]}" \
        --per_device_train_batch_size 4 --max_steps 6 --seed 7 --output_dir "$scratch/$engine-a"
    for other in "${others[@]}" a; do
        check "$engine: the losses of $other are those of 1" compare \
            "$scratch/$engine-1/trainer_log.jsonl" "$scratch/$engine-$other/trainer_log.jsonl" 2e-5
    done
done

# A Llama.
llama=(--config "$steady/zenflow.json" "${tiny[@]}" --config_name llama --max_steps 6 --seed 7)
for n in 1 2; do
    check "a Llama on $n" ranks "$n" "$train" "${llama[@]}" --per_device_train_batch_size $((16 / n)) \
        --output_dir "$scratch/llama-$n"
done
check "a Llama: the losses of 2 are those of 1" compare "$scratch/llama-1/trainer_log.jsonl" \
    "$scratch/llama-2/trainer_log.jsonl" 2e-5

# Fewer examples in the last batch than ranks, and an evaluation split that does not divide.
for n in 1 4; do
    check "17 examples on $n" ranks "$n" "$train" --config configs/adamw.json "${tiny[@]}" \
        --max_train_samples 17 --max_eval_samples 7 --per_device_train_batch_size $((16 / n)) \
        --per_device_eval_batch_size 2 --max_steps 4 --output_dir "$scratch/odd-$n"
done
check "17 examples: the losses agree" compare "$scratch/odd-1/trainer_log.jsonl" \
    "$scratch/odd-4/trainer_log.jsonl" 2e-5
finish
