#!/usr/bin/env bash
# Fine-tunes a GPT on a GLUE task, from nothing: installs what is missing, builds, trains, evaluates.
#
#   bash scripts/finetune_gpt_glue.sh
#       A small GPT from random initialisation on the bundled synthetic sample: a minute or two.
#   TASK=CoLA GLUE_DIR=~/glue MODEL_DIR=~/gpt2 NPROC=2 bash scripts/finetune_gpt_glue.sh
#       The real thing. Further arguments go to zf-train: ... finetune_gpt_glue.sh --learning_rate 3e-5
#
#   TASK        GLUE task: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI
#   GLUE_DIR    folder that holds the tasks' folders (scripts/download_glue.sh makes one)
#   MODEL_DIR   folder with config.json, model.safetensors and a tokenizer (scripts/download_gpt2.sh)
#   OUTPUT_DIR  where results go (default: output/<task> in the project)
#   CONFIG      with TASK: configuration file (default: configs/zenflow.json; the sample has configs/sample.json)
#   NPROC       ranks to start (default 1)
#   LAUNCHER    what starts several ranks: mpirun (default), srun in a Slurm job, or a command of yours,
#               such as "mpirun --hostfile hosts -n 16", which counts whatever NPROC is
#   BUILD_DIR   where zf-train is built (default: build in the project)
#
# Where it was installed with the program, it builds nothing, and output/ is in the current folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    echo "finetune_gpt_glue.sh: $1" >&2
    exit 2
}

if [ -f "$root/CMakeLists.txt" ]; then
    train=${BUILD_DIR:=$root/build}/zf-train output=$root/output
else
    train=$(cd "$root/../../bin" && pwd)/zf-train output=$PWD/output
fi

if [ -z "${TASK:-}${GLUE_DIR:-}${MODEL_DIR:-}" ]; then
    [ -z "${CONFIG:-}" ] || usage "CONFIG is set, but TASK is not: name a GLUE task, such as TASK=CoLA, GLUE_DIR and MODEL_DIR"
    options=(--config "$root/configs/sample.json" --data_dir "$root/data/sample"
        --tokenizer_name "$root/data/sample/tokenizer" --output_dir "${OUTPUT_DIR:-$output/sample}"
        --overwrite_output_dir)
else
    [ -n "${TASK:-}" ] || usage "TASK is not set: name a GLUE task, such as TASK=CoLA"
    [ -n "${GLUE_DIR:-}" ] || usage "GLUE_DIR is not set: name the folder that scripts/download_glue.sh made"
    [ -n "${MODEL_DIR:-}" ] || usage "MODEL_DIR is not set: name the folder that scripts/download_gpt2.sh made"
    options=(--config "${CONFIG:-$root/configs/zenflow.json}" --task_name "$TASK" --data_dir "$GLUE_DIR"
        --model_name_or_path "$MODEL_DIR" --output_dir "${OUTPUT_DIR:-$output/$TASK}")
fi

launcher=()
case ${LAUNCHER:-mpirun} in
mpirun) launcher=(mpirun -n "${NPROC:-1}" --oversubscribe --bind-to none) ;;
srun) launcher=(srun --mpi=pmix --kill-on-bad-exit=1 -n "${NPROC:-1}") ;;
*) read -ra launcher <<<"$LAUNCHER" ;;
esac
if [ "${NPROC:-1}" = 1 ] && [[ ${LAUNCHER:-mpirun} =~ ^(mpirun|srun)$ ]]; then
    launcher=()
fi
if [ "$(id -u)" -eq 0 ]; then # Open MPI asks root to confirm
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
if [ -f "$root/CMakeLists.txt" ]; then
    bash "$root/scripts/setup.sh"
    bash "$root/scripts/build.sh" "$BUILD_DIR"
fi
exec "${launcher[@]}" "$train" "${options[@]}" "$@"
