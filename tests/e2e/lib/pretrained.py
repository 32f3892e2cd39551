"""What zf-train and Transformers are given alike, to train the same steps from the same pretrained model.

    pretrained.py head MODEL FOLDER      a folder of the model with a score head, for classification
    pretrained.py arguments              zf-train's options
    pretrained.py losses LOG EXPECTED TOLERANCE
                                         those of a trainer_log.jsonl are those of make_pretrained.py

Python alone is enough for it."""

import json
import os
import struct
import sys

SEED, STEPS, BATCH, WARMUP_STEPS = 42, 20, 8, 2
LEARNING_RATE, WEIGHT_DECAY = 2e-5, 0.01
ARGUMENTS = ["--task_name", "mrpc", "--seed", SEED, "--max_steps", STEPS, "--per_device_train_batch_size", BATCH,
             "--warmup_steps", WARMUP_STEPS, "--warmup_ratio", 0, "--lr_scheduler_type", "linear",
             "--learning_rate", LEARNING_RATE, "--weight_decay", WEIGHT_DECAY, "--max_grad_norm", 1,
             "--max_seq_length", 128, "--logging_steps", 1]
HEAD_TOKENS = 1000, 2000  # whose embeddings are the score head's rows


def hash_ids(ids):
    """FNV-1a over ids, 31 bits of it."""
    h = 0x811C9DC5
    for i in ids:
        h = (h ^ i) * 0x01000193 & 0xFFFFFFFF
    return h & 0x7FFFFFFF


def philox(counter, key):
    """Philox4x32-10."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def below(n, number, seed):
    attempt = 0
    while True:
        for v in philox((number, 0, attempt, 0x53485546), (seed, 0)):
            if v * n % 2**32 >= 2**32 % n:
                return v * n >> 32
        attempt += 1


def shuffled(n, seed):
    """The first epoch's order."""
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        other = below(i + 1, i, seed)
        order[i], order[other] = order[other], order[i]
    return order


def add_head(model, folder):
    """The model's files as they are, but for two rows more of model.safetensors and what config.json says."""
    with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(model, "model.safetensors"), "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    embeddings = header["model.embed_tokens.weight"]
    row = (embeddings["data_offsets"][1] - embeddings["data_offsets"][0]) // embeddings["shape"][0]
    begins = [embeddings["data_offsets"][0] + token * row for token in HEAD_TOKENS]
    header["score.weight"] = {"dtype": embeddings["dtype"], "shape": [len(begins), embeddings["shape"][1]],
                              "data_offsets": [len(data), len(data) + len(begins) * row]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": 2, "dtype": "float32",
               "pad_token_id": 2}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data + b"".join(data[b:b + row] for b in begins))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    for name in os.listdir(model):
        if name.startswith("tokenizer") or name == "special_tokens_map.json":
            os.symlink(os.path.abspath(os.path.join(model, name)), os.path.join(folder, name))


def compare_losses(log, expected, tolerance):
    with open(log, encoding="utf-8") as f:
        entries = [e for e in map(json.loads, f) if "loss" in e]
    with open(expected, encoding="utf-8") as f:
        theirs = json.load(f)
    assert len(entries) == len(theirs["losses"]) == STEPS, len(entries)
    for mine, their in ("loss", "losses"), ("grad_norm", "grad_norms"):
        off = [abs(e[mine] - t) / t for e, t in zip(entries, theirs[their])]
        print(f"{mine}: {STEPS} steps, relative difference at most {max(off):.1e} (step {off.index(max(off)) + 1})")
        if mine == "loss":
            assert max(off) <= tolerance, off


def main():
    command, *rest = sys.argv[1:]
    if command == "head":
        add_head(*rest)
    elif command == "arguments":
        print(*ARGUMENTS)
    else:
        compare_losses(*rest[:2], float(rest[2]))


if __name__ == "__main__":
    main()
