#include "cmd/line.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char between[] = "  ";

void line_add(struct line *line, int priority, const char *format, ...)
{
    va_list args;
    if (line->n == LINE_PARTS)
        return;
    va_start(args, format);
    vsnprintf(line->parts[line->n].text, sizeof line->parts->text, format, args);
    va_end(args);
    line->parts[line->n++].priority = priority;
}

/* The one that stays longest of those that have not been taken; -1: all have. */
static int next_part(const struct line *line, const bool *taken)
{
    int best = -1;
    for (int i = 0; i < line->n; i++)
        if (!taken[i] && (best < 0 || line->parts[i].priority < line->parts[best].priority))
            best = i;
    return best;
}

static void append(char text[LINE_BYTES], size_t most, const char *more)
{
    const size_t used = strlen(text);
    snprintf(text + used, most + 1 - used, "%s", more);
}

void line_write(const struct line *line, int columns, char text[LINE_BYTES])
{
    const size_t room = columns > 0 && columns < LINE_BYTES ? (size_t)columns : LINE_BYTES - 1;
    bool taken[LINE_PARTS] = {false};
    size_t length = 0;
    for (int i; (i = next_part(line, taken)) >= 0; taken[i] = true) {
        const bool is_first = length == 0;
        length += strlen(line->parts[i].text) + (is_first ? 0 : strlen(between));
        if (length > room && !is_first)
            break;
    }
    *text = 0;
    for (int i = 0; i < line->n; i++)
        if (taken[i]) {
            append(text, room, *text ? between : "");
            append(text, room, line->parts[i].text);
        }
}
