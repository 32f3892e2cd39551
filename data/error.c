#include "data/error.h"

#include "data/show.h"

#include <stdarg.h>
#include <stdio.h>

static void write_sentence(struct zf_error *err, const char *format, va_list args)
{
    char raw[sizeof err->text];
    vsnprintf(raw, sizeof raw, format, args);
    show_text(err->text, sizeof err->text, raw);
}

bool zf_fail(struct zf_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_sentence(err, format, args);
    va_end(args);
    err->usage = false;
    return false;
}

bool zf_fail_usage(struct zf_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_sentence(err, format, args);
    va_end(args);
    err->usage = true;
    return false;
}
