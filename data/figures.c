#include "data/figures.h"

#include <math.h>
#include <stdio.h>

#define DAY (24 * 3600)

struct figure figure_count(double n)
{
    struct figure f;
    char digits[24];
    if (!(fabs(n) < 1e15)) {
        snprintf(f.text, sizeof f.text, "%g", n);
        return f;
    }
    const int length = snprintf(digits, sizeof digits, "%.0f", fabs(round(n)));
    char *out = f.text;
    if (round(n) < 0)
        *out++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *out++ = ',';
        *out++ = digits[i];
    }
    *out = 0;
    return f;
}

struct figure figure_share(double share)
{
    struct figure f;
    snprintf(f.text, sizeof f.text, "%.1f%%", 100 * share);
    return f;
}

struct figure figure_time(double seconds)
{
    struct figure f;
    if (!(seconds < 1e15)) {
        snprintf(f.text, sizeof f.text, "%g", seconds);
        return f;
    }
    const long long s = seconds > 0 ? llround(seconds) : 0, minutes = s / 60;
    if (s >= DAY)
        snprintf(f.text, sizeof f.text, "%lld d %lld h", s / DAY, s % DAY / 3600);
    else if (s >= 3600)
        snprintf(f.text, sizeof f.text, "%lld:%02lld:%02lld", s / 3600, minutes % 60, s % 60);
    else
        snprintf(f.text, sizeof f.text, "%lld:%02lld", minutes, s % 60);
    return f;
}
