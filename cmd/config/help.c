/* The table for people: the manual's options and --print_config; and config_write. */
#include "cmd/config/engine_settings.h"
#include "cmd/config/table.h"
#include "cmd/manual/manual.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/show.h"

#include <stdlib.h>
#include <string.h>

static const char *placeholder(const struct config_key *key)
{
    switch (key->type) {
    case CONFIG_BOOL:
        return "true|false";
    case CONFIG_TRUTH:
        return "true|false|auto";
    case CONFIG_INT:
    case CONFIG_STEPS:
        return "N";
    case CONFIG_REAL:
        return "X";
    case CONFIG_CHOICE:
        return key->choices;
    default:
        return "TEXT";
    }
}

/* The other names of a row's field, after "; also "; those that differ by their block alone (seed)
 * are one option. */
static void add_second_names(const struct config_key *key, char *text, size_t size)
{
    const char *before = "; also ";
    for (int i = 0; i < config_table_rows; i++) {
        const struct config_key *other = &config_table[i];
        bool first_of_pair = other->type == CONFIG_PAIR && config_primary(other) + 1 == key;
        if (!other->same_as || (config_primary(other) != key && !first_of_pair) ||
            strcmp(config_option_name(other), config_option_name(key)) == 0)
            continue;
        size_t n = strlen(text);
        snprintf(text + n, size - n, "%s%s", before, config_option_name(other));
        before = ", ";
    }
}

static void add_key(struct manual *m, const struct config_key *key)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s", key->help);
    if (key->standard)
        snprintf(text + n, sizeof text - (size_t)n, " (%s)", key->standard);
    add_second_names(key, text, sizeof text);
    char *name = zf_format("--%s", config_option_name(key));
    manual_add_option(m, name, placeholder(key), text);
    free(name);
}

void config_add_options(struct manual *m)
{
    manual_begin_options(m, "The program", NULL);
    manual_add_option(m, "--config", "FILE", "the configuration file; also --deepspeed");
    manual_add_option(m, "--print_config", NULL,
                      "show the configuration and where each value comes from");
    manual_add_option(m, "--help", NULL, "show this");
    manual_add_option(m, "--version", NULL,
                      "show the version and commit, and the CUDA, MPI and BLAS that it has");
    for (int i = 0; i < config_table_rows; i++)
        if (config_table[i].type == CONFIG_HEADING)
            manual_begin_options(m, config_table[i].help, NULL);
        else if (!config_table[i].same_as)
            add_key(m, &config_table[i]);
}

/* False for keys of what is not in use. */
static bool counts(const struct config *c, const struct config_key *key)
{
    const char *name = config_primary(key)->name;
    if (strncmp(name, "scheduler.params.", 17) == 0)
        return config_scheduler_takes(c->scheduler.type, name);
    if (strncmp(name, "zero_optimization.zenflow.", 26) == 0)
        return c->zenflow.enabled || strcmp(name + 26, "enabled") == 0;
    if (strcmp(name, "zero_optimization.offload_param.buffer_count") == 0)
        return c->offload_param != OFFLOAD_NONE || engine_divides_parameters(c);
    return true;
}

/* A new string. */
static char *origin_text(const struct config_origin *origin, const struct config_key *key)
{
    static const char *const levels[] = {"default", "auto"};
    const char *other = origin->by && origin->by != key ? config_option_name(origin->by) : NULL;
    if (origin->level == LEVEL_OPTION)
        return zf_format("--%s", config_option_name(origin->by));
    if (origin->level == LEVEL_FILE)
        return zf_format("%s:%d%s%s%s", origin->file, origin->line, other ? " (" : "",
                         other ? other : "", other ? ")" : "");
    return zf_strdup(levels[origin->level]);
}

