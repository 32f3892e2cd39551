"""Whether zf-bench's figures agree with each other and with what can be worked out.

    bench_figures.py train JSON PRINTED SEQUENCES LENGTH MICRO_BATCHES STEPS
    bench_figures.py kernels JSON PRINTED

The preset is "gpt": vocabulary 8,000, 512 positions, width 96, 2 blocks."""

import json
import statistics
import sys

VOCABULARY, POSITIONS, WIDTH, BLOCKS = 8000, 512, 96, 2
BLOCK_MATRICES = 12 * WIDTH * WIDTH
MATRICES = BLOCKS * BLOCK_MATRICES + (VOCABULARY + POSITIONS) * WIDTH
VECTORS = BLOCKS * 13 * WIDTH + 2 * WIDTH
OPERATORS = 30 + 8 + 10  # and those with dropout a second time, and the matrix products


def near(value, expected, tolerance=1e-6):
    if not abs(value - expected) <= tolerance * max(abs(expected), 1e-30):
        raise AssertionError(f"{value} is not {expected}")


def check_line(line, root, tokens, flops, steps):
    near(len(line["seconds"]), steps)
    near(line["median_seconds"], statistics.median(line["seconds"]))
    near(line["worst_seconds"], max(line["seconds"]))
    near(line["mean_seconds"], statistics.fmean(line["seconds"]))
    near(line["tokens"], tokens)
    near(line["tokens_per_second"], tokens / line["median_seconds"])
    near(line["flops"], flops)
    near(line["product_share"], flops / line["median_seconds"] / root["product_flops_per_second"])
    near(line["link_model_sizes"], (line["bytes_down"] + line["bytes_up"]) / root["model_bytes"])
    assert 0 <= line["stall_share"] < 1
    assert line["device_bytes"] > 4 * MATRICES  # fp32 parameters on the CPU device


def check_train(root, printed, sequences, length, micro_batches, steps):
    tokens = sequences * length * micro_batches
    pairs = sequences * micro_batches * length * (length + 1) / 2
    flops = (6 * tokens * (BLOCKS * BLOCK_MATRICES + VOCABULARY * WIDTH) + 12 * BLOCKS * WIDTH * pairs)
    near(root["model_bytes"], 2 * (MATRICES + VECTORS))
    lines = {line["method"]: line for line in root["methods"]}
    resident, offload, burst, staggered, automatic, keep_up = lines.values()
    for line in lines.values():
        check_line(line, root, tokens, flops, steps)
        near(line["loss_before"], resident["loss_before"], 1e-3)
        assert line["loss_after"] < line["loss_before"], line
        row = [text for text in printed.split("\n") if text.startswith(line["method"])]
        assert len(row) == 1, row
        words = row[0][len(line["method"]):].replace("%", "").split()
        for word, figure in zip(words[1:4], (1e3 * line["median_seconds"], 1e3 * line["worst_seconds"],
                                             line["tokens_per_second"])):
            near(float(word), figure, 0.02)
    assert resident["bytes_down"] == resident["bytes_up"] == resident["host_parameters"] == 0
    near(offload["loss_after"], resident["loss_after"], 1e-3)
    for line in (offload, burst, staggered, automatic, keep_up):
        near(line["host_parameters"], MATRICES)
        assert line["host_bytes"] >= 12 * MATRICES, line  # master, m, v
        assert line["device_bytes"] < resident["device_bytes"]
    for way in ("bytes_down", "bytes_up"):
        near(offload[way], 2 * MATRICES)  # bf16
        for line in (burst, staggered):
            near(line[way], 2 * MATRICES * 0.95 / 4, 0.03)
            near(line["update_interval"], 4)
        near(keep_up[way], 2 * MATRICES * 0.95 / keep_up["update_interval"], 0.05)  # chosen before, and no more
    assert staggered["link_model_sizes"] <= 0.6


def check_kernels(root, printed):
    names = {line["kernel"] for line in root["kernels"]}
    assert len(root["kernels"]) == OPERATORS, len(root["kernels"])
    for line in root["kernels"]:
        assert line["seconds"] > 0 and line["bytes"] > 0 and line["flops"] >= 0
        rates = {"copy": line["bytes"] / line["seconds"] / root["copy_bytes_per_second"],
                 "product": line["flops"] / line["seconds"] / root["product_flops_per_second"]}
        if line["limit"] == "link":
            assert line["link_bytes"] > 0 and line["share"] is None
        else:
            near(line["share"], rates[line["limit"]])
            near(line["share"], max(rates.values()))
    for name in names:
        assert name in printed, name
    tokens, width = root["sequences"] * root["length"], WIDTH
    qkv = next(line for line in root["kernels"] if line["kernel"] == "qkv")
    near(qkv["flops"], 2 * tokens * width * 3 * width)
    near(qkv["bytes"], 4 * (tokens * width + 3 * width * width + 3 * tokens * width))


def main():
    with open(sys.argv[2]) as file:
        root = json.load(file)
    with open(sys.argv[3]) as file:
        printed = file.read()
    if sys.argv[1] == "train":
        check_train(root, printed, *map(int, sys.argv[4:]))
    else:
        check_kernels(root, printed)


main()
