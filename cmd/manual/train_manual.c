#include "cmd/config/config.h"
#include "cmd/manual/manual.h"

struct manual *manual_of_train(void)
{
    struct manual *m = manual_create("zf-train", "fine-tunes GPT models, their optimizer state in "
                                                 "host memory, without waiting for the host");
    manual_add_text(m, "Synopsis", true,
                    "  zf-train [--config FILE] [--option value] ...\n"
                    "  mpirun -n RANKS zf-train ...");
    manual_add_text(
        m, "Description", true,
        "Fine-tunes GPT models on GLUE tasks, on examples of your own, on plain text or on\n"
        "conversations. FILE is a DeepSpeed JSON with one more block, \"training_arguments\", in\n"
        "Hugging Face names; every key of either is an option too, and an option outranks FILE.\n"
        "Defaults stand in parentheses. true may be left out, and --no_NAME is --NAME false.");
    config_add_options(m);
    manual_add_text(m, "Other keys", true,
                    "Other keys of DeepSpeed and Transformers are accepted with a warning where "
                    "they have no meaning\nhere, and refused where the run would not be what they "
                    "ask for.");
    manual_add_text(m, "Exit status", true,
                    "  0   all is done\n"
                    "  1   it failed, and says why in a sentence\n"
                    "  2   the command line is wrong, and it says what\n"
                    "  75  it was stopped by a signal or max_runtime, what it has done is saved, "
                    "and the same command\n"
                    "      with --resume_from_checkpoint latest goes on\n"
                    "Under mpirun the status is mpirun's.");
    manual_add_text(m, "Environment", false,
                    "  OMP_NUM_THREADS       threads of a rank\n"
                    "  CUDA_VISIBLE_DEVICES  the GPUs that are used\n"
                    "  ZF_COMM=mpi           ranks exchange by MPI, where NCCL could be used\n"
                    "  GOMP_SPINCOUNT        how long threads spin before they sleep (1000)");
    manual_add_text(m, "Files", false,
                    "output_dir holds the model as Transformers loads it, all_results.json, "
                    "trainer_log.jsonl,\n"
                    "zf_train_config.json, which is the effective configuration and gives the same "
                    "run, and\n"
                    "checkpoint-N folders.");
    manual_add_text(m, "Examples", false,
                    "A GLUE task, two ranks:\n"
                    "\n"
                    "  mpirun -n 2 zf-train --config /usr/share/zf-train/configs/zenflow.json \\\n"
                    "      --task_name cola --data_dir ~/glue --model_name_or_path ~/gpt2 \\\n"
                    "      --output_dir output/cola\n"
                    "\n"
                    "Texts with labels, in a CSV file, and then a sentence:\n"
                    "\n"
                    "  zf-train --train_file intents.csv --label_column category \\\n"
                    "      --model_name_or_path ~/gpt2 --output_dir output/intents\n"
                    "  zf-run output/intents \"I lost my card\"\n"
                    "\n"
                    "What a run would take on a machine that is not there:\n"
                    "\n"
                    "  zf-train --config my.json --plan h100");
    manual_add_text(m, "See also", false, "zf-run(1), zf-bench(1), mpirun(1)");
    return m;
}
