/* Messages to the person who runs the program, on standard error.
 *
 * Only rank 0 speaks, so that a run of many ranks reads like a run of one. The program's results
 * go to standard output and to files, never through here. */
#ifndef ZF_DATA_LOG_H
#define ZF_DATA_LOG_H

#include <stdbool.h>

/* Says which rank this is (default 0). Ranks other than 0 print nothing. */
void log_set_rank(int rank);

/* Called before each message is printed, so that a live progress line can clear itself;
 * NULL: none. */
void log_set_before(void (*before)(void));

void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* As log_info, after "warning: ". */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
