/* A man page, in the macros of man(7), which every troff and mandoc know. */
#include "cmd/manual/parts.h"

#include <ctype.h>
#include <string.h>

/* Text of a line: what roff would take for a command or turn into another character is escaped. */
static void print_escaped(FILE *out, const char *text, size_t n)
{
    if (n && (*text == '.' || *text == '\''))
        fputs("\\&", out);
    for (size_t i = 0; i < n; i++) {
        const char *special = strchr("-\\~^`'", text[i]);
        static const char *const escapes[] = {"\\-", "\\e", "\\(ti", "\\(ha", "\\(ga", "\\(aq"};
        if (text[i] && special)
            fputs(escapes[special - "-\\~^`'"], out);
        else
            fputc(text[i], out);
    }
}

static void print_upper(FILE *out, const char *text)
{
    for (; *text; text++)
        fputc(toupper((unsigned char)*text), out);
}

/* Lines flow into paragraphs; those that begin with blanks are examples. */
static void print_text(FILE *out, const char *text)
{
    bool in_example = false, gap = false, first = true;
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        const bool example = *text == ' ';
        if (n == 0) {
            gap = true;
            continue;
        }
        if (in_example && !example)
            fputs(".EE\n", out);
        if (!first && (example ? !in_example : gap))
            fputs(".PP\n", out);
        if (example && !in_example)
            fputs(".EX\n", out);
        print_escaped(out, text, n);
        fputc('\n', out);
        in_example = example;
        gap = first = false;
    }
    if (in_example)
        fputs(".EE\n", out);
}

static void print_option(FILE *out, const struct manual_part *option)
{
    fputs(".TP\n\\fB", out);
    print_escaped(out, option->name, strlen(option->name));
    fputs("\\fR", out);
    if (option->value) {
        fputs(manual_has_choices(option) ? " " : " \\fI", out);
        print_escaped(out, option->value, strlen(option->value));
        fputs("\\fR", out);
    }
    fputc('\n', out);
    print_escaped(out, option->help, strlen(option->help));
    fputc('\n', out);
}

void manual_print_page(const struct manual *m, FILE *out)
{
    bool options = false;
    fputs(".TH ", out);
    print_upper(out, m->program);
    fprintf(out, " 1 \"\" \"zf\\-train " ZF_VERSION "\" \"User Commands\"\n.SH NAME\n");
    print_escaped(out, m->program, strlen(m->program));
    fputs(" \\- ", out);
    print_escaped(out, m->about, strlen(m->about));
    fputc('\n', out);
    for (size_t i = 0; i < m->n; i++) {
        const struct manual_part *part = &m->parts[i];
        if (part->kind == MANUAL_TEXT) {
            fprintf(out, ".SH ");
            print_upper(out, part->name);
            fputc('\n', out);
            print_text(out, part->help);
        } else if (part->kind == MANUAL_HEADING) {
            fputs(options ? "" : ".SH OPTIONS\n", out);
            options = true;
            fputs(".SS ", out);
            print_escaped(out, part->name, strlen(part->name));
            fputc('\n', out);
        } else {
            print_option(out, part);
        }
    }
}
