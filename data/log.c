#include "data/log.h"

#include "data/show.h"

#include <stdarg.h>
#include <stdio.h>

static int log_rank;
static void (*log_before)(void);

void log_set_rank(int rank)
{
    log_rank = rank;
}

void log_set_before(void (*before)(void))
{
    log_before = before;
}

static void print(const char *prefix, const char *format, va_list args)
{
    if (log_rank != 0)
        return;
    if (log_before)
        log_before();
    char raw[2048], shown[2048];
    vsnprintf(raw, sizeof raw, format, args);
    show_text(shown, sizeof shown, raw);
    fprintf(stderr, "%s%s\n", prefix, shown);
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
    print("warning: ", format, args);
    va_end(args);
}
