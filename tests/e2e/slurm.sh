#!/usr/bin/env bash
# scripts/slurm/zf_train.sbatch under a real Slurm, of one node, that lives for this test: jobs that are
# preempted, run out of time or are told to stop go back into the queue, and end in the model of a run
# that was never stopped; by srun with PMIx and by mpirun.

. tests/e2e/lib/common.sh "$@"
[ "$(id -u)" = 0 ] || skip "slurmd wants to be root"
for tool in slurmctld slurmd munged srun sbatch; do
    command -v $tool >/dev/null || skip "$tool is not installed (apt-get install slurm-wlm)"
done
need mpirun pgrep

daemons=()
trap 'kill "${daemons[@]}" 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT

# A Slurm of its own: keys, sockets, ports and state in $scratch.
chmod 755 "$scratch"
mkdir "$scratch"/{munge,state,spool}
chmod 700 "$scratch/munge"
dd if=/dev/urandom of="$scratch/munge/key" bs=128 count=1 status=none
chmod 600 "$scratch/munge/key"
munged --force --foreground --key-file="$scratch/munge/key" --socket="$scratch/munge.socket" --pid-file="$scratch/munge/pid" \
    --log-file="$scratch/munge/log" --seed-file="$scratch/munge/seed" >/dev/null 2>&1 &
daemons+=($!)
port=$((20000 + $$ % 20000)) host=$(hostname)
export SLURM_CONF=$scratch/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket
CredType=cred/munge
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=3600
KillWait=10
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=2
PartitionName=high Nodes=$host PriorityTier=10 PreemptMode=OFF
END
slurmctld -D -c >"$scratch/slurmctld.out" 2>&1 &
daemons+=($!)
slurmd -D -N "$host" >"$scratch/slurmd.out" 2>&1 &
daemons+=($!)
for ((i = 0; i < 150; i++)); do
    if sinfo -h -o %t 2>/dev/null | grep -q idle; then break; fi
    sleep 0.2
done
if ! sinfo -h -o %t 2>/dev/null | grep -q idle; then
    tail -n 5 "$scratch"/slurm{ctld,d}.{out,log} "$scratch/munge/log" || true
    skip "Slurm does not start here"
fi

state() { # state JOB
    scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'
}
await() { # await JOB STATE: within two minutes
    local i
    for ((i = 0; i < 600; i++)); do
        [ "$(state "$1")" != "$2" ] || return 0
        sleep 0.2
    done
    echo "job $1 is $(state "$1"), not $2"
    return 1
}
restarts() { # restarts JOB
    scontrol show job "$1" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p'
}
await_step() { # await_step FOLDER STEP: within two minutes
    local i
    for ((i = 0; i < 1200; i++)); do
        ! grep -q "\"step\": $2," "$1/trainer_log.jsonl" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

export ZF_TRAIN=$train
run=(--config "$steady/zenflow.json" "${tiny[@]}" --per_device_train_batch_size 8 --max_steps 5000 --save_strategy no)
whole=$scratch/whole
check "the run that is never stopped" ranks 2 "$train" "${run[@]}" --output_dir "$whole"

# The job may go on at once where Slurm would make a requeued one wait.
submit() { # submit OPTION... -- ARGUMENT...: the job's number, in $id
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    id=$(sbatch --parsable --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-task=0 --output="$scratch/%j.log" \
        "${options[@]}" scripts/slurm/zf_train.sbatch "${@:2}")
}
go_on() { # Slurm begins a requeued job after two minutes, unless it is told to
    local i
    for ((i = 0; i < 300; i++)); do
        if [ "$(restarts "$id")" = "$1" ] && [ "$(state "$id")" = PENDING ] &&
            ! pgrep -f "slurmstepd: \[$id\." >/dev/null; then # what is left of the last start is gone
            sleep 2 # within the second in which it was revoked, slurmd would refuse its credential
            scontrol update JobId="$id" StartTime=now && return 0
        fi
        if [ "$(restarts "$id")" = "$1" ] && [ "$(state "$id")" = RUNNING ]; then return 0; fi
        sleep 0.2
    done
    return 1
}

for launcher in srun mpirun; do
    export LAUNCHER=$launcher
    out=$scratch/$launcher
    submit -- "${run[@]}" --output_dir "$out"
    check "$launcher: it trains" await_step "$out" 10
    check "$launcher: another job takes its place" sbatch --parsable --partition=high --ntasks=2 --output=/dev/null --wrap "sleep 2"
    check "$launcher: it goes back into the queue" go_on 1
    check "$launcher: what it has done is saved" test -n "$(ls -d "$out"/checkpoint-* 2>/dev/null)"
    last=$(find "$out" -name 'checkpoint-*' | sed 's/.*-//' | sort -n | tail -n 1)
    check "$launcher: it goes on" await_step "$out" $((${last:-0} + 10))
    check "$launcher: it is told that its time is over" scancel --batch --signal=USR1 "$id"
    check "$launcher: it goes back into the queue again" go_on 2
    check "$launcher: it ends" await "$id" COMPLETED
    check "$launcher: says how it went on" test "$(grep -c '^resuming from ' "$scratch/$id.log")" = 2
    check "$launcher: gives the model of the run that was never stopped" cmp "$whole/model.safetensors" "$out/model.safetensors"
    check "$launcher: and its log" compare "$whole/trainer_log.jsonl" "$out/trainer_log.jsonl" 0
    [ $failures = 0 ] || tail -n 30 "$scratch/$id.log" "$scratch"/slurm{ctld,d}.log
done

# What is no preemption ends the job.
submit -- "${run[@]}" --output_dir "$scratch/bad" --max_steps x
check "a fault ends the job" await "$id" FAILED
check "and says what it was" grep -q '^zf-train: --max_steps' "$scratch/$id.log"
finish
