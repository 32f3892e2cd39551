#!/usr/bin/env python3
"""What the compiler made of the CUDA kernels of a program, by the toolkit's cuobjdump, beside each
kernel's floor: the time below which no implementation of it can come.

usage: kernel_resources.py PROGRAM          prints the table of model/README.md
       kernel_resources.py --all PROGRAM    one line for each template instance instead
       kernel_resources.py --sass PROGRAM   prints how many instructions each kernel has, by kind, as they
                                            stand there: a loop's once
       kernel_resources.py --check PROGRAM  fails where a kernel uses local memory (a spill, an
                                            array that is not in registers), where attention does
                                            not run on tensor cores, or where a kernel of the
                                            sources has no floor below or no line in
                                            model/README.md. Without cuobjdump, which smaller
                                            toolkits lack, the first is left out, and the second
                                            is of what nvcc makes of the sources; 77: no nvcc
                                            either

Floors are for GPT-2 124M, whose heads have keys of their own, 8 sequences of 1,024 tokens, bf16, on an H200; those of operators on
parameters for its token embeddings, (50257, 768), of which 5% are important and a quarter of the
others closes in a step.
"""

import collections
import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ON_TENSOR_CORES = re.compile(r"^attention_(forward|backward_kv|backward_q)_kernel<")

# An H200's limits, as published: device memory, dense bf16 products; a PCIe 5 x16 link each way.
MEMORY, TENSOR, LINK = 4.8e12, 989e12, 64e9

# What a multiprocessor has: registers, warps, blocks, bytes of shared memory; bytes that the system
# keeps of each block's.
Multiprocessor = collections.namedtuple("Multiprocessor", "registers warps blocks shared reserved")
MULTIPROCESSORS = {
    "sm_80": Multiprocessor(65536, 64, 32, 164 << 10, 1 << 10),
    "sm_90a": Multiprocessor(65536, 64, 32, 228 << 10, 1 << 10),
}


def round_up(x, multiple):
    return (x + multiple - 1) // multiple * multiple


