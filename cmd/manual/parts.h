/* A manual's own parts, for the files of this folder. */
#ifndef ZF_CMD_MANUAL_PARTS_H
#define ZF_CMD_MANUAL_PARTS_H

#include "cmd/manual/manual.h"

#include <stddef.h>

/* A text's title and words; a heading of options and the subcommand or NULL; or an option's name,
 * value or NULL, and help. */
enum manual_kind { MANUAL_TEXT, MANUAL_HEADING, MANUAL_OPTION };

struct manual_part {
    enum manual_kind kind;
    bool in_help; /* of a text */
    char *name, *value, *help;
};

struct manual {
    char *program, *about;
    struct manual_part *parts; /* (n), in order */
    size_t n;
};

/* Whether the value is one of several words, "true|false". */
bool manual_has_choices(const struct manual_part *option);

#endif
