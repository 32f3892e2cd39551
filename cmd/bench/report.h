/* Several runs' reports on one page: what their folders' report.html hold, side by side. */
#ifndef ZF_CMD_BENCH_REPORT_H
#define ZF_CMD_BENCH_REPORT_H

#include "cmd/bench/options.h"

/* Folders come first, then options. */
bool bench_report(int argc, char **argv, struct zf_error *err);
extern const struct bench_options bench_report_options; /* for its manual */

#endif
