#!/usr/bin/env python3
"""One run of tests/bench/accuracy_table.py by Transformers: its Trainer's AdamW, with the settings of the table's own runs.

    python accuracy_witness.py SETTINGS MODEL GLUE SEED OUT     (settings: a JSON object of zf-train's options)

Reads GLUE's files itself, pads each batch to its longest pair, and writes as JSON to the file OUT what the table needs: the
metric on the dev set, the training losses, steps, examples and seconds. Needs torch, transformers, accelerate and numpy.
"""
import json
import pathlib
import sys
import tempfile

import numpy
import torch
import transformers

# Of each task: its folder, whether its files have a header, the columns of the texts and of the label, and the labels.
TASKS = {
    "sst2": ("SST-2", ["sentence"], "label", ["0", "1"]),
    "cola": ("CoLA", [3], 1, ["0", "1"]),
    "mrpc": ("MRPC", ["#1 String", "#2 String"], "Quality", ["0", "1"]),
    "rte": ("RTE", ["sentence1", "sentence2"], "label", ["entailment", "not_entailment"]),
    "stsb": ("STS-B", ["sentence1", "sentence2"], "score", None),
}


def read_examples(glue, task, split, most):
    folder, texts, label, labels = TASKS[task]
    text = pathlib.Path(glue, folder, f"{split}.tsv").read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    rows = [line.split("\t") for line in text.split("\n") if line]
    if isinstance(label, str):
        header = rows.pop(0)
        texts, label = [header.index(name) for name in texts], header.index(label)
    return [{"texts": [row[t] for t in texts], "label": labels.index(row[label]) if labels else float(row[label])}
            for row in rows[:most]]


class Examples(torch.utils.data.Dataset):
    def __init__(self, tokenizer, examples, longest):
        self.rows = [{**tokenizer(*e["texts"], truncation=True, max_length=longest), "labels": e["label"]} for e in examples]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def metric(task, predictions, labels):
    if task == "stsb":
        return float(numpy.corrcoef(predictions[:, 0], labels)[0, 1])
    chosen = predictions.argmax(axis=1)
    if task == "cola":  # Matthews' correlation of two classes is Pearson's
        return float(numpy.corrcoef(chosen, labels)[0, 1]) if chosen.std() > 0 else 0.0
    return float((chosen == labels).mean())


def train(settings, model_name, glue, seed, folder):
    task = settings["task_name"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_name)
    n_labels = len(TASKS[task][3] or [0])
    train_set, dev_set = (Examples(tokenizer, read_examples(glue, task, split, settings.get(most)), settings["max_seq_length"])
                          for split, most in (("train", "max_train_samples"), ("dev", "max_eval_samples")))
    transformers.set_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        model_name, num_labels=n_labels, dtype=torch.float32, pad_token_id=tokenizer.pad_token_id,
        problem_type=None if n_labels > 1 else "regression")
    same = ["per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "learning_rate", "weight_decay",
            "lr_scheduler_type", "max_grad_norm", "logging_steps", "save_strategy"]
    trainer = transformers.Trainer(
        model=model, train_dataset=train_set, eval_dataset=dev_set, processing_class=tokenizer,
        compute_metrics=lambda p: {"metric": metric(task, p.predictions, p.label_ids)},
        args=transformers.TrainingArguments(output_dir=folder, seed=seed, use_cpu=True, report_to="none",
                                            warmup_steps=settings["warmup_ratio"], **{key: settings[key] for key in same}))
    done = trainer.train()
    return {"metric": trainer.evaluate()["eval_metric"], "log": [r for r in trainer.state.log_history if "loss" in r],
            "global_step": trainer.state.global_step, "train_samples": len(train_set), "eval_samples": len(dev_set),
            "train_runtime": done.metrics["train_runtime"],
            "versions": f"Transformers {transformers.__version__}, PyTorch {torch.__version__}"}


def main():
    settings, model, glue, seed, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        record = train(json.loads(settings), model, glue, int(seed), folder)
    pathlib.Path(out).write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
