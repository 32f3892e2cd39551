/* What a person is told at a run's end: what lies in output_dir, and what to type next. */
#ifndef ZF_CMD_SUMMARY_H
#define ZF_CMD_SUMMARY_H

#include "cmd/run.h"

/* On standard output. For rank 0, when all is written, or the run has been stopped and saved. */
void summary_print(const struct run *run);

#endif
