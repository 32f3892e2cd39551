/* The table behind config.h: one row a key. From it come parsing, checks, suggestions, --help,
 * --print_config and config_write. For the files of this folder only. */
#ifndef ZF_CMD_CONFIG_TABLE_H
#define ZF_CMD_CONFIG_TABLE_H

#include "cmd/config/config.h"

#include <jansson.h>
#include <stddef.h>

#define CONFIG_ARGUMENTS "training_arguments."

/* What there is in place of a service that a run would report to. */
#define CONFIG_REPORTS                                                                             \
    "nothing is sent over a network here: a run writes report.html and trainer_log.jsonl, and "    \
    "TensorBoard's event files with report_to \"tensorboard\""
#define CONFIG_NO_WANDB CONFIG_REPORTS ", which \"wandb sync FOLDER\" imports"

enum config_type {
    CONFIG_SAME,    /* a second name: same_as has all but the name */
    CONFIG_HEADING, /* not a key: a group's title in --help */
    CONFIG_BOOL,
    CONFIG_TRUTH, /* the same or "auto", in an int: CONFIG_AUTO until it is settled */
    CONFIG_INT,
    CONFIG_REAL,
    CONFIG_STEPS, /* a whole number of steps, or below 1 a share of all, in a double */
    CONFIG_STRING,
    CONFIG_NAMES,  /* a string, of names with commas between; in the file a list of them too */
    CONFIG_CHOICE, /* an enum, whose values are numbered as in `choices` */
    CONFIG_PAIR,   /* optimizer.params.betas: two numbers, for same_as and the row after it */
};

struct config_key {
    const char *name; /* key path in the file: "training_arguments.seed" */
    enum config_type type;
    size_t offset;        /* of the field in struct config */
    const char *standard; /* the default, as an option's text; NULL: not given */
    double min, max;      /* of numbers, inclusive */
    const char *choices;  /* "linear|cosine" */
    const char *word;     /* "auto", "sqrt", "auto|keep_up": taken in a number's place, stored as
                             CONFIG_AUTO, a second one as one less. Of a string: what true
                             stands for */
    const char *same_as;  /* a second name for that row's field; "auto" there means not given */
    const char *expected; /* what faults call for, where type and range do not say it well */
    const char *help;
};

extern const struct config_key config_table[];
extern const int config_table_rows;

/* A key of DeepSpeed's or Transformers' that has no field here. Where its value asks for nothing it
 * is passed over: null and "auto"; and its default, or those that `harmless` tells, or without
 * either false, 0, "none" and a block that is not enabled. */
struct config_foreign {
    const char *name;     /* a key path; a block stands for all within it */
    char standard[32];    /* its default, or "": one of those that ask for nothing anyhow */
    const char *harmless; /* the values that ask for nothing, as an extended pattern for fnmatch */
    const char *refused;  /* why the run would not be what it asks for; NULL: a warning is enough */
    const char *note;     /* what to use instead, for the warning; or NULL */
};

/* Where a value came from; one per row of the table, used for rows without same_as. In order of
 * rank. */
enum config_level { LEVEL_DEFAULT, LEVEL_AUTO, LEVEL_FILE, LEVEL_OPTION };

struct config_origin {
    enum config_level level;
    const struct config_key *by; /* the name under which it was given */
    int line;                    /* LEVEL_FILE: in the file */
    char *file;
};

/* key.c: rows and their values. */

/* The row of a key path, or of an option's name,
 * which leaves "training_arguments." out; or NULL. */
const struct config_key *config_find_path(const char *path);
const struct config_key *config_find_option(const char *name);
/* The row whose field `key` sets. */
const struct config_key *config_primary(const struct config_key *key);
/* The name as an option spells it, without dashes before it. */
const char *config_option_name(const struct config_key *key);
/* True where rows lie below this key path. */
bool config_is_block(const char *path);
/* The known key path nearest to an unknown one, or NULL where none is near. Into out. */
const char *config_nearest(const char *path, bool with_blocks, char *out, size_t size);

/* "a whole number of at least 1", "one of ...". Into out. */
const char *config_expected(const struct config_key *key, char *out, size_t size);
/* The JSON value that an option's text stands for; a string where it does not fit the type. */
json_t *config_parse_text(const struct config_key *key, const char *text);
/* Sets the default. */
void config_reset(struct config *c, const struct config_key *key);
/* Stores a value, checked by type and range; false leaves the field as it is. Not for pairs. */
bool config_store(struct config *c, const struct config_key *key, const json_t *value);
/* The field's value, a new reference; NULL where it is not given. */
json_t *config_value(const struct config *c, const struct config_key *key);
/* " (did you mean X?)" for a value that does not fit, or "". Into out. */
const char *config_suggest_value(const struct config_key *key, const json_t *value, char *out,
                                 size_t size);
/* As JSON text with no more digits than it takes to get every number back. The caller frees it. */
char *config_dump(const json_t *value, size_t flags);

/* foreign.c */

/* Whether this key path, or a block that it lies in, is foreign; fills *out. */
bool config_find_foreign(const char *path, struct config_foreign *out);
bool config_is_harmless(const struct config_foreign *foreign, const json_t *value);

/* origin.c: where values came from. The checks between keys name a row as an option does. */

/* Where a value stands. */
struct config_place {
    enum config_level level;
    const char *file; /* LEVEL_FILE */
    int line;
};

/* "FILE:LINE: KEY" or "--option", as a sentence begins. Into out. */
const char *config_name_place(const struct config_place *at, const char *path, char *out,
                              size_t size);
struct config_origin *config_origin_of_key(const struct config *c, const struct config_key *key);
/* `key` was given there under the name of `by`. */
void config_set_origin(struct config *c, const struct config_key *key, const struct config_key *by,
                       const struct config_place *at);
struct config_origin *config_origin_of(const struct config *c, const char *name);
bool config_is_given(const struct config *c, const char *name);
/* config_name_place of where a value came from, under the name by which it was given. */
const char *config_name_origin(const struct config *c, const char *name, char *out, size_t size);
/* Warns: "FILE:LINE: KEY has no meaning here: ...". */
void config_warn_idle(const struct config *c, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Says that this value was worked out. */
void config_mark_auto(struct config *c, const char *name);
/* Fails with "FILE:LINE: KEY is VALUE, but ..." as the value was given. */
bool config_clash(const struct config *c, const char *name, struct zf_error *err,
                  const char *format, ...) __attribute__((format(printf, 4, 5)));

/* resolve.c */
bool config_resolve(struct config *c, struct zf_error *err);
/* Whether DeepSpeed's scheduler of this type has this key ("scheduler.params.warmup_min_lr"). */
bool config_scheduler_takes(enum ds_scheduler type, const char *param);

/* idle.c: once all else is resolved. */
void config_warn_of_idle(const struct config *c);

/* zenflow.c */
bool zenflow_config_resolve(struct config *c, struct zf_error *err);
/* Once steps_per_epoch is known. */
bool zenflow_config_check_epoch(const struct config *c, struct zf_error *err);

#endif
