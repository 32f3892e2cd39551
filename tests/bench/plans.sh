#!/usr/bin/env bash
# Plans of the engine on machines that are not here: what tests/bench/results/plans.txt holds.
#
#   bash tests/bench/plans.sh BUILD
set -euo pipefail
bench=$1/zf-bench
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
lengths=$folder/LENGTHS
slow_host=$folder/H200_HOST_200

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
    printf '\n==== %s\n$ zf-bench train %s\n' "$title" "${*//$folder\//}"
    "$bench" train "$@" | sed -n '/ms\/step/,$p'
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

# ---- what the planner chooses: --fit leaves all to it, as "auto" in zf-train's configuration ----

# The machine with another host's or device's memory, in bytes.
with_memory() { # with_memory MACHINE BLOCK BYTES NAME FILE
    python3 - "$@" <<'END'
import json, sys
machine, block, bytes_, name, path = sys.argv[1:]
machine = json.load(open(f"configs/machines/{machine}.json"))
machine["name"] += name
machine[block]["memory_bytes"] = {"value": float(bytes_), "source": "assumed"}
json.dump(machine, open(path, "w"))
END
}
small_host=$folder/RTX_4090_HOST_512
large_host=$folder/H100_HOST_1500
with_memory rtx-4090 host 512e9 ", host of 512 GB" "$small_host"
with_memory h100 host 1.5e12 ", host of 1.5 TB" "$large_host"
fit() { # fit TITLE RANKS MACHINE PRESET SEQUENCES OF THE STEP, OPTION...
    plan "$1" --plan "$3" --ranks "$2" --preset "$4" --train_batch_size "$5" --length 512 --fit --method staggered \
        --topk_ratio 0.05 --update_interval 4 --select_interval 16 --steps 16 --dropout 0 "${@:6}"
}
deepspeed() { # deepspeed NAME PARAMETERS LARGEST GPUS
    printf '\n'
    python3 tests/bench/deepspeed_memory.py "$@"
}
fit "Llama-2-7B on 4 A100s 40 GB" 4 a100-40gb llama-2-7b 64
deepspeed "Llama-2-7B on 4 GPUs" 6738415616 131072000 4
fit "Llama-2-7B on one RTX 4090 (24 GB)" 1 "$small_host" llama-2-7b 16
deepspeed Llama-2-7B 6738415616 131072000 1
fit "Llama-2-13B on one RTX 4090 (24 GB)" 1 "$small_host" llama-2-13b 16
deepspeed Llama-2-13B 13015864320 163840000 1
fit "Llama-2-70B on one H100 with 1.5 TB of host memory" 1 "$large_host" llama-2-70b 16
deepspeed Llama-2-70B 68976648192 262144000 1
fit "Llama-3.1-8B on one RTX 4090 (24 GB)" 1 "$small_host" llama-3.1-8b 16
fit "Qwen2.5-1.5B on one RTX 4090 (24 GB)" 1 "$small_host" qwen2.5-1.5b 16

# ---- what cmd/memory_choice.c reckons by ----

row() { # row NAME OPTION...: the table's line alone
    printf '%-34s' "$1"
    "$bench" train --length 512 --method staggered --topk_ratio 0.05 --update_interval 4 --select_interval 16 --steps 8 \
        --dropout 0 "${@:2}" | sed -n 's/^ZenFlow, staggered//p'
}
printf '\n==== What each place costs: without a new choice, whether it fits or not\n%34s' ""
"$bench" train --plan h100 --preset gpt --method staggered --steps 1 --warm-up 1 | sed -n '/ms\/step/s/^ \{19\}//p'
for of in "h100 gpt-6.7b 4" "h100 gpt-6.7b 16" "rtx-4090 gpt2-xl 16"; do
    read -r machine preset seqs <<<"$of"
    model=(--plan "$machine" --preset "$preset")
    all=("${model[@]}" --seqs "$seqs")
    both=("${all[@]}" --gradient_checkpointing --accumulate host)
    printf '%s, %s, %s sequences of 512\n' "$machine" "$preset" "$seqs"
    row "  all on the device" "${all[@]}"
    row "  micro-batches of half the size" "${model[@]}" --seqs $((seqs / 2)) --micro-batches 2
    row "  recomputation" "${all[@]}" --gradient_checkpointing
    row "  windows on the host" "${all[@]}" --accumulate host
    row "  parameters on the host, 2 slots" "${all[@]}" --offload_param 2
    row "  important state on the host" "${all[@]}" --offload
    row "  recomputation, windows" "${both[@]}"
    row "  ..., parameters, 2 slots" "${both[@]}" --offload_param 2
    row "  ..., parameters, 1 slot" "${both[@]}" --offload_param 1
    row "  ..., important state" "${both[@]}" --offload
done

# ---- slots, and coming early ----

printf '\n==== Slots for parameters, prefetched or not: 6.7 B on one H100, parameters and windows on the host, recomputation\n'
for seqs in 4 16; do
    for slots in 1 2 3; do
        for late in "" --no_prefetch; do
            # shellcheck disable=SC2086
            row "  $seqs x 512, $slots slot(s) $late" --plan h100 --preset gpt-6.7b --seqs $seqs --accumulate host \
                --gradient_checkpointing --offload_param $slots $late
        done
    done
done

printf '\n==== The least tokens of a step at which offloaded / resident is at most 1.05 (in parentheses: it)\n'
printf '$ python3 tests/bench/least_tokens.py BUILD\n'
python3 tests/bench/least_tokens.py "$1"

printf '\n==== Offloaded beside resident, by GPU, host, model and batch\n'
printf '$ python3 tests/bench/offloaded_ratio.py BUILD\n'
python3 tests/bench/offloaded_ratio.py "$1"
