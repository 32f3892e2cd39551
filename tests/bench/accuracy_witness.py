#!/usr/bin/env python3
"""One run of tests/bench/accuracy_table.py by Transformers: its Trainer's AdamW, with the settings of the table's own runs.

    python accuracy_witness.py SETTINGS     (a JSON object of zf-train's options)

Pads each batch to its longest pair, and prints as JSON what the table needs: results by zf-train's names, the training
losses. Needs torch, transformers, accelerate and numpy.
"""
import json
import sys
import tempfile

import numpy
import torch
import transformers

from accuracy_tasks import TASKS, read_rows

# Of each task the column of the label, and the labels; none where it is a score.
LABELS = {"sst2": ("label", ["0", "1"]), "cola": (1, ["0", "1"]), "mrpc": ("Quality", ["0", "1"]),
          "rte": ("label", ["entailment", "not_entailment"]), "stsb": ("score", None)}


def read_examples(glue, task, split, most):
    column, labels = LABELS[task]
    rows, place = read_rows(glue, task, split)
    texts = [place[name] for name in TASKS[task][1]]
    found = [row[place[column]] for row in rows[:most]]
    return [{"texts": [row[t] for t in texts], "label": labels.index(label) if labels else float(label)}
            for row, label in zip(rows, found)]


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


def train(settings, folder):
    task, model_name = settings["task_name"], settings["model_name_or_path"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_name)
    n_labels = len(LABELS[task][1] or [0])
    train_set, dev_set = (
        Examples(tokenizer, read_examples(settings["data_dir"], task, split, settings.get(most)), settings["max_seq_length"])
        for split, most in (("train", "max_train_samples"), ("dev", "max_eval_samples")))
    transformers.set_seed(settings["seed"])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        model_name, num_labels=n_labels, dtype=torch.float32, pad_token_id=tokenizer.pad_token_id,
        problem_type=None if n_labels > 1 else "regression")
    same = ["per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "learning_rate", "weight_decay",
            "lr_scheduler_type", "max_grad_norm", "logging_steps", "save_strategy", "seed"]
    trainer = transformers.Trainer(
        model=model, train_dataset=train_set, eval_dataset=dev_set, processing_class=tokenizer,
        compute_metrics=lambda p: {TASKS[task][2]: metric(task, p.predictions, p.label_ids)},
        args=transformers.TrainingArguments(output_dir=folder, use_cpu=settings["device"] == "cpu", report_to="none", disable_tqdm=True,
                                            warmup_steps=settings["warmup_ratio"], **{key: settings[key] for key in same}))
    trained = trainer.train()
    results = {**trained.metrics, **trainer.evaluate(), "global_step": trainer.state.global_step,
               "train_samples": len(train_set), "eval_samples": len(dev_set),
               "versions": f"Transformers {transformers.__version__}, PyTorch {torch.__version__}"}
    return {"results": results, "log": [r for r in trainer.state.log_history if "loss" in r]}


def main():
    out = sys.stdout
    sys.stdout = sys.stderr  # Transformers prints what it logs
    with tempfile.TemporaryDirectory() as folder:
        found = train(json.loads(sys.argv[1]), folder)
    json.dump(found, out)


if __name__ == "__main__":
    main()
