#!/usr/bin/env bash
# Plans of the engine on machines that are not here: what tests/bench/results/plans.txt holds.
#
#   bash tests/bench/plans.sh BUILD
set -euo pipefail
bench=$1/zf-bench
lengths=$(mktemp)
slow_host=$(mktemp)
trap 'rm -f "$lengths" "$slow_host"' EXIT

# Words of the sample's sentences and a few pieces more: as long as GLUE's SST-2 by GPT-2's tokens.
tail -n +2 data/sample/SST-2/train.tsv | cut -f1 | awk '{print NF + 2}' | head -4000 >"$lengths"

# An H200 whose host's AdamW gets 200 GB/s, as tests/bench/results/gpu-predictions.md assumes.
python3 - "$slow_host" <<'END'
import json, sys
machine = json.load(open("configs/machines/h200.json"))
machine["name"] += ", host AdamW at 200 GB/s"
machine["host"]["adam_bytes_per_second"] = {"value": 200e9, "source": "gpu-predictions.md"}
json.dump(machine, open(sys.argv[1], "w"))
END

plan() { # plan TITLE OPTION...
    local title=$1
    shift
    printf '\n==== %s\n$ zf-bench train %s\n' "$title" \
        "$(sed "s|$lengths|LENGTHS|; s|$slow_host|H200_HOST_200|" <<<"$*")"
    "$bench" train "$@" | tail -n +7
}

printf 'SIMULATED: nothing here was measured. %s, commit %s\n$ bash tests/bench/plans.sh BUILD\n' \
    "$(date -u +%F)" "$(git rev-parse --short HEAD)"
zenflow=(--method staggered --topk_ratio 0.05 --update_interval 4 --select_interval 16 --steps 32 --dropout 0)

for seqs in 4 8 16; do
    four=(--plan a100-40gb --ranks 4 --preset gpt-6.7b --seqs "$seqs" --length 512)
    plan "6.7 B on 4 A100s 40 GB, $seqs sequences of 512 each" "${four[@]}" "${zenflow[@]}"
done
four=(--plan a100-40gb --ranks 4 --preset gpt-6.7b --seqs 4 --length 512)
plan "the same, windows on the host, recomputation" "${four[@]}" "${zenflow[@]}" --accumulate host \
    --gradient_checkpointing
plan "the same, ZeRO-Offload" "${four[@]}" --method offload --steps 8 --dropout 0 --gradient_checkpointing

# Stage 3: parameters divided over the ranks, on their devices and on their hosts.
for preset in gpt-6.7b llama-2-7b; do
    for seqs in 4 8; do
        four=(--plan a100-40gb --ranks 4 --preset "$preset" --seqs "$seqs" --length 512 --stage 3)
        plan "$preset on 4 A100s 40 GB, stage 3, $seqs sequences of 512 each" "${four[@]}" "${zenflow[@]}"
        plan "the same, parameters on the hosts" "${four[@]}" "${zenflow[@]}" --offload_param 2
        plan "the same, recomputation, parameters on the devices" "${four[@]}" "${zenflow[@]}" --gradient_checkpointing
    done
done

for preset in gpt2-xl gpt-6.7b; do
    for seqs in 4 8 16; do
        one=(--plan h100 --preset "$preset" --seqs "$seqs" --length 512)
        plan "$preset on one H100, $seqs sequences of 512: resident" "${one[@]}" --method resident --steps 8 --dropout 0
        plan "$preset on one H100, $seqs sequences of 512: ZenFlow" "${one[@]}" "${zenflow[@]}"
    done
done
plan "gpt2-xl on one H100, 4 sequences of 512: ZeRO-Offload" --plan h100 --preset gpt2-xl --seqs 4 --length 512 \
    --method offload --steps 8 --dropout 0

for seqs in 4 16; do
    one=(--plan "$slow_host" --preset gpt2-xl --seqs "$seqs" --length 512)
    plan "gpt2-xl on one H200 with a slow host, $seqs sequences: resident" "${one[@]}" --method resident --steps 8 \
        --dropout 0
    plan "gpt2-xl on one H200 with a slow host, $seqs sequences: ZenFlow" "${one[@]}" "${zenflow[@]}"
done

for machine in h100 rtx-4090; do
    glue=(--plan "$machine" --preset gpt2 --head classify --seqs 32 --lengths "$lengths")
    plan "GPT-2 124M on GLUE's lengths, $machine: resident" "${glue[@]}" --method resident --steps 8
    plan "GPT-2 124M on GLUE's lengths, $machine: ZenFlow" "${glue[@]}" "${zenflow[@]}"
done

# What the host itself does in a step, by ranks.
for ranks in 1 2 4; do
    plan "GPT-2 124M on GLUE's lengths, $ranks rank(s) on H100s: launches and the host's own time" --plan h100 \
        --ranks "$ranks" --preset gpt2 --head classify --seqs 32 --lengths "$lengths" "${zenflow[@]}"
    plan "6.7 B, $ranks rank(s) on H200s: launches and the host's own time" --plan h200 --ranks "$ranks" \
        --preset gpt-6.7b --seqs 4 --length 512 "${zenflow[@]}"
done

# Parameters and windows on the host, activations computed again.
few=(--method staggered --topk_ratio 0.05 --update_interval 4 --select_interval 16 --steps 20 --dropout 0 --accumulate host \
    --gradient_checkpointing --offload_param 2)
thirteen=(--preset gpt-6.7b --width 5120 --layers 40)
seventy=(--preset gpt-6.7b --width 8192 --layers 80)
for seqs in 4 16; do
    plan "6.7 B on one RTX 4090, parameters on the host, $seqs sequences of 512" --plan rtx-4090 --preset gpt-6.7b --seqs "$seqs" \
        --length 512 "${few[@]}"
    plan "13 B on one RTX 4090, parameters on the host, $seqs sequences of 512" --plan rtx-4090 "${thirteen[@]}" --seqs "$seqs" \
        --length 512 "${few[@]}"
done
for slots in 1 2 3; do
    plan "6.7 B on one H100, 4 sequences of 512, parameters on the host, $slots slot(s)" --plan h100 --preset gpt-6.7b --seqs 4 \
        --length 512 "${few[@]}" --offload_param "$slots"
done
plan "65 B on one H100, 16 sequences of 512, parameters and important state on the host" --plan h100 "${seventy[@]}" --seqs 16 \
    --length 512 "${few[@]}" --offload
