/* What is left to "auto": where things live on a device that has memory of its own, and how a step
 * is cut. Of all combinations that fit the one is taken that takes least time, by a reckoning from
 * plans (memory_choice.c). What is asked for by name stays. */
#ifndef ZF_CMD_MEMORY_CHOICE_H
#define ZF_CMD_MEMORY_CHOICE_H

#include "cmd/memory_need.h"

/* Every "auto" becomes what is fastest where memory does not count. */
void memory_settle(const struct memory_job *job, struct config *c);

/* Bytes that there are for each rank. */
struct memory_room {
    size_t device, host;
};
/* What a run lacks of them, on the rank that lacks most; below 0: so much is left. */
struct memory_lack {
    double device, host;
};
/* Collective. */
struct memory_lack memory_lack(const struct memory_job *job, const struct config *c,
                               const struct memory_room *room);

/* Every "auto" becomes what is fastest and fits into the memory of device and host on every rank;
 * where nothing fits, what lacks least. told: a line for each, with its reason. Collective. */
void memory_choose(const struct memory_job *job, struct config *c, const struct memory_room *room,
                   char *told, size_t size);

/* For a settled configuration that does not fit, as the end of a sentence: the least change that
 * would, of what was asked for by name too. Collective. */
void memory_advise(const struct memory_job *job, const struct config *c,
                   const struct memory_room *room, char *text, size_t size);

/* A size as a person reads it. */
struct size_text {
    char text[32];
};
struct size_text size_text(double bytes);

#endif
