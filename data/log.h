/* Messages to the person who runs the program, on standard error.
 *
 * Only rank 0 speaks, so that a run of many ranks reads like a run of one. The program's results
 * go to standard output and to files, never through here. */
#ifndef ZF_DATA_LOG_H
#define ZF_DATA_LOG_H

#include <stdbool.h>
#include <stdio.h>

/* Says which rank this is (default 0). Ranks other than 0 print nothing. */
void log_set_rank(int rank);

/* Called before and after each message is printed, by the thread that prints it, so that a live
 * line can make way; NULL: none. */
void log_set_around(void (*before)(void), void (*after)(void));
/* Calls the first of the two, for who says the program's last words on his own. */
void log_make_way(void);

/* Whether a stream takes a line without a wait for its reader, who is waited for if not; until
 * log_hurry: from then on what is not taken at once is not said. */
bool log_is_taken(FILE *stream);
/* There are more urgent things than words. Any thread may say so. */
void log_hurry(void);

void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* As log_info, after "warning: ", which has a colour on a terminal. */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
