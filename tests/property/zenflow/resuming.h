/* Engines that go on from checkpoints, whole and hostile ones: tests for the list of
 * invariants.c. */
#ifndef ZF_TESTS_ZENFLOW_RESUMING_H
#define ZF_TESTS_ZENFLOW_RESUMING_H

void I6(void **state);
void I6_other_ranks(void **state);
void I6_used_engine(void **state);
void hostile_checkpoints(void **state);

#endif
