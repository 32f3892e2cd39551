#!/usr/bin/env python3
"""What DeepSpeed needs for a model's states by its own published formulas: a line for each way of keeping them.

    python3 tests/bench/deepspeed_memory.py NAME PARAMETERS LARGEST GPUS

PARAMETERS of the model, LARGEST of them in one module, on one host with so many GPUs. Activations, buckets and
fragmentation come on top of it. The formulas are those of DeepSpeed's estimators, as its documentation gives them
(https://deepspeed.readthedocs.io/en/latest/memory.html): estimate_zero2_model_states_mem_needs of
deepspeed/runtime/zero/stage_1_and_2.py and estimate_zero3_model_states_mem_needs of deepspeed/runtime/zero/stage3.py, with
their defaults: host memory is multiplied by 1.5 for buffers.
"""
import sys

BUFFERS = 1.5  # additional_buffer_factor
FP32_GRADIENT_ON_EACH_RANK = 4
OPTIMIZER_ON_HOST = 16  # fp32 master, both moments, and an fp32 gradient
WITH_PARAMETERS = 18  # and the 16-bit parameters


def zero_offload(parameters, _largest, gpus):
    """ZeRO-2, offload_optimizer cpu: 16-bit parameters whole on each GPU."""
    return 2 * parameters, parameters * max(FP32_GRADIENT_ON_EACH_RANK * gpus, OPTIMIZER_ON_HOST) * BUFFERS


def zero3_offload(parameters, largest, gpus):
    """ZeRO-3, offload_optimizer cpu: 16-bit parameters divided over the GPUs; 4 bytes for the largest module."""
    return 4 * largest + 2 * parameters // gpus, parameters * OPTIMIZER_ON_HOST * BUFFERS


def zero_infinity(parameters, largest, _gpus):
    """ZeRO-3, offload_optimizer and offload_param cpu."""
    return 4 * largest, parameters * WITH_PARAMETERS * BUFFERS


def main():
    name, parameters, largest, gpus = sys.argv[1], *map(int, sys.argv[2:5])
    ways = {"ZeRO-Offload (stage 2)": zero_offload, "stage 3, optimizer on the host": zero3_offload,
            "ZeRO-Infinity (stage 3, all on the host)": zero_infinity}
    print(f"DeepSpeed's states of {name}, {parameters / 1e9:.2f} B parameters, by its own formulas; GB of each GPU, and of the host")
    for way, formula in ways.items():
        device, host = formula(parameters, largest, gpus)
        print(f"  {way:42s} {device / 1e9:8.2f} {host / 1e9:10.2f}")


if __name__ == "__main__":
    main()
