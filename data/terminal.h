/* What a person's terminal can do. */
#ifndef ZF_DATA_TERMINAL_H
#define ZF_DATA_TERMINAL_H

#include <stdbool.h>

/* Whether there is one, and it can clear a line: TERM says which. Programs under mpirun have none:
 * their standard error is a pipe, though their standard output may look like a terminal. */
bool terminal_is_at(int file);
/* And wants colour: NO_COLOR (no-color.org) is not set, or empty. */
bool terminal_has_colour(int file);
/* How wide it is now; 80 where it does not say. */
int terminal_columns(int file);

/* Colours, and their end. */
#define TERMINAL_BOLD   "\033[1m"
#define TERMINAL_DIM    "\033[2m"
#define TERMINAL_YELLOW "\033[1;33m"
#define TERMINAL_CYAN   "\033[36m"
#define TERMINAL_PLAIN  "\033[0m"

#endif
