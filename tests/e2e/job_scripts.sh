#!/usr/bin/env bash
# The job scripts, with stand-ins for Slurm's and PBS's commands that write down how they were called: what is
# launched, that a signal reaches the launcher, and what follows which status. e2e_slurm has a real Slurm.

. tests/e2e/lib/common.sh "$@"

if command -v shellcheck >/dev/null; then
    check "shellcheck" shellcheck -S warning scripts/*.sh scripts/slurm/zf_train.sbatch scripts/pbs/zf_train.pbs
    check "shellcheck, to the last word" shellcheck scripts/slurm/zf_train.sbatch scripts/pbs/zf_train.pbs \
        scripts/finetune_gpt_glue.sh
else
    echo "shellcheck is not installed: scripts are only run"
fi

mkdir "$scratch/bin"
cat >"$scratch/bin/stand-in" <<'END'
#!/usr/bin/env bash
# Ends as $STATUS says, at once, or with "USR1", when it is told by that signal, with 75.
name=${0##*/}
if [ "$*" = --mpi=list ]; then
    echo "$MPI_TYPES"
    exit
fi
echo "$name $*" >>"$CALLS"
case $name,$STATUS in
scontrol,* | qsub,*) exit "${QUEUE_STATUS:-0}" ;;
*,USR1)
    trap 'echo "$name was told" >>"$CALLS"; exit 75' USR1
    trap 'echo "$name was ended" >>"$CALLS"; exit 143' TERM
    echo ready >>"$CALLS"
    while :; do sleep 0.05; done
    ;;
*) exit "$STATUS" ;;
esac
END
chmod +x "$scratch/bin/stand-in"
for name in srun mpirun scontrol qsub; do ln -s stand-in "$scratch/bin/$name"; done
export PATH=$scratch/bin:$PATH CALLS=$scratch/calls MPI_TYPES="none pmi2 pmix" ZF_TRAIN=my-train
export SLURM_NTASKS=4 SLURM_CPUS_PER_TASK=3

# job EXPECTED STATUS SCRIPT ARGUMENT...: runs it; SIGNAL: is sent when it is ready
job() {
    local expected=$1 status=0
    shift
    rm -f "$CALLS"
    STATUS=$1 bash "${@:2}" >"$scratch/printed" 2>&1 &
    if [ "$1" = USR1 ]; then
        for ((i = 0; i < 200; i++)); do
            ! grep -qs ready "$CALLS" || break
            sleep 0.05
        done
        kill -"$SIGNAL" $!
    fi
    wait $! || status=$?
    check "$2 $1 ${SIGNAL:-}: status $expected" test "$status" = "$expected"
}
called() { # called LINE: exactly so
    check "called: $1" grep -qxF -- "$1" "$CALLS"
}

slurm=scripts/slurm/zf_train.sbatch
job 1 0 $slurm --output_dir o
check "Slurm: not without sbatch" grep -q "SLURM_JOB_ID: is not set: this script is for sbatch" "$scratch/printed"
export SLURM_JOB_ID=17
job 0 0 $slurm --output_dir "my out"
called "srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=3 --cpu-bind=cores my-train --output_dir my out --resume_from_checkpoint latest"
check "Slurm: what has ended stays so" not grep -q scontrol "$CALLS"
for words in "--resume_from_checkpoint /old" --resume_from_checkpoint=/old; do
    # shellcheck disable=SC2086 # they are words
    job 1 0 $slurm --output_dir o $words
    check "Slurm: another checkpoint is not passed over" grep -q -- "there is --resume_from_checkpoint.*, but" "$scratch/printed"
    check "and nothing is launched" not grep -q my-train "$CALLS"
done
MPI_TYPES="none pmi2" job 0 0 $slurm --output_dir o
called "mpirun -n 4 --map-by slot:PE=3 --bind-to core my-train --output_dir o --resume_from_checkpoint latest"
LAUNCHER=torchrun job 1 0 $slurm --output_dir o
check "Slurm: no such launcher" grep -q 'LAUNCHER is "torchrun", but it is srun or mpirun' "$scratch/printed"
for launcher in srun mpirun; do
    for SIGNAL in USR1 TERM; do
        LAUNCHER=$launcher job 0 USR1 $slurm --output_dir o
        called "$launcher was told"
        called "scontrol requeue 17"
    done
done
SIGNAL=''
job 1 1 $slurm --output_dir o
check "Slurm: a fault ends the job" not grep -q scontrol "$CALLS"
SLURM_RESTART_COUNT=5 MAX_REQUEUES=5 job 75 75 $slurm --output_dir o
check "Slurm: not for ever" not grep -q scontrol "$CALLS"
QUEUE_STATUS=1 job 75 75 $slurm --output_dir o
called "scontrol requeue 17"

pbs=$PWD/scripts/pbs/zf_train.pbs
printf 'node1\nnode1\nnode2\nnode2\n' >"$scratch/nodes"
export PBS_NODEFILE=$scratch/nodes PBS_O_WORKDIR=$scratch NCPUS=2
job 1 0 "$pbs"
check "PBS: not without qsub" grep -q "PBS_JOBID: is not set: this script is for qsub" "$scratch/printed"
export PBS_JOBID=9.server PBS_JOBNAME=mine
job 1 0 "$pbs"
check "PBS: not without arguments" grep -q "ARGS: is not set" "$scratch/printed"
export ARGS="--config c.json --output_dir o" MAX_RUNTIME=01:50:00
job 0 0 "$pbs"
called "mpirun -n 4 --hostfile $scratch/nodes --map-by slot:PE=2 --bind-to core my-train --config c.json --output_dir o --max_runtime 01:50:00 --resume_from_checkpoint latest"
for SIGNAL in USR1 TERM; do
    job 0 USR1 "$pbs"
    called "mpirun was told"
    called "qsub -N mine -v ARGS,MAX_RUNTIME=01:50:00,ZF_TRAIN scripts/pbs/zf_train.pbs"
done
SIGNAL=''
SCRIPT=$pbs job 0 75 "$pbs"
called "qsub -N mine -v ARGS,MAX_RUNTIME=01:50:00,ZF_TRAIN,SCRIPT $pbs"
ARGS=$'--config c.json\n  --output_dir o\n' job 0 0 "$pbs"
called "mpirun -n 4 --hostfile $scratch/nodes --map-by slot:PE=2 --bind-to core my-train --config c.json --output_dir o --max_runtime 01:50:00 --resume_from_checkpoint latest"
ARGS="$ARGS --resume_from_checkpoint /old" job 1 0 "$pbs"
check "PBS: another checkpoint is not passed over" grep -q "ARGS has --resume_from_checkpoint, but" "$scratch/printed"
ARGS="$ARGS --max_runtime 1h" job 1 0 "$pbs"
check "PBS: nor another time" grep -q "ARGS has --max_runtime, but that is said by MAX_RUNTIME" "$scratch/printed"
job 0 75 "$pbs"
QUEUE_STATUS=1 job 75 75 "$pbs"
called "qsub -N mine -v ARGS,MAX_RUNTIME=01:50:00,ZF_TRAIN scripts/pbs/zf_train.pbs"
job 1 1 "$pbs"
check "PBS: a fault ends the job" not grep -q qsub "$CALLS"
finish
