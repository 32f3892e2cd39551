#include "data/error.h"

#include <stdarg.h>
#include <stdio.h>

bool zf_fail(struct zf_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return false;
}
