#!/usr/bin/env bash
# update_interval "keep_up", by plan: no longer interval makes steps shorter, a shorter one makes them longer; a slow link
# and a slow host ask for longer ones.

. tests/e2e/lib/common.sh "$@"
need python3

plan() { # plan MACHINE SEQUENCES OPTION...: "S milliseconds", by plan
    local machine=$1 seqs=$2
    shift 2
    "$build/zf-bench" train --plan "$machine" --preset gpt2-medium --seqs "$seqs" --length 512 "$@" --json "$scratch/plan.json" >/dev/null
    python3 -c 'import json, sys
m, = json.load(open(sys.argv[1]))["methods"]
print(int(m["update_interval"]), 1e3 * m["median_seconds"])' "$scratch/plan.json"
}
at() { plan "$1" "$2" --method staggered --update_interval "$3" "${@:4}" | cut -d" " -f2; }
is() { python3 -c "assert $1"; }

for machine in a100-80gb h100; do
    for seqs in 2 8; do
        read -r s ms < <(plan $machine $seqs --method keep_up)
        check "$machine, $seqs sequences: $s steps, $ms ms; one step less takes longer" is "$(at $machine $seqs $((s - 1))) > 1.02 * $ms"
        for longer in $((s + 2)) $((2 * s)); do
            check "and $longer steps no shorter" is "$(at $machine $seqs $longer) > 0.97 * $ms"
        done
    done
done

# What the host does in every step besides counts too, and so does what the link is taken for.
for options in "--offload" "--offload_param 12"; do
    for machine in h100 rtx-4090; do
        # shellcheck disable=SC2086 # they are words
        read -r s ms < <(plan $machine 4 --method keep_up $options)
        # shellcheck disable=SC2086
        check "$machine, $options: $s steps, $ms ms; half of them take longer" is "$(at $machine 4 $(((s + 1) / 2)) $options) > 1.05 * $ms"
        # shellcheck disable=SC2086
        check "and $((2 * s)) steps no shorter" is "$(at $machine 4 $((2 * s)) $options) > 0.97 * $ms"
    done
done

python3 - "$scratch/slow.json" <<'END'
import json, sys
machine = json.load(open("configs/machines/h100.json"))
machine["link"]["bytes_per_second"]["value"] /= 8
json.dump(machine, open(sys.argv[1], "w"))
END
read -r s ms < <(plan "$scratch/slow.json" 8 --method keep_up)
check "a link of an eighth of the rate: $s steps" is "$s >= 12"
read -r s ms < <(plan h100 8 --method keep_up --pt_reserved_cores_perc 0.95)
check "few workers: $s steps" is "$s >= 6"
finish
