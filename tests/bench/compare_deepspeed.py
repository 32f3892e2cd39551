"""Offloaded training beside DeepSpeed's ZeRO-Offload and ZenFlow: step times, host memory, and the time
from the start of the program to the end of its first step.

    python3 -m venv ds-venv && ds-venv/bin/pip install torch==2.11.0 deepspeed==0.19.8 ninja
    ds-venv/bin/python tests/bench/compare_deepspeed.py build/zf-bench --preset gpt2-xl --seqs 4
    ds-venv/bin/python tests/bench/compare_deepspeed.py build/zf-bench --device cpu --tiny    a dry run

Theirs: stage 2, bf16, the fused attention of PyTorch, pinned memory, overlapping communication, DeepSpeed's
own CPUAdam; ZenFlow with overlap_step, its own binding of cores (pt_reserved_cores_perc), the same
topk_ratio and intervals as ours. Each runs in a process of its own, bound to the machine's cores by
numactl where it is installed. DeepSpeed compiles its operators at their first use ever: that is done
before anything is timed. Host memory is the peak of each program's processes; beside ours stands what the
engine counts. Ours to its first step includes measuring the device's limits."""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time

import peers

VERSION = "0.19.8"
METHODS = {"ZeRO-Offload": "offload", "ZenFlow": "staggered"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zf_bench", help="the zf-bench program")
    parser.add_argument("--preset", default="gpt2-xl", choices=peers.SHAPES)
    parser.add_argument("--seqs", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--topk-ratio", type=float, default=0.05)
    parser.add_argument("--update-interval", type=int, default=4)
    parser.add_argument("--select-interval", type=int, default=16)
    parser.add_argument("--reserved-cores", type=float, default=0.5, help="pt_reserved_cores_perc of both")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each of DeepSpeed's runs")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", help="write all figures there")
    parser.add_argument("--worker", choices=METHODS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.preset, arguments.seqs, arguments.length = "gpt", 2, 32
        arguments.steps, arguments.warm_up = 4, 2
    return arguments


def configuration_of(arguments):
    offload = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True,
               "offload_optimizer": {"device": "cpu", "pin_memory": arguments.device == "cuda"}}
    if arguments.worker == "ZenFlow":
        offload["zenflow"] = {"topk_ratio": arguments.topk_ratio, "select_strategy": "step",
                              "select_interval": arguments.select_interval,
                              "update_interval": arguments.update_interval, "full_warm_up_rounds": 0,
                              "overlap_step": True, "pt_reserved_cores_perc": arguments.reserved_cores}
    return {"train_micro_batch_size_per_gpu": arguments.seqs, "gradient_accumulation_steps": 1,
            "steps_per_print": 10 ** 9, "gradient_clipping": 1.0, "bf16": {"enabled": True},
            "zero_optimization": offload, "zero_allow_untested_optimizer": True,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}}


def host_peak():
    """Bytes of this process and of its children at their peaks; ZenFlow's optimizer is a child."""
    import psutil

    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for child in psutil.Process().children(recursive=True):
        try:
            with open(f"/proc/{child.pid}/status") as file:
                peak = [line.split()[1] for line in file if line.startswith("VmHWM")]
            total += int(peak[0]) * 1024 if peak else 0
        except OSError:
            pass
    return total


def end_children():
    """ZenFlow's optimizer process outlives the program, and would hold its output open."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()


def work(arguments):
    """DeepSpeed's run, in a process of its own; its figures are the last line that it prints."""
    began = float(os.environ["ZF_BEGAN"])
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=os.environ.get("MASTER_PORT", "29511"))
    if arguments.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch

    if deepspeed.__version__.split("+")[0] != VERSION:
        sys.exit(f"deepspeed is {deepspeed.__version__}, but the comparison is pinned to {VERSION}")
    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="nccl" if arguments.device == "cuda" else "gloo")
    model = peers.make_gpt(torch, arguments.preset)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=configuration_of(arguments))
    tokens, targets = peers.random_batch(torch, arguments.preset, arguments.seqs, arguments.length,
                                         engine.device)

    def step():
        engine.backward(engine(tokens, targets))
        engine.step()
        peers.synchronise(torch, arguments.device)

    seconds = []
    for _ in range(arguments.warm_up + arguments.steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
        if len(seconds) == 1:
            first = time.time() - began
    used = torch.cuda.max_memory_allocated() if arguments.device == "cuda" else 0
    print(json.dumps({"seconds": seconds[arguments.warm_up:], "first_step": first, "host": host_peak(),
                      "device": used}), flush=True)
    end_children()
    os._exit(0)


def run_theirs(arguments, name):
    """The worker's figures, or the sentence that says why there are none."""
    command = [sys.executable, os.path.abspath(__file__), arguments.zf_bench, "--worker", name]
    for option in ("preset", "seqs", "length", "steps", "warm_up", "topk_ratio", "update_interval",
                   "select_interval", "reserved_cores", "device"):
        command += ["--" + option.replace("_", "-"), str(getattr(arguments, option))]
    if shutil.which("numactl"):
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        command = ["numactl", "-C", cores, *command]
    environment = {**os.environ, "ZF_BEGAN": str(time.time()), "OMP_NUM_THREADS": str(peers.count_threads()),
                   "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment, start_new_session=True)
    try:
        out, fault = worker.communicate(timeout=arguments.limit)
    except subprocess.TimeoutExpired:
        out = fault = f"not done within {arguments.limit:.0f} s"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)  # and what it started, if it did not end
    worker.wait()
    try:
        return json.loads(out.strip().split("\n")[-1])
    except ValueError:
        lines = (fault.strip() or out.strip()).split("\n")
        return ([line for line in lines if "Error" in line] or lines)[-1][:200]


def run_ours(arguments, name):
    tiny = ("--probe", 64) if arguments.tiny else ()
    options = ["--preset", arguments.preset, "--device", arguments.device, "--method", METHODS[name], "--bf16",
               "--dropout", 0, "--seqs", arguments.seqs, "--length", arguments.length, "--topk_ratio",
               arguments.topk_ratio, "--update_interval", arguments.update_interval, "--select_interval",
               arguments.select_interval, "--pt_reserved_cores_perc", arguments.reserved_cores, *tiny]
    whole, _ = peers.run_ours(arguments.zf_bench, "train", *options, "--steps", arguments.steps, "--warm-up",
                              arguments.warm_up)
    _, first = peers.run_ours(arguments.zf_bench, "train", *options, "--steps", 1, "--warm-up", 0)
    line = whole["methods"][0]
    return {"seconds": line["seconds"], "first_step": first, "host": whole["process_peak_bytes"],
            "counted": line["host_bytes"], "device": line["device_bytes"]}


def row_of(name, run):
    if isinstance(run, str):
        return (name, "-", "-", "-", "-", "-", run)
    median = statistics.median(run["seconds"])
    return (name, f"{median * 1e3:.1f}", f"{statistics.fmean(run['seconds']) * 1e3:.1f}",
            f"{max(run['seconds']) * 1e3:.1f}", f"{run['host'] / 1e9:.2f}", f"{run['first_step']:.1f}",
            f"engine's host memory {run['counted'] / 1e9:.2f} GB" if "counted" in run else "")


def compile_operators(arguments):
    """DeepSpeed builds its operators once for a machine, which no run should be charged for. A build that is
    ended leaves a lock behind, on which later runs wait."""
    small = argparse.Namespace(**{**vars(arguments), "preset": "gpt", "seqs": 1, "length": 32, "steps": 1,
                                  "warm_up": 1, "limit": 600})
    run_theirs(small, "ZeRO-Offload")


def main():
    arguments = parse_arguments()
    if arguments.worker:
        return work(arguments)
    try:
        import torch
        import deepspeed  # noqa: F401
    except ImportError as fault:
        print(f"skipped: {fault}")
        return 77
    runs = {}
    for name in METHODS:
        runs["ours, " + name] = run_ours(arguments, name)
    compile_operators(arguments)
    for name in METHODS:
        runs["DeepSpeed, " + name] = run_theirs(arguments, name)
    print(f"{peers.describe_machine(torch)}, deepspeed {deepspeed.__version__}\n{arguments.preset}, "
          f"{arguments.seqs} x {arguments.length} tokens, {arguments.steps} steps after {arguments.warm_up}, "
          f"topk_ratio {arguments.topk_ratio}, S = {arguments.update_interval}"
          f"{'' if shutil.which('numactl') else ', cores not bound: numactl is not installed'}")
    peers.print_table(("", "ms/step", "mean", "worst", "host GB", "first step, s", ""),
                      [row_of(name, run) for name, run in runs.items()])
    peers.write_json(arguments.json, {"machine": peers.describe_machine(torch), "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
