"""What the comparisons of this folder share: our program's figures, the same model in PyTorch, medians,
and what is told of the machine."""

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

# As model/gpt_config.c's presets: vocabulary, positions, width, layers, heads.
SHAPES = {
    "gpt": (8000, 512, 96, 2, 3),
    "gpt2": (50257, 1024, 768, 12, 12),
    "gpt2-medium": (50257, 1024, 1024, 24, 16),
    "gpt2-large": (50257, 1024, 1280, 36, 20),
    "gpt2-xl": (50257, 1024, 1600, 48, 25),
    "gpt-6.7b": (50257, 2048, 4096, 32, 32),
}


def describe_machine(torch=None):
    """One line: date, processor, GPU, driver."""
    words = [datetime.date.today().isoformat(), f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}"]
    if torch is not None:
        words.append(f"torch {torch.__version__}")
        if torch.cuda.is_available():
            words.append(torch.cuda.get_device_name())
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        words.append("driver " + subprocess.run(query, check=True, capture_output=True, text=True)
                     .stdout.split("\n")[0])
    except (OSError, subprocess.CalledProcessError):
        words.append("no GPU")
    return ", ".join(words)


def count_threads():
    """As OMP_NUM_THREADS says, else one a core: what ours takes."""
    return int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))


def run_ours(zf_bench, name, *options, cores=None):
    """What `zf-bench NAME OPTIONS --json` writes, and the seconds that the program took. It runs on these
    cores, or on this process's."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        begin = time.perf_counter()
        done = subprocess.run([zf_bench, name, *map(str, options), "--json", out.name],
                              capture_output=True, text=True,
                              preexec_fn=cores and (lambda: os.sched_setaffinity(0, cores)))
        seconds = time.perf_counter() - begin
        if done.returncode != 0:
            sys.exit(f"{zf_bench} {name} {' '.join(map(str, options))}: {done.stderr.strip()}")
        with open(out.name) as file:
            return json.load(file), seconds


def make_gpt(torch, preset, dropout=0.0, pad_vocabulary=True):
    """A GPT-2 as people train it for speed in PyTorch: fused attention, the head tied to the embeddings,
    the vocabulary padded to a multiple of 128. forward(tokens, targets) is the mean loss."""
    from torch import nn
    from torch.nn import functional as F

    vocabulary, positions, width, layers, heads = SHAPES[preset]
    if pad_vocabulary:
        vocabulary = (vocabulary + 127) // 128 * 128

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def attend(self, x):
            batch, length, _ = x.shape
            q, k, v = (y.view(batch, length, heads, width // heads).transpose(1, 2)
                       for y in self.qkv(x).split(width, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                               dropout_p=dropout if self.training else 0.0)
            return self.projection(y.transpose(1, 2).reshape(batch, length, width))

        def forward(self, x):
            x = x + F.dropout(self.attend(self.norm_1(x)), dropout, self.training)
            y = self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))
            return x + F.dropout(y, dropout, self.training)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            self.apply(self.initialise)

        @staticmethod
        def initialise(module):
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

        def forward(self, tokens, targets):
            at = torch.arange(tokens.shape[1], device=tokens.device)
            x = F.dropout(self.tokens(tokens) + self.positions(at), dropout, self.training)
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return GPT()


def random_batch(torch, preset, sequences, length, device):
    """Tokens, and the next ones as targets."""
    tokens = torch.randint(SHAPES[preset][0], (sequences, length + 1), device=device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def synchronise(torch, device):
    if device == "cuda":
        torch.cuda.synchronize()


def time_runs(torch, device, run, count):
    """Seconds of one run(), of so many between two waits."""
    synchronise(torch, device)
    begin = time.perf_counter()
    for _ in range(count):
        run()
    synchronise(torch, device)
    return (time.perf_counter() - begin) / count


def time_steps(torch, device, step, warm_up, steps, between_waits=5):
    """Seconds of a step, a value for each few steps: the host may run ahead of the device in between, as
    it does in training."""
    for _ in range(warm_up):
        step()
    return [time_runs(torch, device, step, min(between_waits, steps - first))
            for first in range(0, steps, between_waits)]


def median_of_runs(torch, device, run, rounds=7, per_round=20):
    """Median seconds of one run(), many between two waits."""
    run()
    return statistics.median(time_runs(torch, device, run, per_round) for _ in range(rounds))


def print_table(heading, rows):
    """Columns as wide as they must be; the first to the left, the others to the right."""
    texts = [[str(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(heading))]
    for row in texts:
        print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                        for i, (cell, w) in enumerate(zip(row, widths))).rstrip())
    sys.stdout.flush()


def write_json(path, content):
    if path:
        with open(path, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