def blocks_of(arch, threads, registers, shared):
    """How many blocks fit on a multiprocessor at once. Registers are given to warps in units of
    256, by each of four schedulers; shared memory in units of 128 bytes."""
    mp, warps = MULTIPROCESSORS[arch], (threads + 31) // 32
    by_registers = mp.registers // 4 // round_up(32 * registers, 256) * 4 // warps
    by_shared = mp.shared // round_up(shared + mp.reserved, 128)
    return min(mp.blocks, mp.warps // warps, by_registers, by_shared)


# Floors. n tokens in n_seqs sequences of T, C columns, H heads, I = 4 C; V rows of token
# embeddings, of which IMPORTANT and CLOSING ones.
N_SEQS, T, C, H, V = 8, 1024, 768, 12, 50257
N, I, HEAD_DIM, LOGIT_ROWS = N_SEQS * T, 4 * C, C // H, 1024
IMPORTANT = round(0.05 * V)
CLOSING = (V - IMPORTANT) // 4
PAIRS = N_SEQS * H * T * (T + 1) // 2  # of a query and a key that it sees


class Floor:
    """What must be moved or multiplied, and how that is written."""

    def __init__(self, text, bytes=0, flops=0, link=0):
        self.text, self.bytes, self.flops, self.link = text, bytes, flops, link

    def seconds(self):
        return max(self.bytes / MEMORY, self.flops / TENSOR, self.link / LINK)

    def amount(self):
        parts = [(self.flops, "FLOP"), (self.link or self.bytes, "B")]
        return next((f"{scaled(x)}{unit}" for x, unit in parts if x), "")


def scaled(x):
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= limit:
            return f"{x / limit:.3g} {prefix}"
    return f"{x:.3g} "


def memory(text, amount):
    return Floor(text, bytes=amount)


def pairs_floor(factor):
    """The nearer limit of so many FLOPs for each pair and column."""
    return Floor(f"{factor} head_dim FLOP a pair", flops=factor * HEAD_DIM * PAIRS)


LAUNCH = Floor("the launch")
ODD = Floor("latency; head sizes without tiles")
MATRIX, DEFERRED = V * C, (V - IMPORTANT) * C

# Kernel: threads of a block, and its floor. The shapes are those of the launches, which the program
# does not tell.
KERNELS = {
    "attention_forward_kernel": (128, pairs_floor(4)),
    "attention_backward_q_kernel": (128, pairs_floor(6)),
    "attention_backward_kv_kernel": (128, pairs_floor(8)),
    "attention_forward_generic_kernel": (128, ODD),
    "attention_backward_q_generic_kernel": (128, ODD),
    "attention_backward_kv_generic_kernel": (128, ODD),
    "forward_rows": (96, memory("8 n C bytes", 8 * N * C)),
    "backward_rows": (96, memory("10 n C bytes", 10 * N * C)),
    "rotate_rows": (128, memory("8 n C bytes, 12 n C with norms", 8 * N * C)),
    "rotate_norm_backward": (128, memory("12 n C bytes", 12 * N * C)),
    "swiglu_kernel": (128, memory("6 n I bytes, 12 n I backward", 6 * N * I)),
    "sum_chunks": (256, memory("2 n I bytes", 2 * N * I)),
    "add_partials": (512, memory("4 bytes a partial sum", 4 * 512 * 2 * C)),
    "add_rows": (256, memory("2 n C bytes, 2 C a row read", 2 * N * C + 2 * C * T)),
    "sort_positions": (256, LAUNCH),
    "sum_pieces": (32, memory("2 n C bytes, 8 C a key", 2 * N * C + 8 * C * T)),
    "add_parts": (32, LAUNCH),
    "copy_last": (256, LAUNCH),
    "cross_entropy_rows": (1024, memory("6 bytes a logit", 6 * LOGIT_ROWS * V)),
    "squared_errors": (256, LAUNCH),
    "sum_all": (1024, LAUNCH),
    "convert_kernel": (256, memory("6 bytes an element", 6 * MATRIX)),
    "finish_kernel": (128, memory("4 n I bytes", 4 * N * I)),
    "small_kernel": (256, LAUNCH),
    "take_rows_kernel": (256, memory("6 bytes an element", 6 * MATRIX)),
    "sum_norms_kernel": (256, LAUNCH),
    "summarise_kernel": (256, LAUNCH),
    "select_kernel": (1024, LAUNCH),
    "adamw_kernel": (256, memory("30 bytes an element", 30 * MATRIX)),
    "accumulate_kernel": (256, memory("9 bytes a deferred element", 9 * DEFERRED)),
    "stage_kernel": (256, Floor("2 bytes a deferred element over the link", link=2 * DEFERRED)),
    "packed_kernel": (256, memory("6 bytes an element of a closing group", 6 * CLOSING * C)),
    "show_kernel": (256, memory("6 bytes an important element", 6 * IMPORTANT * C)),
    "copy_kernel": (256, memory("8 bytes an important element", 8 * IMPORTANT * C)),
    "carry_kernel": (256, Floor("12 bytes an element that changes sides, over the link", link=12 * IMPORTANT * C)),
    "change_kernel": (256, LAUNCH),
    "share_kernel": (256, memory("4 bytes an important element", 4 * IMPORTANT * C)),
}

# Instructions by what they use, by how their names begin.
KINDS = {"tensor": ("HMMA",), "fp32": ("FADD", "FMUL", "FFMA"), "MUFU": ("MUFU",),
         "local": ("LDL", "STL"), "global": ("LDG", "STG"), "shared": ("LDS", "STS"),
         "shuffles": ("SHFL",), "barriers": ("BAR",)}


def dynamic_shared(name):
    """Of a launch, as forward_sizes and backward_sizes in model/cuda/attention_*.cu have it."""
    match = re.match(r"attention_(forward|backward_kv|backward_q)_kernel<(\d+)", name)
    if not match:
        return 0
    kind, hd = match[1], int(match[2])
    walked = 64 if hd <= 64 else 32
    if kind == "forward":
        return 2 * hd * (128 + 4 * walked)
    owned = 128 if hd <= 64 else 64
    return 2 * hd * (2 * owned + 4 * walked) + (2 * walked * 16 if kind == "backward_kv" else 0)


def find_tool(name):
    """A program of the CUDA toolkit."""
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(os.path.realpath(nvcc)))


def run_tool(*command):
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {run.stderr.strip()}")
    return run.stdout.splitlines()


def short_names(mangled):
    """finish_kernel<8, float> for each mangled name: without type and arguments."""
    filt = shutil.which("c++filt")
    if not filt or not mangled:
        return {name: name for name in mangled}
    text = subprocess.run([filt], input="\n".join(mangled), capture_output=True, text=True).stdout
    names = {}
    for name, plain in zip(mangled, text.splitlines()):
        plain = plain.removeprefix("void ").replace("unsigned short", "bf16")
        names[name] = re.sub(r"\(.*$", "", plain.replace("(int)", "").replace("(bool)", ""))
    return names


