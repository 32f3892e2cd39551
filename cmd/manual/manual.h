/* What a program's options are, told once: for --help, a man page, and what bash and zsh
 * complete. */
#ifndef ZF_CMD_MANUAL_MANUAL_H
#define ZF_CMD_MANUAL_MANUAL_H

#include <stdbool.h>
#include <stdio.h>

struct manual;

/* An empty one. `program`: "zf-train"; `about`: what it does, as a line without a full stop. */
struct manual *manual_create(const char *program, const char *about);
void manual_free(struct manual *m);

/* A section of the man page, in the order of calls; with in_help of --help too. Its lines flow, but
 * for those that begin with blanks; an empty one divides paragraphs. */
void manual_add_text(struct manual *m, const char *title, bool in_help, const char *text);
/* What follows are options under this heading; with a command, those of that subcommand. */
void manual_begin_options(struct manual *m, const char *heading, const char *command);
/* An option: "--seed"; what stands for its value, "N" or "true|false", whose words with bars
 * between are completed, or NULL where it takes none; and what it is. */
void manual_add_option(struct manual *m, const char *name, const char *value, const char *help);

/* --help; its options in lines of at most 100 columns. */
void manual_print_help(const struct manual *m, FILE *out);
void manual_print_page(const struct manual *m, FILE *out); /* roff, by man(7) */
void manual_print_bash(const struct manual *m, FILE *out);
void manual_print_zsh(const struct manual *m, FILE *out);

/* The programs' own, whole. The caller frees them. */
struct manual *manual_of_train(void);
struct manual *manual_of_run(void);
struct manual *manual_of_bench(void);

#endif
