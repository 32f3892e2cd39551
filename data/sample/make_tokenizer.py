"""Makes data/sample/tokenizer, a small tokenizer, out of GPT-2's.

usage: python3 make_tokenizer.py FOLDER    (with GPT-2's vocab.json and merges.txt)

The first merges of a BPE are themselves a BPE: 256 byte symbols, the first 7,743 merges and
<|endoftext|> make 8,000 tokens, in GPT-2's order. GPT-2's vocabulary is published by OpenAI under
the MIT licence.
"""

import json
import pathlib
import sys

N_MERGES = 7743


def main():
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(__file__).parent / "tokenizer"
    vocab = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    lines = (source / "merges.txt").read_text(encoding="utf-8").splitlines()
    kept = lines[: 1 + N_MERGES]
    tokens = [token for token, _ in sorted(vocab.items(), key=lambda item: item[1])]
    small = {token: i for i, token in enumerate(tokens[: 256 + N_MERGES] + ["<|endoftext|>"])}
    assert lines[0].startswith("#version") and len(small) == 8000
    assert all(line.replace(" ", "") in small for line in kept[1:])

    target.mkdir(exist_ok=True)
    (target / "vocab.json").write_text(json.dumps(small) + "\n", encoding="utf-8")
    (target / "merges.txt").write_text("\n".join(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