def read_resources(lines):
    """{(mangled, arch): {"REG": 40, "STACK": 0, "SHARED": 0, "LOCAL": 0, ...}}"""
    found, arch, name = {}, None, None
    for line in lines:
        if match := re.match(r"arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\w+):", line):
            name = match[1]
        elif name and "REG:" in line:
            found[name, arch] = {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", line)}
            name = None
    return found


def read_ptx(lines):
    """{(mangled, "PTX"): the number of tensor core instructions, as count_instructions has it}"""
    found, key = {}, None
    for line in lines:
        if match := re.match(r"\.(?:visible )?entry (\w+)", line):
            key = match[1], "PTX"
            found[key] = collections.Counter()
        elif key:
            found[key]["tensor"] += "mma.sync" in line
    return found


def count_instructions(lines):
    """{(mangled, arch): the number of instructions by kind, and of "all"}"""
    found, arch, counts = {}, None, None
    for line in lines:
        if match := re.match(r"\s*arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\w+)", line):
            counts = found[match[1], arch] = collections.Counter()
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(\w+)", line):
            counts.update(["all", *(kind for kind, names in KINDS.items() if match[1].startswith(names))])
    return found


# The tables.

Instance = collections.namedtuple("Instance", "name registers shared blocks")


def instances_of(resources, names, archs):
    """One for each template instance: its resources by architecture."""
    found = []
    for mangled in sorted({m for m, _ in resources}, key=lambda m: names[m]):
        name = names[mangled]
        threads = KERNELS.get(name.split("<")[0], (0, None))[0]
        # Of the oldest: since compute capability 9.0, what the system keeps is counted too.
        shared = next(resources[mangled, a]["SHARED"] for a in archs if (mangled, a) in resources)
        shared += dynamic_shared(name)
        registers = [resources[mangled, a]["REG"] for a in archs]
        blocks = [blocks_of(a, threads, r, shared) if threads and a in MULTIPROCESSORS else 0
                  for a, r in zip(archs, registers)]
        found.append(Instance(name, registers, shared, blocks))
    return found


def line_of(instance, detailed):
    """The name under which it stands in the table: of attention head size 64 by itself, the rest of
    a template's instances together."""
    base = instance.name.split("<")[0]
    tiled_64 = instance.name.startswith(base + "<64, ") and ON_TENSOR_CORES.match(instance.name)
    if detailed or tiled_64:
        return instance.name
    return base + "<...>" if "<" in instance.name else base


def span(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


def print_table(resources, names, detailed):
    archs = sorted({arch for _, arch in resources})
    groups = {}
    for instance in instances_of(resources, names, archs):
        groups.setdefault(line_of(instance, detailed), []).append(instance)
    order = list(KERNELS)
    print("| kernel | floor | | µs | threads | "
          + " | ".join(f"registers, {a}" for a in archs) + " | shared, B | "
          + " | ".join(f"blocks, {a}" for a in archs) + " | occupancy, % |")
    print("| --- | --- | ---: | ---: |" + " ---: |" * (3 + 2 * len(archs)))

    def place(name):
        base = name.split("<")[0]
        return order.index(base) if base in order else len(order), name.endswith("<...>"), name

    for name in sorted(groups, key=place):
        print_line(name, groups[name], archs)


def print_line(name, instances, archs):
    threads, floor = KERNELS.get(name.split("<")[0], (0, Floor("")))
    others = ON_TENSOR_CORES.match(name) and name.endswith("<...>")  # floors are for head size 64
    time = 1e6 * floor.seconds() if not others else 0
    cells = [f"`{name.replace('<...>', '')}`" + (", other head sizes" if others else ""),
             floor.text, floor.amount() if not others else "", f"{time:.3g}" if time else "",
             str(threads or "")]
    cells += [span([i.registers[a] for i in instances]) for a in range(len(archs))]
    cells += [span([i.shared for i in instances])]
    cells += [span([i.blocks[a] for i in instances]) for a in range(len(archs))]
    cells += [span([100 * i.blocks[a] * ((threads + 31) // 32) // 64 for i in instances
                    for a in range(len(archs))])]
    print("| " + " | ".join(cells) + " |")


def print_instructions(counts, names):
    """One line for each kernel and architecture; of a template's instances, the range."""
    groups = {}
    for (mangled, arch), found in sorted(counts.items()):
        groups.setdefault((names[mangled].split("<")[0], arch), []).append(found)
    print("| kernel | architecture | instances | instructions | " + " | ".join(KINDS) + " |")
    print("| --- | --- |" + " ---: |" * (2 + len(KINDS)))
    for base, arch in sorted(groups, key=lambda g: (list(KERNELS).index(g[0]), g[1])):
        own = groups[base, arch]
        print(f"| `{base}` | {arch} | {len(own)} | "
              + " | ".join(span([found[kind] for found in own]) for kind in ("all", *KINDS)) + " |")


# The check.

def check(resources, instructions, names):
    faults = []
    for (mangled, arch), r in resources.items():
        local = instructions.get((mangled, arch), {"local": 0})["local"]
        if r["STACK"] or r["LOCAL"] or local:
            faults.append(f"{names[mangled]} ({arch}) uses local memory: {r['STACK'] + r['LOCAL']} "
                          f"bytes, {local} instructions")
    attention = {key: counts["tensor"] for key, counts in instructions.items()
                 if ON_TENSOR_CORES.match(names.get(key[0], ""))}
    faults += [f"{names[mangled]} ({arch}) has no tensor core instruction"
               for (mangled, arch), tensor in attention.items() if not tensor]
    if not attention:
        faults.append("no attention kernel was found")
    good = f"{len(attention)} instances of attention kernels run on tensor cores"
    if resources:
        good += f", and none of {len(resources)} kernels uses local memory"
    print("\n".join(faults) or good)
    return not faults


def check_names():
    """Floors above, lines in model/README.md, and kernels of the sources are of the same names."""
    kernels = set()
    for path in glob.glob(os.path.join(ROOT, "model", "cuda", "*.cu*")):
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", file.read())
        kernels |= set(re.findall(r"__global__[^(]*?(\w+)\(", text))
    with open(os.path.join(ROOT, "model", "README.md"), encoding="utf-8") as file:
        lines = set(re.findall(r"^\| `(\w+)(?:<.*)?` ?(?:\||, other)", file.read().split("### Kernels")[1], re.M))
    faults = [f"{name} of the sources is not in {where}" * (name in kernels)
              or f"{name} is in {where}, but no kernel of the sources"
              for where, names in (("KERNELS", set(KERNELS)), ("the table of model/README.md", lines))
              for name in sorted(names ^ kernels)]
    print("\n".join(faults) or f"{len(kernels)} kernels have a floor and a line in model/README.md")
    return not faults


def check_sources():
    """Where cuobjdump is absent. That no kernel uses local memory is what the build demands."""
    nvcc = find_tool("nvcc")
    if not nvcc or not shutil.which("c++filt"):
        print("skipped: neither cuobjdump nor nvcc with c++filt is installed")
        sys.exit(77)
    instructions = {}
    options = ["-ptx", "-std=c++17", "-gencode=arch=compute_80,code=compute_80", "-I", ROOT]
    for name in ("attention_forward.cu", "attention_backward.cu"):
        source = os.path.join(ROOT, "model", "cuda", name)
        instructions |= read_ptx(run_tool(nvcc, *options, "-o", "/dev/stdout", source))
    return check({}, instructions, short_names(sorted({mangled for mangled, _ in instructions})))


def main():
    programs = [a for a in sys.argv[1:] if not a.startswith("--")]
    options = set(sys.argv[1:]) - set(programs)
    if len(programs) != 1 or options - {"--all", "--check", "--sass"}:
        sys.exit(__doc__)
    tool = find_tool("cuobjdump")
    if "--check" in options and not check_names():
        sys.exit(1)
    if not tool and "--check" in options:
        sys.exit(not check_sources())
    if not tool:
        sys.exit("cuobjdump, a part of the CUDA toolkit, is not installed")
    resources = read_resources(run_tool(tool, "-res-usage", programs[0]))
    if not resources:
        sys.exit(f"{programs[0]} holds no CUDA kernels")
    names = short_names(sorted({mangled for mangled, _ in resources}))
    if "--check" in options:
        instructions = count_instructions(run_tool(tool, "-sass", programs[0]))
        sys.exit(not check(resources, instructions, names))
    if "--sass" in options:
        print_instructions(count_instructions(run_tool(tool, "-sass", programs[0])), names)
    else:
        print_table(resources, names, "--all" in options)


main()
