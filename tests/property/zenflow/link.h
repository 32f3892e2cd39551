/* How the engine uses streams and pinned memory: tests for the list of invariants.c. */
#ifndef ZF_TESTS_ZENFLOW_LINK_H
#define ZF_TESTS_ZENFLOW_LINK_H

void stream_priorities(void **state);
void steps_copy_pinned_memory(void **state);

#endif
