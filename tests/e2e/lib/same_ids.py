"""Whether Transformers gives a folder's ids in another folder too.

    same_ids.py SOURCE WRITTEN [SOURCE WRITTEN]..."""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import AutoTokenizer

with open("tests/fixtures/tokenizer/shapes/texts.json", encoding="utf-8") as f:
    texts = json.load(f)["random"]
pairs = list(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
assert pairs
for source, written in pairs:
    ours, theirs = (AutoTokenizer.from_pretrained(folder)(texts, verbose=False)["input_ids"] for folder in (written, source))
    other = [text for text, a, b in zip(texts, ours, theirs) if a != b]
    assert not other, f"{written} and {source}: the ids of {len(other)} of {len(texts)} texts differ: {other[:3]}"
print(f"{len(pairs)} folders give the same ids for {len(texts)} texts")
