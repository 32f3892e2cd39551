"""Host AdamW beside DeepSpeed's CPUAdam: parameters per second, in turns on the same machine.

    python3 -m venv adam-venv
    adam-venv/bin/pip install torch==2.11.0 deepspeed==0.19.8 ninja
    adam-venv/bin/python tests/bench/compare_adam.py build/zf-bench

DeepSpeed compiles its operator for this machine (-march=native) at the first run, which takes a
minute and needs g++ but no GPU. It gets its best settings: one flat parameter, moments in fp32, huge
pages, threads bound to cores as ours are. Its cases:

    fp32          parameters, gradients and moments in fp32: 28 bytes per parameter
    bf16 to bf16  the same state, but the gradient arrives as bf16 and the parameter leaves as bf16, by
                  two casts of PyTorch around the step: what a bf16 model needs of the host
    bf16          parameters and gradients in bf16 without fp32 master values: 22 bytes per parameter

Ours is the engine's own path, a matrix of 768 columns in four groups. It has fp32 master values and
moments in both: bf16 exchange (bf16 gradient in, bf16 parameter out) is 28 bytes per parameter, fp32
exchange 32. "bf16 to bf16" is the same job as ours with bf16
exchange; "fp32" is the same number of bytes.
"""

import argparse
import os
import statistics
import sys
import time

import peers

VERSIONS = {"torch": "2.11.0", "deepspeed": "0.19.8"}
OURS = {"ours, bf16 exchange": "adam_bf16", "ours, fp32 exchange": "adam_f32",
        "triad, plain stores": "triad_plain", "triad, non-temporal": "triad_stream"}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zf_bench", help="the zf-bench program")
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="of three updates each")
    return parser.parse_args()


def set_environment(threads):
    """Before torch is loaded: it reads these once."""
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS=str(threads), OMP_PLACES="cores",
                      OMP_PROC_BIND="close", THP_MEM_ALLOC_ENABLE="1")
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]


def make_deepspeed(torch, n, dtype):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameter = torch.nn.Parameter(torch.randn(n, dtype=dtype))
    parameter.grad = 1e-2 * torch.randn(n, dtype=dtype)
    optimizer = DeepSpeedCPUAdam([parameter], lr=1e-4, weight_decay=0.01, adamw_mode=True,
                                 fp32_optimizer_states=True)
    optimizer.step()  # makes the state
    return optimizer


def casting(torch, optimizer):
    """The optimizer's step between a bf16 gradient and a bf16 parameter."""
    parameter = optimizer.param_groups[0]["params"][0]
    gradient, copy = parameter.grad.to(torch.bfloat16), parameter.detach().to(torch.bfloat16)

    def step():
        parameter.grad.copy_(gradient)
        optimizer.step()
        copy.copy_(parameter.detach())
    return step


def time_step(step):
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def run_ours(arguments, cores):
    """Three updates of each kind with the best instructions, on all cores that this process was started
    with."""
    result, _ = peers.run_ours(arguments.zf_bench, "adam", "--parameters", arguments.parameters, "--threads",
                               arguments.threads, "--width", 768, "--repeats", 3, cores=cores)
    return result["lines"][-1]


def main():
    arguments = parse_arguments()
    cores = os.sched_getaffinity(0)
    set_environment(arguments.threads)
    import deepspeed
    import torch

    for module in (torch, deepspeed):
        found, wanted = module.__version__.split("+")[0], VERSIONS[module.__name__]
        if found != wanted:
            sys.exit(f"{module.__name__} is {found}, but the comparison is pinned to {wanted}")
    torch.set_num_threads(arguments.threads)
    n = arguments.parameters
    fp32 = make_deepspeed(torch, n, torch.float32)
    theirs = {"DeepSpeed, fp32": fp32.step, "DeepSpeed, bf16 to bf16": casting(torch, fp32),
              "DeepSpeed, bf16": make_deepspeed(torch, n, torch.bfloat16).step}
    seconds = {name: [] for name in (*theirs, *OURS)}
    for _ in range(arguments.rounds):
        for name, step in theirs.items():
            seconds[name] += [time_step(step) for _ in range(3)]
        measured = run_ours(arguments, cores)
        for name, key in OURS.items():
            seconds[name] += measured[key]["seconds"]

    print(f"{n} parameters, {arguments.threads} threads, {arguments.rounds} rounds of 3 updates, "
          f"load {os.getloadavg()[0]:.1f}; 1e9 parameters (triad: elements) per second")
    print(f"{'':24} {'median':>8} {'best':>8}   quartiles")
    for name, values in seconds.items():
        low, _, high = statistics.quantiles(values, n=4)
        print(f"{name:24} {n / statistics.median(values) / 1e9:8.2f} {n / min(values) / 1e9:8.2f}"
              f"   {n / high / 1e9:.2f} to {n / low / 1e9:.2f}")
    us = seconds["ours, bf16 exchange"]
    for name in ("DeepSpeed, bf16 to bf16", "DeepSpeed, fp32"):
        ratios = [statistics.median(seconds[name][i:i + 3]) / statistics.median(us[i:i + 3])
                  for i in range(0, len(us), 3)]
        low, _, high = statistics.quantiles(ratios, n=4)
        print(f"ours, bf16 exchange / {name}: {statistics.median(ratios):.2f}, median of rounds; "
              f"quartiles {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
