#!/usr/bin/env python3
"""Training speed of zf-train beside PyTorch and Transformers on the CPU, in one run.

Two workloads, each measured by turns (ours, theirs, ours, ...), so that a machine whose speed drifts
drifts for both; the figures are medians over rounds of the median step:

  gpt2   GPT-2 small's shape (12 layers, width 768, vocabulary 50,257), 8 sequences of 128 tokens
  sst2   the same model on real SST-2 batches of 32 sentences; Transformers pads each batch to its longest

Both train GPT2ForSequenceClassification from random initialisation in fp32 with AdamW and dropout 0.1.
PyTorch runs with its own BLAS, scaled-dot-product attention and fused AdamW on the same threads.

Needs: torch==2.11.0 transformers==5.23.0, and GPT-2's tokenizer in a folder.

  python3 tests/bench/compare_pytorch.py --zf-train build/zf-train --tokenizer gpt2-bpe --glue glue
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


def run_ours(args, folder, batch):
    """Seconds of each counted step, and sequences a step."""
    out = os.path.join(folder, "out")
    command = [
        args.zf_train, "--config_name", "gpt2", "--tokenizer_name", args.tokenizer, "--task_name", "sst2",
        "--train_file", os.path.join(folder, "train.tsv"), "--no_do_eval", "--output_dir", out,
        "--overwrite_output_dir", "--per_device_train_batch_size", str(batch), "--max_steps", str(STEPS),
        "--logging_steps", "1", "--learning_rate", "1e-5", "--save_strategy", "no", "--num_threads",
        str(args.threads)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(out, "trainer_log.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line)["step_seconds"] for line in f]
    return steps[SKIPPED:]


class Theirs:
    def __init__(self, args):
        import torch
        import transformers
        assert torch.__version__.startswith("2.11.0"), torch.__version__
        assert transformers.__version__ == "5.23.0", transformers.__version__
        torch.set_num_threads(args.threads)
        torch.manual_seed(0)
        self.torch = torch
        config = transformers.GPT2Config(num_labels=2, pad_token_id=50256, attn_implementation="sdpa")
        self.model = transformers.GPT2ForSequenceClassification(config).train()
        self.tokenizer = transformers.GPT2TokenizerFast.from_pretrained(args.tokenizer)
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def batches(self, sentences, batch):
        chunks = [sentences[i:i + batch] for i in range(0, batch * STEPS, batch)]
        return [self.tokenizer(c, truncation=True, max_length=128, padding=True, return_tensors="pt")
                for c in chunks]

    def run(self, batches, batch):
        seconds = []
        labels = self.torch.tensor([i % 2 for i in range(batch)])
        for inputs in batches:
            start = time.perf_counter()
            loss = self.model(**inputs, labels=labels).loss
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            float(loss.detach())
            seconds.append(time.perf_counter() - start)
        return seconds[SKIPPED:]


def compare(args, theirs, name, sentences, batch, tokens):
    """One workload: rounds by turns. Sequences beyond the first STEPS batches are not seen, so ours and
    theirs draw from the same sentences."""
    ours_seconds, their_seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        write_split(os.path.join(folder, "train.tsv"), sentences)
        inputs = theirs.batches(sentences, batch)
        padded = sum(x["input_ids"].numel() for x in inputs)
        real = sum(int(x["attention_mask"].sum()) for x in inputs)
        for _ in range(args.rounds):
            ours_seconds.append(statistics.median(run_ours(args, folder, batch)))
            their_seconds.append(statistics.median(theirs.run(inputs, batch)))
    ours, their = statistics.median(ours_seconds), statistics.median(their_seconds)
    ratios = sorted(t / o for o, t in zip(ours_seconds, their_seconds))
    unit, per_step = ("tokens", batch * tokens) if tokens else ("sentences", batch)
    print(f"{name}: {len(ours_seconds)} rounds of {STEPS - SKIPPED} counted steps, batch {batch}, "
          f"padding {1 - real / padded:.0%}")
    print(f"  zf-train  {ours * 1e3:8.1f} ms/step  {per_step / ours:9.1f} {unit}/s")
    print(f"  PyTorch   {their * 1e3:8.1f} ms/step  {per_step / their:9.1f} {unit}/s")
    print(f"  ratio     {statistics.median(ratios):.2f} (of rounds: {', '.join(f'{r:.2f}' for r in ratios)})")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--zf-train", required=True)
    parser.add_argument("--tokenizer", required=True, help="folder with GPT-2's vocab.json and merges.txt")
    parser.add_argument("--glue", help="folder with SST-2/train.tsv; without it only gpt2 is measured")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    theirs = Theirs(args)
    compare(args, theirs, "gpt2", long_sentences(8 * STEPS), 8, 128)
    if args.glue:
        compare(args, theirs, "sst2", sst2_sentences(args.glue, 32 * STEPS), 32, 0)


if __name__ == "__main__":
    main()
