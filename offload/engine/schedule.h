/* Who owns which channels and when which window closes: pure functions of shapes, rank count and
 * step, so that every rank computes the same answer without talking.
 *
 * A channel is a row of a matrix stored (in, out). Two divisions cross each other:
 *   - ranks own contiguous ranges of a matrix's channels, equal but for the last ones, so that a
 *     collective takes a matrix, and room behind it, in one call, however many ranks there are;
 *   - the S groups of the staggered schedule have blocks of every matrix in turn
 *     (model/device/row_groups.h). Every group therefore holds one S-th of every matrix and nearly
 * one of every rank's share, so traffic and host work are equal in all steps for a model of any
 * shape, and groups do not depend on the number of ranks. */
#ifndef ZF_OFFLOAD_ENGINE_SCHEDULE_H
#define ZF_OFFLOAD_ENGINE_SCHEDULE_H

#include <stdbool.h>

struct range {
    int first, last; /* [first, last) */
};

/* How many of a matrix's `rows` channels a rank owns, but for the last ones that own any. */
int schedule_part(int rows, int ranks);
/* The channels that this rank owns. A single one (a bias is a matrix of a single row) is another
 * rank's for each index, so that they spread. */
struct range schedule_owned(int matrix, int rows, int ranks, int rank);
/* The rank that owns a channel. */
int schedule_owner(int matrix, int rows, int ranks, int row);

/* How many of a matrix's channels are important: floor(ratio * channels), but at least 1 where
 * ratio > 0. */
int schedule_important(double ratio, int channels);
/* How many of them a rank that owns `owned` of the channels has room for: its share and four
 * standard deviations of what chance gives it, but no more than there are. */
int schedule_room(int important, int owned, int channels);

/* Whether `group`'s window closes at the end of a step, `elapsed` steps (from 0) after windows
 * began. Staggered: one group a step; else all groups in each interval's last step. */
bool schedule_closes(int group, int elapsed, int interval, bool stagger);

/* The shortest window, from 1 to `longest` steps, with which the host, or the link, keeps up with a
 * tenth of its time to spare: every step brings it one part in so many of its work for all
 * channels, which takes `seconds`, beside work that takes `each` in every step, and has
 * step_seconds for both. Where that other work alone takes them, no window is short enough: then
 * the shortest that makes that work a tenth more. */
int schedule_least_interval(double seconds, double each, double step_seconds, int longest);

#endif
