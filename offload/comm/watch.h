/* Whether the other ranks go on: a thread of each rank tells rank 0 once a second where the rank
 * is, over a connection of its own, which works where MPI or a device hangs; and rank 0 tells them.
 *
 * A rank of which nothing is heard, one that ends while others work, and work in which no rank goes
 * on, end the program on all ranks with status 1, after rank 0 (or, where it is the one, another)
 * has said which rank it was, and where each of them is (place.h). */
#ifndef ZF_OFFLOAD_COMM_WATCH_H
#define ZF_OFFLOAD_COMM_WATCH_H

#include "offload/comm/comm.h"

struct watch;

/* Begins to watch the ranks: silence and standstill may last `timeout` seconds; 0: for ever, and
 * only a rank's end is seen. NULL with one rank. A rank that cannot be reached is not watched,
 * after a warning. `key` is what the sentence calls the timeout. Collective. */
struct watch *watch_start(struct comm *comm, double timeout, const char *key);
/* All ranks have come to their end. Collective; NULL is fine. */
void watch_stop(struct watch *w);

#endif