/* [name, value, origin] */
static json_t *describe_key(const struct config *c, const struct config_key *key)
{
    json_t *value = config_value(c, key);
    char *text = value ? config_dump(value, 0) : zf_strdup("null");
    char *origin = origin_text(&c->origins[key - config_table], key);
    char shown[4096]; /* a file's name may be any bytes */
    show_text(shown, sizeof shown, origin);
    json_t *row = json_pack("[s, s, s]", config_option_name(key), text, shown);
    free(origin);
    free(text);
    json_decref(value);
    return row;
}

json_t *config_describe(const struct config *c)
{
    json_t *groups = json_array(), *keys = NULL;
    for (int i = 0; i < config_table_rows; i++) {
        const struct config_key *key = &config_table[i];
        if (key->type == CONFIG_HEADING) {
            keys = json_array();
            json_array_append_new(groups,
                                  json_pack("{s:s, s:o}", "heading", key->help, "keys", keys));
        } else if (!key->same_as && counts(c, key)) {
            json_array_append_new(keys, describe_key(c, key));
        }
    }
    return groups;
}

void config_print(const struct config *c, FILE *out)
{
    json_t *groups = config_describe(c), *group, *row;
    size_t i, j;
    json_array_foreach(groups, i, group)
    {
        fprintf(out, "%s# %s\n", i ? "\n" : "",
                json_string_value(json_object_get(group, "heading")));
        json_array_foreach(json_object_get(group, "keys"), j, row)
        {
            fprintf(out, "%-50s = %-20s # %s\n", json_string_value(json_array_get(row, 0)),
                    json_string_value(json_array_get(row, 1)),
                    json_string_value(json_array_get(row, 2)));
        }
    }
    json_decref(groups);
}

/* The name under which a field is written: DeepSpeed's if there is one. */
static bool is_written(const struct config *c, const struct config_key *key)
{
    static const char *const settled[] = {"lr_scheduler_type", "warmup_ratio", "warmup_steps"};
    const char *name = config_option_name(config_primary(key));
    if (key->type == CONFIG_HEADING || !counts(c, key))
        return false;
    if (key->same_as)
        return strncmp(key->name, CONFIG_ARGUMENTS, strlen(CONFIG_ARGUMENTS)) != 0;
    for (int i = 0; i < 3; i++) /* the scheduler block says it all */
        if (c->scheduler.type != DS_SCHEDULER_NONE && strcmp(name, settled[i]) == 0)
            return false;
    for (int i = 0; i < config_table_rows; i++) {
        const struct config_key *other = &config_table[i];
        bool second_of_pair = other->type == CONFIG_PAIR && config_primary(other) + 1 == key;
        if ((second_of_pair || (other->same_as && config_primary(other) == key)) &&
            is_written(c, other))
            return false;
    }
    return true;
}

/* Puts a value into nested objects by its key path; takes the reference. */
static void put(json_t *root, const char *path, json_t *value)
{
    const char *dot = strchr(path, '.');
    if (!dot) {
        json_object_set_new(root, path, value);
        return;
    }
    char *name = zf_format("%.*s", (int)(dot - path), path);
    if (!json_object_get(root, name))
        json_object_set_new(root, name, json_object());
    put(json_object_get(root, name), dot + 1, value);
    free(name);
}

json_t *config_json(const struct config *c)
{
    json_t *root = json_object();
    for (int arguments = 0; arguments < 2; arguments++) /* DeepSpeed's keys first */
        for (int i = 0; i < config_table_rows; i++) {
            const struct config_key *key = &config_table[i];
            json_t *value = NULL;
            if (key->name && (config_option_name(key) != key->name) == arguments &&
                is_written(c, key))
                value = config_value(c, key);
            if (value)
                put(root, key->name, value);
        }
    return root;
}

bool config_write(const struct config *c, const char *path, struct zf_error *err)
{
    json_t *root = config_json(c);
    char *text = config_dump(root, JSON_INDENT(2));
    json_decref(root);
    char *lines = zf_format("%s\n", text);
    bool ok = file_write(path, lines, strlen(lines), err);
    free(lines);
    free(text);
    return ok;
}
