#!/usr/bin/env python3
"""Training speed of zf-train beside PyTorch and Transformers on the CPU, in one run.

Workloads, each measured by turns (ours, theirs, ours, ...), so that a machine whose speed drifts
drifts for both; the figures are medians over rounds of the median step:

  gpt2       GPT-2 small's shape (12 layers, width 768, vocabulary 50,257), 8 sequences of 128 tokens
  sst2       the same model on real SST-2 batches of 32 sentences; Transformers pads each batch to its longest
  smollm2    SmolLM2-135M as a language model on real text, 8 sequences of 128 tokens
  mrpc       SmolLM2-135M on real MRPC batches of 16 pairs; Transformers pads each batch to its longest
  run_glue   the same, but Transformers pads all to 128 tokens: run_glue.py's pad_to_max_length is true by default

The first two train GPT2ForSequenceClassification from random initialisation, all in fp32 with AdamW; GPT-2
with dropout 0.1. PyTorch runs with its own BLAS and fused AdamW on the same threads, and with that attention
which is faster in a first round: scaled-dot-product or eager.

Needs: torch==2.11.0 transformers==5.23.0; GPT-2's tokenizer in a folder, or SmolLM2-135M in one.

  python3 tests/bench/compare_pytorch.py --zf-train build/zf-train --tokenizer gpt2-bpe --glue glue
  python3 tests/bench/compare_pytorch.py --zf-train build/zf-train --smollm2 smollm2 --glue glue --text FILE
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

STEPS, SKIPPED = 8, 3  # steps in a round, and how many of its first are left out


def write_split(path, sentences):
    with open(path, "w", encoding="utf-8") as f:
        f.write("sentence\tlabel\n")
        for i, sentence in enumerate(sentences):
            f.write(f"{sentence}\t{i % 2}\n")


def long_sentences(n):
    """Each of well over 128 tokens."""
    words = "the film is a slow but rather good story about people who never quite meet".split()
    rng = random.Random(1)
    return [" ".join(rng.choice(words) for _ in range(160)) for _ in range(n)]


def sst2_sentences(glue, n):
    with open(os.path.join(glue, "SST-2", "train.tsv"), encoding="utf-8") as f:
        rows = f.read().splitlines()[1:]
    random.Random(2).shuffle(rows)
    return [row.split("\t")[0] for row in rows[:n]]


def mrpc_pairs(glue, n):
    with open(os.path.join(glue, "MRPC", "train.tsv"), encoding="utf-8") as f:
        rows = [line.rstrip("\r").split("\t") for line in f.read().split("\n")[1:] if line]
    random.Random(2).shuffle(rows)
    return rows[:n]


class Workload:
    """What both are given. arguments: zf-train's; batches: of inputs for Transformers, with labels."""

    def __init__(self, name, batch, tokens, arguments, make_model, batches):
        self.name, self.batch, self.tokens, self.arguments = name, batch, tokens, arguments
        self.make_model, self.batches = make_model, batches

    def padding(self):
        masks = [inputs["attention_mask"] for inputs in self.batches]
        return 1 - sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)


def gpt2(transformers, attention):
    config = transformers.GPT2Config(num_labels=2, pad_token_id=50256, attn_implementation=attention)
    return transformers.GPT2ForSequenceClassification(config)


def gpt2_workload(args, torch, transformers, folder, name, sentences, batch, tokens):
    tokenizer = transformers.GPT2TokenizerFast.from_pretrained(args.tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    path = os.path.join(folder, f"{name}.tsv")
    write_split(path, sentences)
    batches = [tokenizer(sentences[i:i + batch], truncation=True, max_length=128, padding=True, return_tensors="pt")
               for i in range(0, batch * STEPS, batch)]
    for inputs in batches:
        inputs["labels"] = torch.tensor([i % 2 for i in range(batch)])
    return Workload(name, batch, tokens,
                    ["--config_name", "gpt2", "--tokenizer_name", args.tokenizer, "--task_name", "sst2",
                     "--train_file", path], lambda attention: gpt2(transformers, attention), batches)


def smollm2_workload(args, torch, transformers, batch, length):
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.smollm2)
    with open(args.text, encoding="utf-8") as f:
        ids = torch.tensor(tokenizer(f.read())["input_ids"][:batch * length * STEPS]).view(STEPS, batch, length)
    batches = [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x} for x in ids]
    load = transformers.AutoModelForCausalLM.from_pretrained
    return Workload("smollm2", batch, length,
                    ["--model_name_or_path", args.smollm2, "--task_name", "lm", "--train_file", args.text,
                     "--max_seq_length", str(length), "--max_train_samples", str(batch * STEPS)],
                    lambda attention: load(args.smollm2, dtype=torch.float32, attn_implementation=attention), batches)


