#!/usr/bin/env bash
# zf-train --plan and zf-bench train --plan: what they tell, that they write nothing, and that the traffic
# of a plan is a run's, alone and with two ranks; zf-bench machine's file is one that a plan takes, a CPU's
# and an emulated GPU's.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun
bench=$build/zf-bench

check "zf-train --plan" "$train" --config configs/sample.json --output_dir "$scratch/out" --plan h100 \
    --trace "$scratch/trace.json"
cp "$scratch/check.log" "$scratch/plan.txt"
check "it tells memory, time, stall, traffic and the critical path, marked as simulated" bash -c '
    for part in "device memory of each rank" "host memory of each rank" "simulated, not measured) on H100" \
        "step:  *median" "waits for the host" "host:  *[0-9.]* launches a step; [0-9.]* ms of its own, outside waits" "traffic:  *down" "critical path of the median step" "in order:"; do
        grep -q "$part" "$1" || { echo "without: $part"; exit 1; }
    done' _ "$scratch/plan.txt"
check "it writes nothing but the trace" test ! -e "$scratch/out"
check "which has the lanes of a run" python3 -c '
import json, sys
events = [e for e in json.load(open(sys.argv[1])) if e]
names = {e["name"] for e in events if e["ph"] == "X"}
assert {"forward", "backward", "window", "AdamW", "parameters"} <= names, names
assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["ts"] < 1e7 for e in events if e["ph"] == "X")
' "$scratch/trace.json"
check "a plan that stalls" "$bench" train --plan a100-40gb --ranks 4 --preset gpt-6.7b --seqs 4 --length 512 --method staggered \
    --topk_ratio 0.05 --update_interval 4 --steps 8 --dropout 0 --accumulate host --gradient_checkpointing \
    --trace "$scratch/trace.json" --json "$scratch/stalls.json"
