/* The invariants of memory that want a whole model: tests for the list of invariants.c. */
#ifndef ZF_TESTS_ZENFLOW_PLACES_H
#define ZF_TESTS_ZENFLOW_PLACES_H

void M2(void **state);
void M3(void **state);
void device_bytes(void **state);
void divided_bytes(void **state);
void host_bytes(void **state);
void M4(void **state);
void ten_times(void **state);
void gaps_stay_zero(void **state);
void evaluation(void **state);

#endif
