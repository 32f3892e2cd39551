#include "cmd/monitor.h"

#include "data/alloc.h"
#include "data/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct monitor {
    char *directory;
};

bool monitor_create(struct monitor **monitor, const struct csv_monitor_config *config,
                    struct zf_error *err)
{
    if (!config->enabled)
        return true;
    char *directory =
        zf_format("%s/%s", config->output_path && *config->output_path ? config->output_path : ".",
                  config->job_name);
    if (!file_make_directory(directory, err)) {
        free(directory);
        return false;
    }
    *monitor = zf_malloc(sizeof **monitor);
    (*monitor)->directory = directory;
    return true;
}

void monitor_destroy(struct monitor *monitor)
{
    if (!monitor)
        return;
    free(monitor->directory);
    free(monitor);
}

bool monitor_write(struct monitor *monitor, const char *name, long step, double value,
                   struct zf_error *err)
{
    if (!monitor)
        return true;
    char *path = zf_format("%s/%s.csv", monitor->directory, name);
    for (char *p = path + strlen(monitor->directory) + 1; *p; p++)
        if (*p == '/' || *p == ' ')
            *p = '_';
    bool is_new = !file_exists(path);
    FILE *f = fopen(path, "a");
    bool ok = f != NULL;
    if (f) {
        const char *last = strrchr(name, '/');
        if (is_new)
            fprintf(f, "step,%s\n", last ? last + 1 : name);
        fprintf(f, "%ld,%.9g\n", step, value);
        ok = !ferror(f);
        ok = fclose(f) == 0 && ok;
    }
    if (!ok)
        zf_fail(err, "%s: cannot be written: %s", path, strerror(errno));
    free(path);
    return ok;
}
