"""The tasks of tests/bench/accuracy_table.py, their settings, and the ways of training that it compares."""

import pathlib

# Of each task: its folder, the columns that hold sentences (a number where the file has no header),
# the metric of the table, and its hyper-parameters.
TASKS = {
    "sst2": ("SST-2", ["sentence"], "accuracy", {"learning_rate": 1e-3, "num_train_epochs": 2}),
    "cola": ("CoLA", [3], "matthews_correlation", {"learning_rate": 1e-3, "num_train_epochs": 4}),
    "mrpc": ("MRPC", ["#1 String", "#2 String"], "accuracy",
             {"learning_rate": 1e-3, "num_train_epochs": 2}),
    "rte": ("RTE", ["sentence1", "sentence2"], "accuracy",
            {"learning_rate": 5e-4, "num_train_epochs": 2}),
    "stsb": ("STS-B", ["sentence1", "sentence2"], "pearson",
             {"learning_rate": 1e-3, "num_train_epochs": 3}),
}
METRIC_TITLES = {"accuracy": "accuracy", "f1": "F1", "pearson": "Pearson",
                 "matthews_correlation": "Matthews"}

COMMON = {"per_device_train_batch_size": 32, "per_device_eval_batch_size": 64,
          "max_seq_length": 128, "weight_decay": 0.01, "warmup_ratio": 0.1,
          "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "logging_steps": 5,
          "save_strategy": "no"}
DROPOUT = {"embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1}

# With a pretrained model: its own dropout, about as much of SST-2 as the others have, and few epochs: on two
# cores one run of each task takes about an hour.
PRETRAINED_COMMON = {**COMMON, "per_device_train_batch_size": 16, "learning_rate": 5e-5}
PRETRAINED_TASKS = {"cola": {"num_train_epochs": 1}, "mrpc": {"num_train_epochs": 2},
                    "stsb": {"num_train_epochs": 1}, "rte": {"num_train_epochs": 2},
                    "sst2": {"num_train_epochs": 1, "max_train_samples": 10000}}

LANGUAGE_MODEL = {"config_name": "gpt", "task_name": "lm", "num_train_epochs": 4,
                  "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8,
                  "max_seq_length": 128, "learning_rate": 3e-3, "weight_decay": 0.01,
                  "warmup_ratio": 0.1, "lr_scheduler_type": "linear", "seed": 1,
                  "logging_steps": 100, "save_strategy": "no"}

OFFLOAD = {"zero_optimization.stage": 2, "zero_optimization.offload_optimizer.device": "cpu"}
ZENFLOW = {**OFFLOAD, "zero_optimization.zenflow.topk_ratio": 0.05,
           "zero_optimization.zenflow.select_strategy": "auto",
           "zero_optimization.zenflow.overlap_step": "true"}
METHODS = {
    "adamw": ("AdamW", {}),
    "zero_offload": ("ZeRO-Offload", OFFLOAD),
    "zenflow": ("ZenFlow", {**ZENFLOW, "zero_optimization.zenflow.update_interval": 4}),
    "zenflow_auto": ("ZenFlow auto",
                     {**ZENFLOW, "zero_optimization.zenflow.update_interval": "auto"}),
    "zenflow_keep_up": ("ZenFlow keep_up",
                        {**ZENFLOW, "zero_optimization.zenflow.update_interval": "keep_up"}),
    "witness": ("Transformers' AdamW", {"witness": True}),  # by --witness alone
}
OWN_METHODS = [method for method in METHODS if method != "witness"]
DEFERRED_LR_SCALE = "zero_optimization.zenflow.deferred_lr_scale"
DEFERRED_UPDATE = "zero_optimization.zenflow.deferred_update"
SELECT_STRATEGY = "zero_optimization.zenflow.select_strategy"
SELECT_INTERVAL = "zero_optimization.zenflow.select_interval"


def method_title(method, settings):
    scale = settings.get(DEFERRED_LR_SCALE)
    every = settings.get(SELECT_INTERVAL)
    return (METHODS[method][0] + (f", scale {scale}" if scale else "") + ", all steps" * (DEFERRED_UPDATE in settings)
            + (f", choice every {every}" if every else ""))


def read_rows(glue, task, split):
    """All rows of a split's file, in its order; and of each column its place, where it has a header."""
    folder, columns, _, _ = TASKS[task]
    path = pathlib.Path(glue, folder, f"{split}.tsv")
    # CR and LF alone end a row: the texts hold other characters that str.splitlines breaks at.
    text = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    rows = [line.split("\t") for line in text.split("\n") if line]
    header = rows.pop(0) if isinstance(columns[0], str) else range(len(rows[0]))
    return rows, {name: place for place, name in enumerate(header)}
