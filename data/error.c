#include "data/error.h"

#include "data/show.h"

#include <stdarg.h>
#include <stdio.h>

bool zf_fail(struct zf_error *err, const char *format, ...)
{
    char raw[sizeof err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    show_text(err->text, sizeof err->text, raw);
    return false;
}
