#!/usr/bin/env bash
# A rank that is killed while training ends the job within seconds, with a status that says so, and
# leaves no other rank behind.

. tests/e2e/lib/common.sh "$@"
need mpirun pgrep

job=""
trap 'if [ -n "$job" ]; then kill "$job" 2>/dev/null || true; fi; rm -rf "$scratch"' EXIT

for engine in adamw zenflow; do
    out=$scratch/$engine
    mpirun -n 3 --oversubscribe --bind-to none "$train" --config "$steady/$engine.json" "${tiny[@]}" --train_batch_size 12 \
        --per_device_train_batch_size 4 --max_steps 1000000 --output_dir "$out" \
        >"$scratch/log" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do
        if grep -q '"step": 4,' "$out/trainer_log.jsonl" 2>/dev/null; then break; fi
        sleep 0.1
    done
    mapfile -t pids < <(pgrep -P "$job" || true)
    check "$engine: three ranks train" test "${#pids[@]}" = 3
    if [ "${#pids[@]}" != 3 ]; then
        tail -n 20 "$scratch/log"
        finish
    fi
    start=$SECONDS status=0
    kill -9 "${pids[1]}"
    wait "$job" || status=$?
    job=""
    check "$engine: the job ends with a non-zero status" test "$status" != 0
    check "$engine: it ends within 10 seconds" test $((SECONDS - start)) -le 10
    check "$engine: the other ranks are gone soon" are_gone "${pids[@]}"
    check "$engine: no model is written" test ! -e "$out/model.safetensors"
done
finish