check "its timeline: the device stalls in backward, until the step before has been added, as long as it says" python3 -c '
import json, sys
events, told = (json.load(open(path)) for path in sys.argv[1:])
def spans(name):
    return [(e["args"]["step"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["name"] == name]
backward = {step: (begin, end) for step, begin, end in spans("backward")}
added = {}
for step, _, end in spans("accumulate"):
    added[step] = max(end, added.get(step, 0))
last = [s for s in spans("stall") if s[0] > 8]  # of the eight that count
assert len(last) == 8, last
for step, begin, end in last:
    assert backward[step][0] < begin < end < backward[step][1] and abs(end - added[step - 1]) < 10, (step, begin, end)
share = sum(end - begin for _, begin, end in last) / (1e6 * 8 * told["methods"][0]["mean_seconds"])
assert abs(share - told["methods"][0]["stall_share"]) < 1e-4 and share > 0.1, share
' "$scratch/trace.json" "$scratch/stalls.json"
check "parameters and windows on the host" "$bench" train --plan h100 --preset gpt-6.7b --seqs 4 --length 512 --method staggered \
    --topk_ratio 0.05 --update_interval 4 --steps 4 --dropout 0 --accumulate host --offload_param 2 --trace "$scratch/trace.json"
check "the first block comes while the device ends the step before, whose gradients are still going down; no stall" python3 -c '
import json, sys
first, update, gradients = {}, {}, {}
for e in json.load(open(sys.argv[1])):
    if not e or e["ph"] != "X":
        continue
    step, begin, end = e["args"]["step"], e["ts"], e["ts"] + e["dur"]
    assert e["name"] != "stall" or step <= 8, (step, begin)
    if e["name"] == "layer":
        first[step] = min(begin, first.get(step, begin))
    if e["name"] == "update":
        update[step] = end
    if e["name"] == "gradients":
        gradients[step] = max(end, gradients.get(step, 0))
assert max(first) == 12, first
for step in range(10, 13): # the timeline begins with 9
    assert first[step] < update[step - 1] < gradients[step - 1], (step, first[step], update[step - 1])
' "$scratch/trace.json"
check "four ranks" "$train" --config configs/sample.json --plan a100-40gb --plan_ranks 4
cp "$scratch/check.log" "$scratch/printed"
check "what NCCL is allowed there" grep -Eq "^  NCCL, allowed +1.00 GiB$" "$scratch/printed"
check "the same plan twice is the same text" bash -c '
    for i in 1 2; do "$1" --config configs/sample.json --plan rtx-4090 >"$2/plan$i" 2>/dev/null; done
    cmp "$2/plan1" "$2/plan2"' _ "$train" "$scratch"
check "zf-bench train --plan h100" "$bench" train --plan h100
check "a Llama of 7 billion parameters is planned" bash -c '
    "$1" train --plan h100 --preset llama-2-7b --method offload --steps 8 >"$2/llama" &&
    grep -q "^llama-2-7b, lm head, 6738.42 M parameters" "$2/llama" &&
    ! grep -q "does not fit" "$2/llama"' _ "$bench" "$scratch"
check "without a folder for what it does not make" "$train" --plan h100 --task_name sst2 --config_name gpt \
    --tokenizer_name data/sample/tokenizer --data_dir data/sample
check "what does not fit is planned, and its row says so" bash -c '
    "$1" train --plan a100-40gb --preset gpt-6.7b --seqs 64 --method staggered --ranks 4 --steps 8 >"$2/large" &&
    grep -Eq "^ZenFlow, staggered .* [0-9.]+ +does not fit: it needs [0-9.]+ GB" "$2/large" &&
    grep -q "critical path" "$2/large"' _ "$bench" "$scratch"
table() { # table METHOD RANKS: what the table of a plan says is so, and of this plan
    "$bench" train --plan h100 --preset gpt --seqs 2 --method "$1" --ranks "$2" --steps 8 \
        --json "$scratch/table.json" >"$scratch/table" && cat "$scratch/table" && python3 -c '
import json, sys
printed, root = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
ranks, line = int(sys.argv[3]), root["methods"][0]
head = printed.split("\nplanned (simulated")[0]
assert ("ZenFlow" in head) == (line["method"].startswith("ZenFlow")), head
assert "0 x 0" not in head and "limits of each device" in head and f"simulated on {ranks} x H100" in head, head
assert "loss" not in head and not any("loss" in key for key in line), line.keys()
rows = [row for row in head.split("\n") if row.startswith(line["method"])]
words = rows[0][len(line["method"]):].replace("%", "").split()
share = line["flops"] / ranks / line["median_seconds"]
assert abs(float(words[4]) - share * 1e-12) < 6e-4, (words, share)
assert abs(float(words[5]) - 100 * share / root["product_flops_per_second"]) < 0.06, (words, share)
' "$scratch/table" "$scratch/table.json" "$2"
}
check "the table of a plan" table resident 1
check "of four ranks" table staggered 4

# What DeepSpeed's documentation prints for T5-3B on eight GPUs, in GiB: host and GPU.
documented() {
    python3 tests/bench/deepspeed_memory.py T5-3B 2851598336 32899072 8 >"$scratch/deepspeed" && cat "$scratch/deepspeed" &&
        python3 -c '
import sys
rows = [line.split() for line in open(sys.argv[1]) if line.startswith("  ")]
gib = [(float(r[-1]) / 1.073741824, float(r[-2]) / 1.073741824) for r in rows]
for (host, device), (theirs, there) in zip(gib, [(127.48, 5.31), (63.74, 0.79), (71.71, 0.12)], strict=True):
    assert abs(host / theirs - 1) < 2e-3 and abs(device - there) < 0.011, (host, theirs, device, there)
' "$scratch/deepspeed"
}
check "DeepSpeed's formulas give its documentation's figures" documented

refuses() { # refuses SENTENCE COMMAND...: status 1, and this sentence
    local says=$1 status=0
    shift
    "$@" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    cat "$scratch/stderr"
    [ "$status" = 1 ] && grep -qF -- "$says" "$scratch/stderr"
}
check "a machine that there is not" refuses 'there is no machine "h300"' \
    "$train" --config configs/sample.json --plan h300
sed 's/"link"/"lonk"/' configs/machines/h100.json >"$scratch/bad.json"
check "a file with an unknown key" refuses "$scratch/bad.json:" "$bench" train --plan "$scratch/bad.json"
check "a plan without training" refuses "do_train is false" \
    "$train" --config configs/sample.json --plan h100 --no_do_train

check "zf-bench machine" "$bench" machine --device cpu --rounds 1 --sizes 2 --json "$scratch/cpu1.json"
check "zf-bench machine, two ranks" mpirun -n 2 --oversubscribe --bind-to none "$bench" machine --device cpu \
    --rounds 1 --sizes 2 --json "$scratch/cpu2.json"
complete() { # complete FILE RANKS: all figures of the GPUs' files, each with its source, and all products
    python3 -c '
import json, sys
made, known = json.load(open(sys.argv[1])), json.load(open("configs/machines/h100.json"))
assert made["kind"] == "gpu" and made["measured_ranks"]["value"] == int(sys.argv[2]), made["kind"]
assert "EMULATED" in made["about"], made["about"]
for block in ("device", "link", "host", "ranks"):
    assert made[block].keys() == known[block].keys(), (block, made[block].keys() ^ known[block].keys())
    for name, figure in made[block].items():
        assert figure["source"], (block, name)
        assert figure["value"] > 0 or name.endswith("_seconds") or "_half_" in name, (block, name, figure)
sides, rates = made["products"]["sides"], made["products"]["rates"]
assert sides == [32, 128] and len(rates) == 3 * 2**3 and min(rates) > 0, sides
unmeasured = "not measured" in made["ranks"]["exchange_bytes_per_second"]["source"]
assert unmeasured == (sys.argv[2] == "1"), made["ranks"]
' "$@"
}
emulated=$build/zf-bench-emulated
if [ -x "$emulated" ]; then
    check "zf-bench machine on a GPU, emulated" "$emulated" machine --device cuda --rounds 1 --sizes 2 \
        --json "$scratch/gpu1.json"
    cp "$scratch/check.log" "$scratch/printed"
    check "it says that its figures mean nothing" grep -q "emulated on the host: its figures mean nothing" \
        "$scratch/printed"
    export ZF_EMULATOR_DEVICES=2
    check "on two" mpirun -n 2 --oversubscribe --bind-to none "$emulated" machine --device cuda \
        --rounds 1 --sizes 2 --json "$scratch/gpu2.json"
    unset ZF_EMULATOR_DEVICES
    for n in 1 2; do
        check "the file of $n GPU(s) is complete" complete "$scratch/gpu$n.json" $n
        check "a plan takes it" "$bench" train --plan "$scratch/gpu$n.json" --ranks $n --preset gpt --seqs 2 \
            --method staggered --steps 8
        check "as zf-train's does" "$train" --config configs/sample.json --output_dir "$scratch/out" \
            --plan "$scratch/gpu$n.json" --plan_ranks $n
    done
else
    echo "not checked: $emulated is not built"
fi

memory() { # memory COMMAND...: the table that it prints
    "$@" >"$scratch/stdout" 2>"$scratch/stderr" && sed -n '/^host memory of each rank, which/,/^  total/p' \
        "$scratch/stderr" && sed -n '/^host memory of each rank: /,/^  total/s/ of optimizer.*//p' "$scratch/stderr" &&
        grep -A9 '^host memory of each rank: ' "$scratch/stderr" | grep '^  '
}
for ranks_of in "1 2" "2 2" "2 3"; do
    read -r n stage <<<"$ranks_of"
    launch=()
    [ "$n" = 1 ] || launch=(mpirun -n "$n" --oversubscribe --bind-to none)
    sample=("$train" --config configs/sample.json --bf16.enabled true --max_steps 2 --do_eval false
        --do_predict false --zero_optimization.stage "$stage" --zero_optimization.offload_param.buffer_count 1)
    check "memory of $n rank(s) of the CPU device, stage $stage" memory "${launch[@]}" "${sample[@]}" --device cpu \
        --output_dir "$scratch/run$n$stage"
    cp "$scratch/check.log" "$scratch/memory"
    check "as planned" memory "${sample[@]}" --plan_ranks "$n" --plan "$scratch/cpu$n.json"
    cp "$scratch/check.log" "$scratch/planned"
    check "which is the same table" diff "$scratch/planned" "$scratch/memory"
    check "and has lines" test "$(wc -l <"$scratch/memory")" = 12
done

figures() { # figures NAME COMMAND...: its traffic and memory
    local name=$1
    shift
    "$@" --preset gpt --seqs 2 --length 12 --steps "$steps" --warm-up "$steps" --probe 64 --bf16 --method "$method" \
        --topk_ratio "$topk" --accumulate "$accumulate" "${places[@]}" --json "$scratch/$name.json" >/dev/null &&
        python3 -c '
import json, sys
line = json.load(open(sys.argv[1]))["methods"][0]
print(*(line[k] for k in ("bytes_down", "bytes_up", "bytes_moved", "bytes_gathered", "device_bytes",
                                "host_bytes", "tokens")))
' "$scratch/$name.json" >"$scratch/$name.txt"
}
as_planned() { # as_planned RANKS [MACHINE PROGRAM DEVICE]
    local launch=() machine=${2:-cpu}
    [ "$1" = 1 ] || launch=(mpirun -n "$1" --oversubscribe --bind-to none)
    figures run "${launch[@]}" "${3:-$bench}" train --device "${4:-cpu}" &&
        figures plan "$bench" train --plan "$scratch/$machine$1.json" --ranks "$1" &&
        paste "$scratch/run.txt" "$scratch/plan.txt" && cmp "$scratch/run.txt" "$scratch/plan.txt"
}
# One call for each matrix and its gradient, and one for what changed, however many ranks there are. By 2, 4 and 8 all
# matrices divide, by 3 and 5 few. The rank that is planned may own no vector of a layer or no rows of a group, and has
# less to do then.
launches() { # launches RANKS STAGE: of a step
    "$bench" train --plan h100 --ranks "$1" --preset gpt --seqs 2 --method staggered --topk_ratio 0 --stage "$2" \
        --steps 8 --json "$scratch/launches.json" >/dev/null &&
        python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["methods"][0]["plan"]["launches"])' \
            "$scratch/launches.json"
}
no_more_than_two() { # no_more_than_two STAGE: launches of two ranks, and of no number of them more
    local ranks of_two here
    of_two=$(launches 2 "$1") && echo "of 2 ranks: $of_two" && [ -n "$of_two" ] || return 1
    for ranks in 3 4 5 8; do
        here=$(launches "$ranks" "$1") && echo "of $ranks: $here" || return 1
        [ "${here%.*}" -gt 100 ] && [ "${here%.*}" -le "${of_two%.*}" ] || return 1
    done
}
check "launches of a step do not grow with the ranks that divide parameters" no_more_than_two 3
check "nor with those that share what changed" no_more_than_two 2
# State of channels that change sides goes beside the passes, wherever windows are: the steps of a choice and
# those behind it take as long as the others.
steady() { # steady OPTION...: of a plan in which state moves
    "$bench" train --plan h100 --preset gpt2-xl --seqs 4 --length 512 --method staggered --update_interval 4 \
        --select_interval 16 --steps 20 --dropout 0 --json "$scratch/steady.json" "$@" >/dev/null &&
        python3 -c '
import json, sys
plan = json.load(open(sys.argv[1]))["methods"][0]["plan"]
print(plan["median_seconds"], plan["worst_seconds"], plan["bytes_moved"])
assert plan["bytes_moved"] > 1e7 and plan["worst_seconds"] <= 1.1 * plan["median_seconds"], plan
' "$scratch/steady.json"
}
check "a choice makes no step longer, windows on the device" steady --accumulate device
check "on the host" steady --accumulate host
places=() steps=8
# With several ranks it is chance which of them owns the important channels: there are none then.
for method_of in "offload 0.05 device" "staggered 0.05 device" "staggered 0.05 host"; do
    read -r method topk accumulate <<<"$method_of"
    check "traffic and memory of $method_of" as_planned 1
done
for method_of in "resident 0.05 device" "offload 0.05 device" "staggered 0 device" "staggered 0 host"; do
    read -r method topk accumulate <<<"$method_of"
    check "traffic and memory of $method_of, two ranks" as_planned 2
done
for places_of in "--stage 3 --buffer_count 1" "--stage 3 --buffer_count 2" "--offload_param 1"; do
    read -ra places <<<"$places_of"
    method=staggered topk=0 accumulate=device
    check "traffic and memory of two ranks with $places_of" as_planned 2
done
places=(--stage 3 --buffer_count 1) method=resident
check "traffic and memory of two ranks, resident, with --stage 3" as_planned 2
places=()
if [ -x "$emulated" ]; then
    export ZF_EMULATOR_DEVICES=2
    method=staggered topk=0 accumulate=device steps=4
    for n in 1 2; do
        check "traffic and memory of $n emulated GPU(s)" as_planned $n gpu "$emulated" cuda
    done
fi
finish