def mrpc_workload(args, torch, transformers, folder, name, padding, batch):
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.smollm2)
    tokenizer.pad_token_id, tokenizer.padding_side = 2, "right"
    rows = mrpc_pairs(args.glue, batch * STEPS)
    path = os.path.join(folder, "mrpc.tsv")
    with open(path, "w", encoding="utf-8") as f:
        f.write("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n")
        f.writelines("\t".join(row) + "\n" for row in rows)
    batches = []
    for i in range(0, len(rows), batch):
        chosen = rows[i:i + batch]
        batches.append(tokenizer([r[3] for r in chosen], [r[4] for r in chosen], truncation=True, max_length=128,
                                 padding=padding, return_tensors="pt"))
        batches[-1]["labels"] = torch.tensor([int(r[0]) for r in chosen])
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    return Workload(name, batch, 0,
                    ["--model_name_or_path", args.smollm2, "--task_name", "mrpc", "--train_file", path],
                    lambda attention: load(args.smollm2, num_labels=2, pad_token_id=2, dtype=torch.float32,
                                           attn_implementation=attention), batches)


def run_ours(args, workload):
    """Seconds of each counted step."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            args.zf_train, *workload.arguments, "--no_do_eval", "--device", "cpu", "--output_dir", out,
            "--overwrite_output_dir", "--per_device_train_batch_size", str(workload.batch), "--max_steps",
            str(STEPS), "--logging_steps", "1", "--learning_rate", "1e-5", "--save_strategy", "no",
            "--num_threads", str(args.threads)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.path.join(out, "trainer_log.jsonl"), encoding="utf-8") as f:
            steps = [entry["step_seconds"] for entry in map(json.loads, f) if "step_seconds" in entry]
    return steps[SKIPPED:]


class Theirs:
    def __init__(self, torch, workload, attention):
        torch.manual_seed(0)
        self.torch, self.batches, self.attention = torch, workload.batches, attention
        self.model = workload.make_model(attention).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def run(self):
        seconds = []
        for inputs in self.batches:
            start = time.perf_counter()
            loss = self.model(**inputs).loss
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            float(loss.detach())
            seconds.append(time.perf_counter() - start)
        return seconds[SKIPPED:]


def faster(torch, workload):
    """Theirs, with the attention that is faster."""
    candidates = [Theirs(torch, workload, attention) for attention in ("sdpa", "eager")]
    return min(candidates, key=lambda theirs: statistics.median(theirs.run()))


def compare(args, torch, workload):
    """Rounds by turns. Sequences beyond the first STEPS batches are not seen, so ours and theirs draw from
    the same ones."""
    theirs = faster(torch, workload)
    ours_seconds, their_seconds = [], []
    for _ in range(args.rounds):
        ours_seconds.append(statistics.median(run_ours(args, workload)))
        their_seconds.append(statistics.median(theirs.run()))
    ours, their = statistics.median(ours_seconds), statistics.median(their_seconds)
    ratios = sorted(t / o for o, t in zip(ours_seconds, their_seconds))
    unit, per_step = ("tokens", workload.batch * workload.tokens) if workload.tokens else ("sentences", workload.batch)
    print(f"{workload.name}: {len(ours_seconds)} rounds of {STEPS - SKIPPED} counted steps, batch {workload.batch}, "
          f"padding {workload.padding():.0%}, PyTorch's attention {theirs.attention}")
    print(f"  zf-train  {ours * 1e3:8.1f} ms/step  {per_step / ours:9.1f} {unit}/s")
    print(f"  PyTorch   {their * 1e3:8.1f} ms/step  {per_step / their:9.1f} {unit}/s")
    print(f"  ratio     {statistics.median(ratios):.2f} (of rounds: {', '.join(f'{r:.2f}' for r in ratios)})")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--zf-train", required=True)
    parser.add_argument("--tokenizer", help="folder with GPT-2's vocab.json and merges.txt: gpt2 and sst2")
    parser.add_argument("--smollm2", help="folder of SmolLM2-135M: smollm2, mrpc and run_glue")
    parser.add_argument("--glue", help="folder with SST-2/train.tsv and MRPC/train.tsv: sst2, mrpc, run_glue")
    parser.add_argument("--text", help="a text file: smollm2")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    import torch
    import transformers
    assert torch.__version__.startswith("2.11.0"), torch.__version__
    assert transformers.__version__ == "5.23.0", transformers.__version__
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        if args.tokenizer:
            compare(args, torch, gpt2_workload(args, torch, transformers, folder, "gpt2", long_sentences(8 * STEPS),
                                               8, 128))
        if args.tokenizer and args.glue:
            compare(args, torch, gpt2_workload(args, torch, transformers, folder, "sst2",
                                               sst2_sentences(args.glue, 32 * STEPS), 32, 0))
        if args.smollm2 and args.text:
            compare(args, torch, smollm2_workload(args, torch, transformers, 8, 128))
        if args.smollm2 and args.glue:
            compare(args, torch, mrpc_workload(args, torch, transformers, folder, "mrpc", "longest", 16))
            compare(args, torch, mrpc_workload(args, torch, transformers, folder, "run_glue", "max_length", 16))


if __name__ == "__main__":
    main()
