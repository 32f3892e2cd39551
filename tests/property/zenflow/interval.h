/* The windows' length that an engine chooses itself: tests for the list of invariants.c. */
#ifndef ZF_TESTS_ZENFLOW_INTERVAL_H
#define ZF_TESTS_ZENFLOW_INTERVAL_H

void auto_by_hand(void **state);
void auto_on_ranks(void **state);
void auto_keeps_up(void **state);
void keep_up(void **state);

#endif
