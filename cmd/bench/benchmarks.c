#include "cmd/bench/benchmarks.h"

#include "cmd/bench/adam.h"
#include "cmd/bench/kernels.h"
#include "cmd/bench/machine.h"
#include "cmd/bench/report.h"
#include "cmd/bench/train.h"

const struct benchmark benchmarks[] = {
    {"adam", "host AdamW's bandwidth beside a STREAM-like triad's, by thread count",
     &bench_adam_options, bench_adam},
    {"kernels", "each operator's time and its share of the device's own limits",
     &bench_kernels_options, bench_kernels},
    {"train", "synthetic training steps, with --compare under each offloading method",
     &bench_train_options, bench_train},
    {"machine", "this machine's rates, as a file for plans", &bench_machine_options, bench_machine},
    {"report", "several runs' report.html on one page, to compare them", &bench_report_options,
     bench_report},
};
const size_t n_benchmarks = sizeof benchmarks / sizeof *benchmarks;
