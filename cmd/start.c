#include "cmd/start.h"

#include "data/clock.h"
#include "data/log.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>

#define MAX_PARTS 8

static struct {
    bool notes;
    double began, last;
    struct {
        const char *name;
        double seconds;
    } parts[MAX_PARTS];
    int n;
} start;

void start_begin(void)
{
    start.notes = true;
    start.n = 0;
    start.began = start.last = clock_seconds();
}

void start_part(const char *name)
{
    const double now = clock_seconds();
    if (!start.notes)
        return;
    assert(start.n < MAX_PARTS);
    start.parts[start.n].name = name;
    start.parts[start.n++].seconds = now - start.last;
    start.last = now;
}

void start_tell(void)
{
    char text[MAX_PARTS * 64] = "";
    if (!start.notes)
        return;
    start.notes = false;
    for (int i = 0, at = 0; i < start.n; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%.40s %.2f", i > 0 ? ", " : "",
                       start.parts[i].name, start.parts[i].seconds);
    log_info("the first step was done %.2f s after the start: %s", start.last - start.began, text);
}
