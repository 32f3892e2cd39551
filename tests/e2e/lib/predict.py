"""Whether Transformers gives a test split's sentences, or pairs of them, the labels of predict_results_TASK.txt.

    predict.py MODEL TEST PREDICTIONS [MAX_LENGTH]

Sentences go in batches, padded as the folder says. Exits with a fault unless all labels are the same."""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, test, predictions, *length = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model, loaded = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
faults = {k: v for k, v in loaded.items() if v}
assert not faults, faults
model.eval()
with open(test, encoding="utf-8") as f:
    header, *rows = [line.rstrip("\r\n").split("\t") for line in f]
columns = [i for i, name in enumerate(header) if name in ("sentence", "#1 String", "#2 String")]
with open(predictions, encoding="utf-8") as f:
    ours = [line.rstrip("\n").split("\t")[1] for line in f][1:]
assert len(rows) == len(ours) > 0, (len(rows), len(ours))
other = []
with torch.no_grad():
    for begin in range(0, len(rows), 8):
        batch = rows[begin : begin + 8]
        inputs = tokenizer(*[[row[c] for row in batch] for c in columns], truncation=True, padding=True,
                           max_length=int(*length or [64]), return_tensors="pt")
        for i, answer in enumerate(model(**inputs).logits.argmax(-1), begin):
            theirs = model.config.id2label[int(answer)]
            if theirs != ours[i]:
                other.append((i, rows[i], theirs, ours[i]))
assert not other, f"{len(other)} of {len(ours)} differ: {other[:3]}"
assert len(set(ours)) == 2, "a model that always says the same shows nothing"
print(f"{len(ours)} rows have the same labels")
