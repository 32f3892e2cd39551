#!/usr/bin/env bash
# Two nodes, each a network namespace with a name of its own, and Open MPI over TCP between them: the model of two
# ranks on one node; a rank that is stopped on the other node is named with its node; SIGUSR1 reaches it.

. tests/e2e/lib/common.sh "$@"
need mpirun pgrep ip unshare
[ "$(id -u)" = 0 ] || skip "network namespaces want root"

tag=zf$$ job=""
leave() {
    if [ -n "$job" ]; then kill -9 "$job" 2>/dev/null || true; fi
    ip netns del "${tag}a" 2>/dev/null || true
    ip netns del "${tag}b" 2>/dev/null || true
    rm -rf "$scratch"
}
trap leave EXIT
ip netns add "${tag}a" 2>/dev/null && ip netns add "${tag}b" && ip link add "${tag}x" netns "${tag}a" type veth peer \
    name "${tag}y" netns "${tag}b" || skip "no network namespaces here"
ip -n "${tag}a" addr add 10.77.0.1/24 dev "${tag}x"
ip -n "${tag}b" addr add 10.77.0.2/24 dev "${tag}y"
for side in a:x b:y; do
    ip -n "$tag${side%:*}" link set lo up
    ip -n "$tag${side%:*}" link set "$tag${side#*:}" up
done
printf '10.77.0.1 slots=1\n10.77.0.2 slots=1\n' >"$scratch/hosts"

cat >"$scratch/ssh" <<END
#!/usr/bin/env bash
# ssh HOST COMMAND..., where the host is one of the two namespaces
while [[ \$1 = -* ]]; do shift; done
case \$1 in 10.77.0.1) node=a ;; *) node=b ;; esac
shift
exec ip netns exec "$tag\$node" unshare --uts bash -c "hostname node-\$node; \$*"
END
chmod +x "$scratch/ssh"
mca=(--mca plm_rsh_agent "$scratch/ssh" --mca btl "tcp,self" --mca btl_tcp_if_include 10.77.0.0/24
    --mca oob_tcp_if_include 10.77.0.0/24)
run=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --per_device_train_batch_size 8 --max_steps 20 --save_strategy no)
on_nodes() { # on_nodes OPTION...: in the background, as $job
    ip netns exec "${tag}a" unshare --uts bash -c 'hostname node-a; exec "$@"' - mpirun "${mca[@]}" --hostfile "$scratch/hosts" \
        -n 2 --bind-to none -x OMP_NUM_THREADS "${run[@]}" "$@" >"$scratch/log" 2>&1 &
    job=$!
}
await_step() { # await_step FOLDER STEP: or the end of the job
    while ! grep -qs "\"step\": $2," "$1/trainer_log.jsonl" && kill -0 "$job" 2>/dev/null; do sleep 0.05; done
}

check "two ranks on one node" ranks 2 "${run[@]}" --output_dir "$scratch/one"
on_nodes --output_dir "$scratch/two"
status=0
wait "$job" || status=$?
job=""
check "two ranks on two nodes" test "$status" = 0
[ "$status" = 0 ] || tail -n 20 "$scratch/log"
check "the same model" cmp "$scratch/one/model.safetensors" "$scratch/two/model.safetensors"
check "the same log" compare "$scratch/one/trainer_log.jsonl" "$scratch/two/trainer_log.jsonl" 0

on_nodes --output_dir "$scratch/stopped" --max_steps 100000
await_step "$scratch/stopped" 4
status=0
kill -USR1 "$job"
wait "$job" || status=$?
job=""
check "SIGUSR1 to mpirun: status 75" test "$status" = 75
check "SIGUSR1 to mpirun: a checkpoint" grep -q '^stopped by SIGUSR1; .* is written' "$scratch/log"

on_nodes --output_dir "$scratch/silent" --max_steps 100000 --ddp_timeout 10
await_step "$scratch/silent" 4
far=$(ip netns pids "${tag}b" | while read -r pid; do
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = zf-train ]; then echo "$pid"; fi
done)
check "there is a rank on the other node" test -n "$far"
began=$SECONDS status=0
kill -STOP "$far"
wait "$job" || status=$?
job=""
check "a rank that is stopped on another node: a non-zero status" test "$status" != 0
check "a rank that is stopped on another node: within 10 + 10 seconds" test $((SECONDS - began)) -le 20
check "a rank that is stopped on another node: is named with it" grep -q \
    "^zf-train: rank 1 (process $far on node-b) is stopped or unreachable" "$scratch/log"
check "a rank that is stopped on another node: is gone" are_gone "$far"
finish
