/* Where each value came from, and sentences that say so. */
#include "cmd/config/table.h"
#include "data/alloc.h"
#include "data/log.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *config_name_place(const struct config_place *at, const char *path, char *out,
                              size_t size)
{
    size_t block = strlen(CONFIG_ARGUMENTS);
    if (at->level == LEVEL_FILE)
        snprintf(out, size, "%s:%d: %s", at->file, at->line, path);
    else
        snprintf(out, size, "%s%s", at->level == LEVEL_OPTION ? "--" : "",
                 path + (strncmp(path, CONFIG_ARGUMENTS, block) == 0 ? block : 0));
    return out;
}

struct config_origin *config_origin_of_key(const struct config *c, const struct config_key *key)
{
    return &c->origins[config_primary(key) - config_table];
}

struct config_origin *config_origin_of(const struct config *c, const char *name)
{
    const struct config_key *key = config_find_option(name);
    assert(key); /* the callers' names are the table's */
    return config_origin_of_key(c, key);
}

bool config_is_given(const struct config *c, const char *name)
{
    return config_origin_of(c, name)->level >= LEVEL_FILE;
}

void config_mark_auto(struct config *c, const char *name)
{
    config_origin_of(c, name)->level = LEVEL_AUTO;
}

void config_set_origin(struct config *c, const struct config_key *key, const struct config_key *by,
                       const struct config_place *at)
{
    struct config_origin *origin = config_origin_of_key(c, key);
    free(origin->file);
    *origin = (struct config_origin){.level = at->level, .by = by, .line = at->line};
    if (at->file)
        origin->file = zf_strdup(at->file);
}

const char *config_name_origin(const struct config *c, const char *name, char *out, size_t size)
{
    const struct config_key *key = config_find_option(name);
    const struct config_origin *origin = config_origin_of_key(c, key);
    const struct config_place at = {origin->level, origin->file, origin->line};
    return config_name_place(&at, origin->level >= LEVEL_FILE ? origin->by->name : key->name, out,
                             size);
}

void config_warn_idle(const struct config *c, const char *name, const char *format, ...)
{
    char where[512], why[768];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    log_warn("%s has no meaning here: %s", config_name_origin(c, name, where, sizeof where), why);
}

bool config_clash(const struct config *c, const char *name, struct zf_error *err,
                  const char *format, ...)
{
    const struct config_key *key = config_find_option(name);
    const struct config_origin *origin = config_origin_of_key(c, key);
    const struct config_key *by = origin->level >= LEVEL_FILE ? origin->by : key;
    char where[512], why[768];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    json_t *value = config_value(c, by);
    char *text = config_dump(value, 0);
    zf_fail(err, "%s is %.100s%s, but %s", config_name_origin(c, name, where, sizeof where),
            value ? text : "not given",
            value && origin->level == LEVEL_DEFAULT ? " by default" : "", why);
    err->usage = origin->level == LEVEL_OPTION;
    free(text);
    json_decref(value);
    return false;
}
