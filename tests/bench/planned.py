"""One plan by zf-bench, as other scripts here ask for it; hosts of other rates; and what physics allows."""
import json
import pathlib
import subprocess
import tempfile

TOPK_RATIO, UPDATE_INTERVAL = 0.05, 4
# Windows of UPDATE_INTERVAL, a new choice every 16 steps.
CHOICES = ["--topk_ratio", str(TOPK_RATIO), "--select_interval", "16"]
ZENFLOW = ["--method", "staggered", "--update_interval", str(UPDATE_INTERVAL), *CHOICES]
ADAM_BYTES = 28  # of host memory that an update reads and writes, of each parameter (offload/host/adam.h)


def planned(build, machine, model, sequences, length, options):
    """The figures of a method on a machine's name or file, without dropout; sequences of so many tokens, in one micro-batch."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([build + "/zf-bench", "train", "--plan", machine, "--preset", model, "--seqs", str(sequences),
                        "--length", str(length), "--dropout", "0", "--json", out.name, *options],
                       check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))["methods"][0]


def machine_with_host(folder, machine, rate):
    """The path of a machine file like that of configs/machines, whose host's memory moves `rate` bytes a second."""
    path = pathlib.Path(folder, f"{machine}-{rate:.0f}.json")
    figures = json.load(open(f"configs/machines/{machine}.json"))
    figures["host"]["adam_bytes_per_second"] = {"value": rate, "source": "given"}
    path.write_text(json.dumps(figures))
    return path


def host_memory_seconds(figures, rate):
    """The least time of a step of ZENFLOW that host memory of `rate` bytes a second allows: what AdamW of the deferred
    channels reads and writes, and what the link does."""
    updated = (1 - TOPK_RATIO) / UPDATE_INTERVAL * figures["host_parameters"]
    return (ADAM_BYTES * updated + figures["bytes_down"] + figures["bytes_up"] + figures["bytes_moved"]) / rate


def link_seconds(figures, path):
    """The same of the link, whose directions are two."""
    link = json.load(open(path))["link"]["bytes_per_second"]
    return max(figures["bytes_down"], figures["bytes_up"]) / (link["value"] * link.get("efficiency", 1))
