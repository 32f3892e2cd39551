"""Training speed beside PyTorch's on a GPU: the same shapes, by turns, medians.

    python tests/bench/compare_pytorch_gpu.py build/zf-bench
    python tests/bench/compare_pytorch_gpu.py build/zf-bench --work lm --preset gpt2-xl --seqs 8
    python tests/bench/compare_pytorch_gpu.py build/zf-bench --device cpu --tiny      a dry run

Three kinds of work:

    lm         language modelling, sequences of --length tokens, AdamW, clipping at norm 1, no dropout.
               Theirs: torch.compile, scaled-dot-product (flash) attention, bf16 autocast over fp32
               parameters, fused AdamW, the vocabulary padded to a multiple of 128.
    attention  causal attention alone, forward and backward; theirs is the flash backend.
    sst2       classification of short sentences in batches of 32, dropout 0.1. Theirs: Transformers'
               GPT2ForSequenceClassification, each batch padded to its longest, bf16 autocast, fused
               AdamW. Lengths: SST-2's own where --glue and --tokenizer are given, else drawn so that
               they average 13 tokens, as SST-2's do.

Needs torch; sst2 also transformers. On the CPU device both compute in fp32."""

import argparse
import contextlib
import os
import random
import statistics
import tempfile

import peers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zf_bench", help="the zf-bench program")
    parser.add_argument("--work", default="lm,attention,sst2", help="which, with commas between")
    parser.add_argument("--preset", default="gpt2", choices=peers.SHAPES)
    parser.add_argument("--seqs", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--sentences", type=int, default=32, help="in a batch of sst2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--no-compile", action="store_true", help="PyTorch without torch.compile")
    parser.add_argument("--compile-sst2", action="store_true",
                        help="compile Transformers' model too, for shapes of any length")
    parser.add_argument("--glue", help="folder with SST-2/train.tsv")
    parser.add_argument("--tokenizer", help="folder of GPT-2's tokenizer")
    parser.add_argument("--tiny", action="store_true", help="a model and batches of a few kilobytes")
    parser.add_argument("--json", help="write all figures there")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.preset, arguments.seqs, arguments.length, arguments.sentences = "gpt", 2, 32, 4
        arguments.steps, arguments.warm_up, arguments.rounds = 3, 2, 1
    return arguments


def options_of_ours(arguments):
    tiny = ("--probe", 64) if arguments.tiny else ()
    return ("--preset", arguments.preset, "--device", arguments.device, *tiny)


def autocast(torch, device):
    return torch.autocast("cuda", dtype=torch.bfloat16) if device == "cuda" else contextlib.nullcontext()


def optimiser_of(torch, model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)


def compare_by_turns(arguments, run_ours, run_theirs):
    """Medians of the rounds' medians, and of the rounds' ratios."""
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(run_ours())
        theirs.append(run_theirs())
    ratios = [their / our for our, their in zip(ours, theirs)]
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


def row_of(name, ours, theirs, ratio, per_step=0, unit=""):
    rate = (f"{per_step / ours:.0f} {unit}/s", f"{per_step / theirs:.0f} {unit}/s") if unit else ("", "")
    return (name, f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{ratio:.2f}", *rate)


def step_of(torch, arguments, model, optimiser, loss_of):
    def step():
        with autocast(torch, arguments.device):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return step


def compare_lm(torch, arguments):
    model = peers.make_gpt(torch, arguments.preset).to(arguments.device).train()
    optimiser = optimiser_of(torch, model)
    tokens, targets = peers.random_batch(torch, arguments.preset, arguments.seqs, arguments.length,
                                         arguments.device)
    called = model if arguments.no_compile else torch.compile(model)
    step = step_of(torch, arguments, model, optimiser, lambda: called(tokens, targets))
    step()  # compiles, with processes on all cores: before ours is timed

    def run_ours():
        result, _ = peers.run_ours(arguments.zf_bench, "train", *options_of_ours(arguments), "--seqs",
                                   arguments.seqs, "--length", arguments.length, "--dropout", 0,
                                   "--steps", arguments.steps, "--warm-up", arguments.warm_up)
        return result["methods"][0]["median_seconds"]

    def run_theirs():
        return statistics.median(peers.time_steps(torch, arguments.device, step, arguments.warm_up,
                                                  arguments.steps))

    figures = compare_by_turns(arguments, run_ours, run_theirs)
    return [row_of(f"lm, {arguments.preset}, {arguments.seqs} x {arguments.length}", *figures,
                   arguments.seqs * arguments.length, "tokens")]


def compare_attention(torch, arguments):
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    _, _, width, _, heads = peers.SHAPES[arguments.preset]
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    shape = (arguments.seqs, heads, arguments.length, width // heads)
    q, k, v, grad = (torch.randn(shape, device=arguments.device, dtype=dtype) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    backend = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    if arguments.device == "cpu":
        backend = contextlib.nullcontext()

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    result, _ = peers.run_ours(arguments.zf_bench, "kernels", *options_of_ours(arguments), "--seqs",
                               arguments.seqs, "--length", arguments.length, "--dropout", 0)
    ours = {line["kernel"]: line["seconds"] for line in result["kernels"]}
    with backend:
        with torch.no_grad():
            there = peers.median_of_runs(torch, arguments.device, forward)
        out = forward()
        back = peers.median_of_runs(
            torch, arguments.device,
            lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
    name = f"{arguments.seqs} x {arguments.length}, {heads} heads of {width // heads}"
    return [row_of(f"attention forward, {name}", ours["attention"], there, there / ours["attention"]),
            row_of(f"attention backward, {name}", ours["attention backward"], back,
                   back / ours["attention backward"])]


def sentence_lengths(arguments, n):
    if arguments.glue and arguments.tokenizer:
        import transformers
        tokenizer = transformers.GPT2TokenizerFast.from_pretrained(arguments.tokenizer)
        with open(os.path.join(arguments.glue, "SST-2", "train.tsv"), encoding="utf-8") as file:
            rows = file.read().splitlines()[1:]
        random.Random(2).shuffle(rows)
        return [len(ids) for ids in tokenizer([row.split("\t")[0] for row in rows[:n]])["input_ids"]]
    draw = random.Random(2).expovariate
    return [min(64, 2 + int(draw(1 / 11.5))) for _ in range(n)]


def compare_sst2(torch, arguments):
    import transformers

    vocabulary, positions, width, layers, heads = peers.SHAPES[arguments.preset]
    batch, device = arguments.sentences, arguments.device
    lengths = sentence_lengths(arguments, batch * (arguments.steps + arguments.warm_up))
    config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=positions, n_embd=width,
                                     n_layer=layers, n_head=heads, num_labels=2, bos_token_id=0,
                                     eos_token_id=0, pad_token_id=0, attn_implementation="sdpa")
    model = transformers.GPT2ForSequenceClassification(config).to(device).train()
    called = torch.compile(model, dynamic=True) if arguments.compile_sst2 else model
    optimiser = optimiser_of(torch, model)
    labels = torch.arange(batch, device=device) % 2
    inputs = []
    for i in range(0, len(lengths), batch):
        longest = max(lengths[i:i + batch])
        mask = torch.tensor([[int(t < n) for t in range(longest)] for n in lengths[i:i + batch]])
        ids = torch.randint(1, vocabulary, mask.shape) * mask
        inputs.append({"input_ids": ids.to(device), "attention_mask": mask.to(device)})

    def run_ours():
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(map(str, lengths)))
            file.flush()
            result, _ = peers.run_ours(arguments.zf_bench, "train", *options_of_ours(arguments), "--head",
                                       "classify", "--seqs", batch, "--lengths", file.name, "--steps",
                                       arguments.steps, "--warm-up", arguments.warm_up)
        return result["methods"][0]["median_seconds"]

    def run_theirs():
        turn = iter(inputs * 2)
        step = step_of(torch, arguments, model, optimiser, lambda: called(**next(turn), labels=labels).loss)
        return statistics.median(peers.time_steps(torch, device, step, arguments.warm_up, arguments.steps))

    figures = compare_by_turns(arguments, run_ours, run_theirs)
    padded = sum(x["input_ids"].numel() for x in inputs)
    return [row_of(f"sst2, {arguments.preset}, {batch} sentences, padding {1 - sum(lengths) / padded:.0%}",
                   *figures, batch, "sentences")]


def main():
    arguments = parse_arguments()
    import torch

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if arguments.device == "cpu":
        torch.set_num_threads(peers.count_threads())
    works = {"lm": compare_lm, "attention": compare_attention, "sst2": compare_sst2}
    rows = []
    print(peers.describe_machine(torch))
    for name in arguments.work.split(","):
        try:
            rows += works[name](torch, arguments)
        except ImportError as fault:
            print(f"skipped: {name}: {fault}")
    heading = ("medians", "ours, ms", "theirs, ms", "ratio", "ours", "theirs")
    peers.print_table(heading, rows)
    peers.write_json(arguments.json, {"machine": peers.describe_machine(torch),
                                      "rows": [dict(zip(heading, row)) for row in rows]})


if __name__ == "__main__":
    main()
