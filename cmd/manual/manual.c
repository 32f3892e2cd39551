/* Putting a manual together, and --help. */
#include "cmd/manual/parts.h"
#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 34
#define HELP_WIDTH  100

struct manual *manual_create(const char *program, const char *about)
{
    struct manual *m = zf_calloc(1, sizeof *m);
    m->program = zf_strdup(program);
    m->about = zf_strdup(about);
    return m;
}

void manual_free(struct manual *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n; i++) {
        free(m->parts[i].name);
        free(m->parts[i].value);
        free(m->parts[i].help);
    }
    free(m->parts);
    free(m->program);
    free(m->about);
    free(m);
}

static struct manual_part *add(struct manual *m, enum manual_kind kind, const char *name,
                               const char *value, const char *help)
{
    m->parts = zf_realloc(m->parts, (m->n + 1) * sizeof *m->parts);
    m->parts[m->n] = (struct manual_part){.kind = kind,
                                          .name = zf_strdup(name),
                                          .value = value ? zf_strdup(value) : NULL,
                                          .help = help ? zf_strdup(help) : NULL};
    return &m->parts[m->n++];
}

void manual_add_text(struct manual *m, const char *title, bool in_help, const char *text)
{
    add(m, MANUAL_TEXT, title, NULL, text)->in_help = in_help;
}

void manual_begin_options(struct manual *m, const char *heading, const char *command)
{
    add(m, MANUAL_HEADING, heading, command, NULL);
}

void manual_add_option(struct manual *m, const char *name, const char *value, const char *help)
{
    add(m, MANUAL_OPTION, name, value, help);
}

bool manual_has_choices(const struct manual_part *option)
{
    return option->value && strchr(option->value, '|');
}

/* Prints text from `column` on, broken between words; starts where the line is now. */
static void print_wrapped(FILE *out, const char *text, int at)
{
    if (at >= HELP_COLUMN - 1) {
        fputc('\n', out);
        at = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - at, "");
    at = HELP_COLUMN;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (at > HELP_COLUMN && at + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        }
        at += fprintf(out, "%s%.*s", at > HELP_COLUMN ? " " : "", word, text);
        text += word + (text[word] == ' ');
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const struct manual_part *option)
{
    int at = fprintf(out, "  %s%s%s", option->name, option->value ? " " : "",
                     option->value ? option->value : "");
    print_wrapped(out, option->help, at);
}

void manual_print_help(const struct manual *m, FILE *out)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct manual_part *part = &m->parts[i];
        const char *gap = i ? "\n" : "";
        if (part->kind == MANUAL_OPTION)
            print_option(out, part);
        else if (part->kind == MANUAL_HEADING)
            fprintf(out, "%s%s\n", gap, part->name);
        else if (part->in_help && strcmp(part->name, "Description") == 0)
            fprintf(out, "%s%s\n", gap, part->help);
        else if (part->in_help)
            fprintf(out, "%s%s\n%s\n", gap,
                    strcmp(part->name, "Synopsis") == 0 ? "Usage" : part->name, part->help);
    }
}
