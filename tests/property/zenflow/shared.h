/* What the invariants share: how many problems they try, how near is near, and
 * resuming. */
#ifndef ZF_TESTS_ZENFLOW_SHARED_H
#define ZF_TESTS_ZENFLOW_SHARED_H

#include "tests/property/zenflow/problem.h"

bool on_cuda(void);
/* Problems that a test tries; under the emulator each runs in another order of streams, and takes
 * so long that only the long ring tries many. */
unsigned cases(unsigned on_cpu);
int steps(int on_cpu);
/* How near two ways of summing come, where parameters are rounded to bf16 in between: a sum's last
 * bit may tip a rounding over. */
double near(double exact);
/* Of a to b, as a share of b's norm. */
double distance(const float *a, const float *b, size_t n);
void assert_same_bits(const struct problem *a, const struct problem *b, const char *what);
/* The steps [first, last). */
void run(struct problem *p, int first, int last);

/* A new folder that all ranks know; the caller gives it to remove_shared. */
char *shared_folder(void);
void remove_shared(char *folder);
/* What a training checkpoint does: the model's parameters beside the engine's state, which may be
 * all that anybody has looked at since the last step. */
void resume_at(struct problem *p, struct problem *resumed, const char *folder);

#endif
