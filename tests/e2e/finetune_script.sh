#!/usr/bin/env bash
# scripts/finetune_gpt_glue.sh as people run it: on the sample, on a task of theirs, from any folder.

. tests/e2e/lib/common.sh "$@"
need mpirun
dpkg-query -W cmake ninja-build libsentencepiece-dev >/dev/null 2>&1 ||
    skip "the packages that scripts/setup.sh installs are not there"

export BUILD_DIR=$build
short=(--max_train_samples 64 --max_steps 2 --max_eval_samples 16 --logging_steps 1)
has_model() {
    test -s "$1/model.safetensors" && test -s "$1/all_results.json" && test -s "$1/SST-2.tsv"
}

check "from the root" env OUTPUT_DIR="$scratch/a" bash scripts/finetune_gpt_glue.sh "${short[@]}"
cp "$scratch/check.log" "$scratch/printed"
check "from the root: results" has_model "$scratch/a"
check "from the root: a table" grep -q '^eval_accuracy ' "$scratch/printed"
cd "$root/scripts"
check "from inside scripts/" env OUTPUT_DIR="$scratch/b" bash finetune_gpt_glue.sh "${short[@]}"
check "from inside scripts/: the same model" cmp "$scratch/a/model.safetensors" \
    "$scratch/b/model.safetensors"

# A task of the user's: relative paths are relative to where the user is.
mkdir "$scratch/home"
cd "$scratch/home"
cp -r "$scratch/a" my-gpt
cp -r "$root/tests/fixtures/glue" my-glue
check "a task, two ranks" env TASK=MRPC GLUE_DIR=my-glue MODEL_DIR=my-gpt NPROC=2 OUTPUT_DIR=mrpc \
    bash "$root/scripts/finetune_gpt_glue.sh" --per_device_train_batch_size 1 --num_train_epochs 1 \
    --learning_rate 1e-3
cp "$scratch/check.log" "$scratch/printed"
check "a task, two ranks: says so" grep -q 'MRPC: .* 2 rank(s)' "$scratch/printed"
check "a task, two ranks: how they exchange" grep -q 'ranks exchange gradients by MPI' "$scratch/printed"
check "a task, two ranks: results" test -s mrpc/model.safetensors
check "an option passes through" grep -q '"lr": 0.001' mrpc/zf_train_config.json
check "GLUE's F1 is there" grep -q eval_f1 mrpc/all_results.json
cp "$root/configs/zero_offload.json" my.json
check "a configuration of the user's" env CONFIG=my.json TASK=SST-2 GLUE_DIR=my-glue/SST-2 \
    MODEL_DIR="$scratch/home/my-gpt" OUTPUT_DIR=sst2 bash "$root/scripts/finetune_gpt_glue.sh" \
    --per_device_train_batch_size 4 --max_steps 1
check "a configuration of the user's counts" grep -q '"device": "cpu"' sst2/zf_train_config.json
check "a configuration without a task is not the sample's" not env CONFIG=my.json OUTPUT_DIR=none bash "$root/scripts/finetune_gpt_glue.sh"
cp "$scratch/check.log" "$scratch/printed"
check "which is said" grep -q "CONFIG is set, but TASK is not" "$scratch/printed"
check "and nothing is done" test ! -e none

# A launcher of the user's, which here says that it was called and starts two ranks.
cat >launch.sh <<'END'
echo "launched $1 $2" >launched
shift 2
exec mpirun --oversubscribe --bind-to none -n 2 "$@"
END
check "a launcher of the user's" env LAUNCHER="bash launch.sh two ranks" TASK=SST-2 GLUE_DIR=my-glue MODEL_DIR=my-gpt \
    OUTPUT_DIR=launched-sst2 bash "$root/scripts/finetune_gpt_glue.sh" --per_device_train_batch_size 4 --max_steps 1
cp "$scratch/check.log" "$scratch/printed"
check "a launcher of the user's: two ranks" grep -q 'SST-2: .* 2 rank(s)' "$scratch/printed"
check "a launcher of the user's was called" grep -qx "launched two ranks" launched

# srun, as Slurm has it: this one says how it was called, and starts the ranks itself.
mkdir bin
cat >bin/srun <<'END'
#!/usr/bin/env bash
echo "$@" >called
[ "$1 $2 $3" = "--mpi=pmix --kill-on-bad-exit=1 -n" ] || exit 3
exec mpirun --oversubscribe --bind-to none "${@:3}"
END
chmod +x bin/srun
on_slurm() { # on_slurm NPROC
    env PATH="$PWD/bin:$PATH" LAUNCHER=srun NPROC="$1" TASK=SST-2 GLUE_DIR=my-glue MODEL_DIR=my-gpt OUTPUT_DIR=slurm-sst2 \
        bash "$root/scripts/finetune_gpt_glue.sh" --per_device_train_batch_size 4 --max_steps 1 --overwrite_output_dir
}
check "srun" on_slurm 2
cp "$scratch/check.log" "$scratch/printed"
check "srun: two ranks" grep -q 'SST-2: .* 2 rank(s)' "$scratch/printed"
check "srun: how it was called" grep -qx -- "--mpi=pmix --kill-on-bad-exit=1 -n 2 $train --config .*/configs/zenflow.json \
--task_name SST-2 .* --output_dir slurm-sst2 --per_device_train_batch_size 4 --max_steps 1 --overwrite_output_dir" called
check "srun: results" test -s slurm-sst2/all_results.json
rm called
check "srun: one rank needs none" on_slurm 1
check "srun: and calls none" test ! -e called
echo 'exit 7' >bin/srun
status=0
on_slurm 2 >out 2>err || status=$?
check "srun: its status is the script's" test "$status" = 7
rm -rf launch.sh launched launched-sst2 bin slurm-sst2

for missing in TASK GLUE_DIR MODEL_DIR; do
    status=0
    env TASK=CoLA GLUE_DIR=my-glue MODEL_DIR=my-gpt OUTPUT_DIR=no $missing= \
        bash "$root/scripts/finetune_gpt_glue.sh" >out 2>err || status=$?
    check "without $missing: status 2" test "$status" = 2
    check "without $missing: one line that names it" test "$(grep -c "$missing is not set" err)" = \
        "$(wc -l <err)"
done
status=0
env TASK=CoLA GLUE_DIR=nowhere MODEL_DIR=my-gpt OUTPUT_DIR=no \
    bash "$root/scripts/finetune_gpt_glue.sh" >out 2>err || status=$?
check "no such data: status 1" test "$status" = 1
check "no such data: named as the user did" grep -q '^zf-train: nowhere' err
check "nothing else is written" test "$(echo *)" = "err mrpc my-glue my-gpt my.json out sst2"
finish
