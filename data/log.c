#include "data/log.h"

#include "data/show.h"
#include "data/terminal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define INDENT 2 /* of what goes on in another line */

static int log_rank;
static void (*log_before)(void), (*log_after)(void);

void log_set_rank(int rank)
{
    log_rank = rank;
}

void log_set_around(void (*before)(void), void (*after)(void))
{
    log_before = before;
    log_after = after;
}

void log_make_way(void)
{
    if (log_before)
        log_before();
}

static int count_characters(const char *text, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80; /* of a character the first byte */
    return count;
}

/* A message from this column on: broken between words where the terminal ends, then indented. */
static void print_broken(const char *text, int at, int columns)
{
    for (size_t n; *text; text += n) {
        const size_t blanks = strspn(text, " ");
        n = blanks + strcspn(text + blanks, " ");
        const bool breaks = at > INDENT && at + count_characters(text, n) > columns;
        const size_t skipped = breaks ? blanks : 0;
        if (breaks)
            fprintf(stderr, "\n%*s", INDENT, "");
        fprintf(stderr, "%.*s", (int)(n - skipped), text + skipped);
        at = (breaks ? INDENT : at) + count_characters(text + skipped, n - skipped);
    }
    fputc('\n', stderr);
}

static void print(bool warning, const char *format, va_list args)
{
    const bool terminal = terminal_is_at(STDERR_FILENO);
    const bool colour = warning && terminal_has_colour(STDERR_FILENO);
    const char *prefix = warning ? "warning: " : "";
    char raw[2048], shown[2048];
    if (log_rank != 0)
        return;
    vsnprintf(raw, sizeof raw, format, args);
    show_text(shown, sizeof shown, raw);
    log_make_way();
    fprintf(stderr, "%s%s%s", colour ? TERMINAL_YELLOW : "", prefix, colour ? TERMINAL_PLAIN : "");
    if (terminal)
        print_broken(shown, (int)strlen(prefix), terminal_columns(STDERR_FILENO));
    else
        fprintf(stderr, "%s\n", shown);
    if (log_after)
        log_after();
}

void log_info(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print(false, format, args);
    va_end(args);
}

void log_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print(true, format, args);
    va_end(args);
}
