/* zf-manual: writes the programs' man pages and completions, while they are built. Not installed.
 *
 *     zf-manual FOLDER   zf-train.1, zf-train.bash, _zf-train, and so for each program */
#include "cmd/manual/manual.h"
#include "data/alloc.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    struct manual *(*manual)(void);
} programs[] = {
    {"zf-train", manual_of_train}, {"zf-run", manual_of_run}, {"zf-bench", manual_of_bench}};

static const struct {
    const char *path; /* of a folder and a program */
    void (*print)(const struct manual *m, FILE *out);
} forms[] = {{"%s/%s.1", manual_print_page},
             {"%s/%s.bash", manual_print_bash},
             {"%s/_%s", manual_print_zsh}};

static bool write_form(const struct manual *m, int form, const char *folder, const char *program)
{
    char *path = zf_format(forms[form].path, folder, program);
    FILE *out = fopen(path, "w");
    if (out)
        forms[form].print(m, out);
    const bool ok = out && !ferror(out);
    const bool closed = out && fclose(out) == 0;
    if (!ok || !closed)
        fprintf(stderr, "zf-manual: %s cannot be written\n", path);
    free(path);
    return ok && closed;
}

int main(int argc, char **argv)
{
    bool ok = argc == 2;
    if (!ok)
        fputs("usage: zf-manual FOLDER\n", stderr);
    for (size_t i = 0; ok && i < sizeof programs / sizeof *programs; i++) {
        struct manual *m = programs[i].manual();
        for (int form = 0; ok && form < 3; form++)
            ok = write_form(m, form, argv[1], programs[i].name);
        manual_free(m);
    }
    return ok ? 0 : 1;
}
