/* A line of what a run tells, in parts of which those that matter least are left out where there is
 * no room for all. */
#ifndef ZF_CMD_LINE_H
#define ZF_CMD_LINE_H

#include <stddef.h>

#define LINE_PARTS 12
#define LINE_BYTES 512 /* of the longest line, with its end */

struct line {
    struct {
        char text[80];
        int priority; /* 0 stays longest */
    } parts[LINE_PARTS];
    int n;
};

/* A part behind those that are there; nothing where there are LINE_PARTS. */
void line_add(struct line *line, int priority, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The line in the order of its parts, two blanks between: with as many of the first priorities as
 * fit into so many columns, 0 being any number; and where the first part alone does not fit, as
 * much of it as does. Of parts with the same priority those added first stay longer. Characters are
 * ASCII, each a column. */
void line_write(const struct line *line, int columns, char text[LINE_BYTES]);

#endif
