/* What bash and zsh complete: subcommands, options, the words that a value may be, and files for
 * other values. */
#include "cmd/manual/parts.h"

#include <string.h>

/* Prints the options of one subcommand, or of all the program. */
typedef void options_printer(FILE *out, const struct manual *m, const char *command,
                             const char *indent);

/* The program's name as shell functions have it. */
static void print_function(FILE *out, const struct manual *m)
{
    fputc('_', out);
    for (const char *p = m->program; *p; p++)
        fputc(*p == '-' ? '_' : *p, out);
}

/* The subcommand that the i-th part belongs to, or NULL. */
static const char *command_of(const struct manual *m, size_t i)
{
    while (i > 0 && m->parts[i].kind != MANUAL_HEADING)
        i--;
    return m->parts[i].value;
}

static bool belongs(const struct manual *m, size_t i, const char *command)
{
    const char *mine = m->parts[i].kind == MANUAL_OPTION ? command_of(m, i) : NULL;
    return m->parts[i].kind == MANUAL_OPTION &&
           (mine == command || (mine && command && strcmp(mine, command) == 0));
}

/* The i-th part's subcommand, where its heading is that one's first; or NULL. */
static const char *command_at(const struct manual *m, size_t i)
{
    const struct manual_part *part = &m->parts[i];
    if (part->kind != MANUAL_HEADING || !part->value)
        return NULL;
    for (size_t j = 0; j < i; j++)
        if (m->parts[j].kind == MANUAL_HEADING && m->parts[j].value &&
            strcmp(m->parts[j].value, part->value) == 0)
            return NULL;
    return part->value;
}

static void print_commands(FILE *out, const struct manual *m)
{
    for (size_t i = 0, n = 0; i < m->n; i++)
        if (command_at(m, i))
            fprintf(out, "%s%s", n++ ? " " : "", command_at(m, i));
}

static bool has_commands(const struct manual *m)
{
    for (size_t i = 0; i < m->n; i++)
        if (command_at(m, i))
            return true;
    return false;
}

/* A case of the shell's for each subcommand: `begin`, its options, `end`. */
static void print_cases(FILE *out, const struct manual *m, const char *indent, const char *begin,
                        options_printer *print_options, const char *end)
{
    for (size_t i = 0; i < m->n; i++)
        if (command_at(m, i)) {
            fprintf(out, "%s%s)\n%s", indent, command_at(m, i), begin);
            print_options(out, m, command_at(m, i), "        ");
            fputs(end, out);
        }
}

/* ---- bash ---- */

static void print_choices(FILE *out, const char *value)
{
    for (; *value; value++)
        fputc(*value == '|' ? ' ' : *value, out);
}

static void print_bash_options(FILE *out, const struct manual *m, const char *command,
                               const char *indent)
{
    fprintf(out, "%scase $before in\n", indent);
    for (size_t i = 0; i < m->n; i++)
        if (belongs(m, i, command) && manual_has_choices(&m->parts[i])) {
            fprintf(out, "%s%s) words='", indent, m->parts[i].name);
            print_choices(out, m->parts[i].value);
            fputs("' ;;\n", out);
        }
    for (size_t i = 0; i < m->n; i++)
        if (belongs(m, i, command) && m->parts[i].value && !manual_has_choices(&m->parts[i]))
            fprintf(out, "%s%s) return ;;\n", indent, m->parts[i].name);
    fprintf(out, "%s*) words='", indent);
    for (size_t i = 0, n = 0; i < m->n; i++)
        if (belongs(m, i, command))
            fprintf(out, "%s%s", n++ ? " " : "", m->parts[i].name);
    fprintf(out, "' ;;\n%sesac\n", indent);
}

void manual_print_bash(const struct manual *m, FILE *out)
{
    fprintf(out, "# bash completion of %s. Where no word is known, files are completed.\n",
            m->program);
    print_function(out, m);
    fputs("()\n"
          "{\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
          "    COMPREPLY=()\n"
          "    if [[ $word = '=' ]]; then\n" /* bash divides --name=value there */
          "        word=\n"
          "    elif [[ $before = '=' && COMP_CWORD -gt 2 ]]; then\n"
          "        before=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    fi\n",
          out);
    if (has_commands(m)) {
        fputs("    if [[ COMP_CWORD -eq 1 ]]; then\n        words='", out);
        print_commands(out, m);
        fputs("'\n    fi\n    case ${COMP_WORDS[1]} in\n", out);
        print_cases(out, m, "    ", "", print_bash_options, "        ;;\n");
        fputs("    esac\n", out);
    } else {
        print_bash_options(out, m, NULL, "    ");
    }
    fputs("    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n"
          "complete -o default -F ",
          out);
    print_function(out, m);
    fprintf(out, " %s\n", m->program);
}

/* ---- zsh ---- */

/* Within single quotes, in brackets, and before a colon. */
static void print_quoted(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fprintf(out, "%s%c", strchr("[]:\\", *text) ? "\\" : "", *text);
}

static bool is_number(const struct manual_part *option)
{
    return strcmp(option->value, "N") == 0 || strcmp(option->value, "X") == 0;
}

static void print_zsh_options(FILE *out, const struct manual *m, const char *command,
                              const char *indent)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct manual_part *option = &m->parts[i];
        if (!belongs(m, i, command))
            continue;
        /* After a subcommand there is no --name=value. */
        fprintf(out, " \\\n%s'%s%s[", indent, option->name, option->value && !command ? "=" : "");
        print_quoted(out, option->help);
        fputc(']', out);
        if (option->value && manual_has_choices(option)) {
            fputs(":value:(", out);
            print_choices(out, option->value);
            fputc(')', out);
        } else if (option->value) {
            fputc(':', out);
            print_quoted(out, option->value);
            fputs(is_number(option) ? ": " : ":_files", out);
        }
        fputc('\'', out);
    }
}

void manual_print_zsh(const struct manual *m, FILE *out)
{
    fprintf(out, "#compdef %s\n", m->program);
    if (!has_commands(m)) {
        fputs("_arguments", out);
        print_zsh_options(out, m, NULL, "    ");
        fputs(" \\\n    '*:file:_files'\n", out);
        return;
    }
    fputs("if ((CURRENT == 2)); then\n    compadd ", out);
    print_commands(out, m);
    fputs(
        "\n    return\nfi\nlocal command=$words[2]\nshift words\n((CURRENT--))\ncase $command in\n",
        out);
    print_cases(out, m, "", "    _arguments", print_zsh_options, "\n    ;;\n");
    fputs("esac\n", out);
}
