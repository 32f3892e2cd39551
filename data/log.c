#include "data/log.h"

#include "data/show.h"
#include "data/terminal.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

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

static void print(const char *prefix, const char *format, va_list args)
{
    char raw[2048], shown[2048];
    if (log_rank != 0)
        return;
    vsnprintf(raw, sizeof raw, format, args);
    show_text(shown, sizeof shown, raw);
    log_make_way();
    fprintf(stderr, "%s%s\n", prefix, shown);
    if (log_after)
        log_after();
}

void log_info(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print("", format, args);
    va_end(args);
}

void log_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print(terminal_has_colour(STDERR_FILENO) ? TERMINAL_YELLOW "warning:" TERMINAL_PLAIN " "
                                             : "warning: ",
          format, args);
    va_end(args);
}
