"""Whether Transformers gives a test split's sentences, or pairs of them, the labels of a submission.

    predict.py MODEL TEST SUBMISSION [MAX_LENGTH]

Exits with a fault unless they are all the same."""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, test, submission, *length = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model, loaded = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
faults = {k: v for k, v in loaded.items() if v}
assert not faults, faults
model.eval()
with open(test, encoding="utf-8") as f:
    header, *rows = [line.rstrip("\r\n").split("\t") for line in f]
columns = [i for i, name in enumerate(header) if name in ("sentence", "#1 String", "#2 String")]
with open(submission, encoding="utf-8") as f:
    ours = [line.rstrip("\n").split("\t")[1] for line in f][1:]
assert len(rows) == len(ours) > 0, (len(rows), len(ours))
other = []
with torch.no_grad():
    for i, row in enumerate(rows):
        inputs = tokenizer(*[row[c] for c in columns], truncation=True, max_length=int(*length or [64]),
                           return_tensors="pt")
        theirs = model.config.id2label[int(model(**inputs).logits.argmax())]
        if theirs != ours[i]:
            other.append((i, row, theirs, ours[i]))
assert not other, f"{len(other)} of {len(ours)} differ: {other[:3]}"
assert len(set(ours)) == 2, "a model that always says the same shows nothing"
print(f"{len(ours)} rows have the same labels")
