/* Optimizer files as somebody would write them who wants a run to crash: what they say is changed
 * where it means something, and their checksums are nobody's concern here. */
#ifndef ZF_TESTS_ZENFLOW_HOSTILE_H
#define ZF_TESTS_ZENFLOW_HOSTILE_H

#include "tests/property/zenflow/problem.h"

/* A safetensors file, changed in one or a few places of its header or data: a function of the seed.
 * *bytes: (capacity), of which n are used; returns how many are then. Bytes that are no such file
 * stay as they are. */
size_t hostile_change(unsigned char *bytes, size_t n, size_t capacity, uint32_t seed);

/* Loads the directory into p's engine. If it does not refuse, it has to run: steps over several
 * windows, a checkpoint, which can be loaded, an end. Returns whether it did not refuse. */
bool hostile_load(struct problem *p, const char *directory, struct zf_error *err);

#endif
