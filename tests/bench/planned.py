"""One plan by zf-bench, as other scripts here ask for it."""
import json
import subprocess
import tempfile

# Windows of 4, a new choice every 16 steps.
ZENFLOW = ["--method", "staggered", "--topk_ratio", "0.05", "--update_interval", "4", "--select_interval", "16"]


def planned(build, machine, model, sequences, length, options):
    """The figures of a method on a machine's name or file, without dropout; sequences of so many tokens, in one micro-batch."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([build + "/zf-bench", "train", "--plan", machine, "--preset", model, "--seqs", str(sequences),
                        "--length", str(length), "--dropout", "0", "--json", out.name, *options],
                       check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))["methods"][0]
