/* zf-bench schedule: what a step would take on machines that are not here. Simulates resident
 * AdamW, ZeRO-Offload and ZenFlow with the engine's own schedule functions over given rates
 * (bench_schedule_sim.h) and prints step times, stalls, traffic and memory. Without options: for
 * Llama-2-7B on 4 A100s and GPT 6.7B on one H200, beside the published figures, and how cost grows
 * with ranks and model size. It measures nothing, and says so. */
#ifndef ZF_CMD_BENCH_SCHEDULE_H
#define ZF_CMD_BENCH_SCHEDULE_H

#include "data/error.h"

bool bench_schedule(int argc, char **argv, struct zf_error *err);

#endif
