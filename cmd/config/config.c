/* Reading a configuration: the file, the options, and where each value came from. */
#include "cmd/config/config.h"

#include "cmd/config/table.h"
#include "data/alloc.h"
#include "data/json.h"
#include "data/log.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PATH 256
#define ZENFLOW  "zero_optimization.zenflow"

static bool fail_value(const struct config_place *at, const char *path, const json_t *value,
                       const char *expected, const char *hint, struct zf_error *err)
{
    char where[512];
    char *text = config_dump(value, JSON_COMPACT);
    zf_fail(err, "%s is %.100s, but it is %s%s", config_name_place(at, path, where, sizeof where),
            text, expected, hint);
    free(text);
    return false;
}

/* Two names for one field, given beside each other with different values. */
static bool fail_double(const struct config *c, const struct config_key *key,
                        const struct config_key *by, const json_t *before,
                        const struct config_place *at, struct zf_error *err)
{
    const struct config_origin *origin = config_origin_of_key(c, key);
    struct config_place first = {origin->level, origin->file, origin->line};
    char where[512], there[512];
    json_t *now = config_value(c, key);
    char *text = config_dump(now, 0), *other = config_dump(before, 0);
    zf_fail(err, "%s is %.100s, but %s, which means the same, is %.100s",
            config_name_place(at, by->name, where, sizeof where), text,
            config_name_place(&first, origin->by->name, there, sizeof there), other);
    free(text);
    free(other);
    json_decref(now);
    return false;
}

/* Sets the field of `key`, a row of its own, from a value that was given under the name of `by`. */
static bool set_field(struct config *c, const struct config_key *key, const struct config_key *by,
                      const json_t *value, const struct config_place *at, struct zf_error *err)
{
    const struct config_origin *origin = config_origin_of_key(c, key);
    char expected[512], hint[256];
    json_t *before = config_value(c, key);
    bool ok = config_store(c, key, value);
    if (!ok) {
        fail_value(at, by->name, value, config_expected(key, expected, sizeof expected),
                   config_suggest_value(key, value, hint, sizeof hint), err);
    } else {
        json_t *after = config_value(c, key);
        bool same_field = origin->by && (origin->by->type == CONFIG_PAIR ||
                                         config_primary(origin->by) == key); /* or implied it */
        if (origin->level == at->level && origin->by != by && same_field &&
            !json_equal(before, after))
            ok = fail_double(c, key, by, before, at, err);
        json_decref(after);
    }
    json_decref(before);
    if (ok)
        config_set_origin(c, key, by, at);
    return ok;
}

/* "auto" under a second name: not given; as an option, not given in the file either. */
static void forget_field(struct config *c, const struct config_key *key,
                         const struct config_place *at)
{
    if (at->level < LEVEL_OPTION)
        return;
    config_reset(c, key);
    config_set_origin(c, key, key, &(struct config_place){.level = LEVEL_DEFAULT});
}

static bool set_value(struct config *c, const struct config_key *key, const json_t *value,
                      const struct config_place *at, struct zf_error *err)
{
    const struct config_key *primary = config_primary(key);
    size_t parts = key->type == CONFIG_PAIR ? 2 : 1;
    if (json_is_null(value))
        return true;
    bool forget =
        key->same_as && json_is_string(value) && !strcmp(json_string_value(value), "auto");
    if (!forget && parts == 2 && json_array_size(value) != 2)
        return fail_value(at, key->name, value, key->expected, "", err);
    for (size_t i = 0; i < parts; i++)
        if (forget)
            forget_field(c, primary + i, at);
        else if (!set_field(c, primary + i, key, parts == 2 ? json_array_get(value, i) : value, at,
                            err))
            return false;
    return true;
}

/* A key below zero_optimization.zenflow, or the block itself (by is NULL), turns ZenFlow on. */
static void imply_zenflow(struct config *c, const char *path, const struct config_key *by,
                          const struct config_place *at)
{
    const struct config_key *enabled = config_find_path(ZENFLOW ".enabled");
    if (strncmp(path, ZENFLOW, strlen(ZENFLOW)) != 0 ||
        config_origin_of_key(c, enabled)->level >= at->level)
        return;
    c->zenflow.enabled = true;
    config_set_origin(c, enabled, by ? by : enabled, at);
}

static bool set_foreign(const struct config_foreign *foreign, const char *path, const json_t *value,
                        const struct config_place *at, struct zf_error *err)
{
    char where[512];
    if (config_is_harmless(foreign, value))
        return true;
    config_name_place(at, path, where, sizeof where);
    if (!foreign->refused) {
        log_warn("%s has no meaning here%s%s", where, foreign->note ? ": " : "",
                 foreign->note ? foreign->note : "");
        return true;
    }
    char *text = config_dump(value, JSON_COMPACT);
    zf_fail(err, "%s is %.100s, but %s", where, text, foreign->refused);
    free(text);
    return false;
}

static bool fail_unknown(const struct config_place *at, const char *path, struct zf_error *err)
{
    char where[512], known[MAX_PATH] = "", hint[512];
    struct config_place as_named = {.level =
                                        at->level == LEVEL_OPTION ? LEVEL_OPTION : LEVEL_DEFAULT};
    bool near = config_nearest(path, at->level == LEVEL_FILE, known, sizeof known);
    if (at->level == LEVEL_FILE)
        snprintf(hint, sizeof hint, "%s", known);
    else
        config_name_place(&as_named, known, hint, sizeof hint);
    return zf_fail(err, "%s is not %s%s%s%s", config_name_place(at, path, where, sizeof where),
                   at->level == LEVEL_FILE ? "a known key" : "an option",
                   near ? " (did you mean " : "", near ? hint : "", near ? "?)" : "");
}

static bool read_object(struct config *c, const struct json_file *f, json_t *object,
                        const char *block, struct zf_error *err);

static bool read_member(struct config *c, const struct json_file *f, const char *path,
                        json_t *value, struct zf_error *err)
{
    struct config_place at = {LEVEL_FILE, f->path, json_line(f, path)};
    const struct config_key *key = config_find_path(path);
    struct config_foreign foreign;
    char enabled[MAX_PATH + 8];
    snprintf(enabled, sizeof enabled, "%s.enabled", path);
    if (key)
        return set_value(c, key, value, &at, err);
    if (config_is_block(path) && json_is_object(value)) {
        imply_zenflow(c, path, NULL, &at);
        return read_object(c, f, value, path, err);
    }
    if (config_is_block(path))
        return json_is_null(value) ||
               fail_value(&at, path, value, "a block of keys in braces",
                          config_find_path(enabled) ? ", such as {\"enabled\": true}" : "", err);
    if (config_find_foreign(path, &foreign))
        return set_foreign(&foreign, path, value, &at, err);
    return fail_unknown(&at, path, err);
}

static bool read_object(struct config *c, const struct json_file *f, json_t *object,
                        const char *block, struct zf_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        char path[MAX_PATH];
        snprintf(path, sizeof path, "%s%s%s", block, *block ? "." : "", name);
        if (!read_member(c, f, path, value, err))
            return false;
    }
    return true;
}

static bool read_file(struct config *c, const char *path, struct zf_error *err)
{
    struct json_file f;
    if (!json_load(&f, path, err))
        return false;
    bool ok = read_object(c, &f, f.root, "", err);
    json_free(&f);
    return ok;
}

/* An argument "--name value", "--name=value", "--flag" or "--no_flag". */
struct option {
    char name[MAX_PATH];          /* with underscores */
    const struct config_key *key; /* NULL: not of the table */
    const char *text;             /* NULL: no value */
};

static bool is_flag(const char *name)
{
    return !strcmp(name, "help") || !strcmp(name, "print_config") || !strcmp(name, "version");
}

static bool is_config_file(const char *name)
{
    return !strcmp(name, "config") || !strcmp(name, "deepspeed") ||
           !strcmp(name, "deepspeed_config");
}

/* A word that is no option may be a file whose option was left out. */
static bool fail_word(const char *word, struct zf_error *err)
{
    static const struct {
        const char *ending, *option;
    } files[] = {{".json", "config"},
                 {".csv", "train_file"},
                 {".tsv", "train_file"},
                 {".jsonl", "train_file"},
                 {".txt", "train_file"}};
    const char *dot = strrchr(word, '.');
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (dot && strcmp(dot, files[i].ending) == 0)
            return zf_fail(err, "%s is not an option (did you mean --%s %s?)", word,
                           files[i].option, word);
    return zf_fail(err, "%s is not an option", word);
}

static bool split_name(struct option *o, const char *arg, struct zf_error *err)
{
    if (strcmp(arg, "-h") == 0)
        arg = "--help";
    if (strncmp(arg, "--", 2) != 0)
        return fail_word(arg, err);
    const char *equals = strchr(arg, '=');
    *o = (struct option){.text = equals ? equals + 1 : NULL};
    snprintf(o->name, sizeof o->name, "%.*s", (int)(equals ? equals - arg - 2 : MAX_PATH), arg + 2);
    for (char *p = o->name; *p; p++)
        *p = *p == '-' ? '_' : *p;
    o->key = config_find_option(o->name);
    return true;
}

static bool takes_truth(const struct config_key *key)
{
    const enum config_type type = config_primary(key)->type;
    return type == CONFIG_BOOL || type == CONFIG_TRUTH;
}

/* "--no_NAME": NAME is false, where it is true or false or none of ours. */
static void take_no(struct option *o)
{
    const char *name = o->name + 3;
    char path[MAX_PATH + sizeof CONFIG_ARGUMENTS];
    struct config_foreign foreign;
    if (o->key || o->text || strncmp(o->name, "no_", 3) != 0)
        return;
    const struct config_key *key = config_find_option(name);
    snprintf(path, sizeof path, CONFIG_ARGUMENTS "%s", name);
    if (key ? !takes_truth(key) : !config_find_foreign(path, &foreign))
        return;
    o->key = key;
    o->text = "false";
    memmove(o->name, name, strlen(name) + 1);
}

/* Reads the argument at *i, and the next if it is its value. */
static bool next_option(struct option *o, int argc, char **argv, int *i, struct zf_error *err)
{
    if (!split_name(o, argv[(*i)++], err))
        return false;
    take_no(o);
    const char *next = *i < argc ? argv[*i] : NULL;
    if (!o->text && !is_flag(o->name) && next && strncmp(next, "--", 2) != 0) {
        o->text = next;
        ++*i;
    }
    bool alone = is_flag(o->name) || (o->key && takes_truth(o->key)) ||
                 (o->key && o->key->type == CONFIG_STRING && o->key->word);
    if (!o->text && alone)
        o->text = "true";
    const bool takes_text = o->key || is_config_file(o->name);
    if (!takes_text || (o->text && *o->text))
        return true;
    char expected[512] = "a file";
    if (o->key)
        config_expected(config_primary(o->key), expected, sizeof expected);
    if (o->text) /* what a shell makes of a variable that is not set */
        return zf_fail(err, "--%s is \"\", but it is %s%s", o->name, expected,
                       strcmp(expected, "a string") == 0 ? " that is not empty" : "");
    return zf_fail(err, "--%s needs a value: %s", o->name, expected);
}

static bool set_option(struct config *c, const struct option *o, struct zf_error *err)
{
    struct config_place at = {.level = LEVEL_OPTION};
    struct config_foreign foreign;
    char path[MAX_PATH + sizeof CONFIG_ARGUMENTS];
    if (o->key) {
        const struct config_key *primary = config_primary(o->key);
        json_t *value = config_parse_text(o->key->type == CONFIG_PAIR ? o->key : primary, o->text);
        bool ok = set_value(c, o->key, value, &at, err);
        json_decref(value);
        if (ok)
            imply_zenflow(c, o->key->name, o->key, &at);
        return ok;
    }
    snprintf(path, sizeof path, CONFIG_ARGUMENTS "%s", o->name);
    if (config_find_foreign(path, &foreign) || config_find_foreign(o->name, &foreign)) {
        json_t *value = o->text ? json_loads(o->text, JSON_DECODE_ANY, NULL) : json_true();
        value = value ? value : json_string(o->text);
        bool ok = !value || set_foreign(&foreign, o->name, value, &at, err);
        json_decref(value);
        return ok;
    }
    return fail_unknown(&at, strchr(o->name, '.') ? o->name : path, err);
}

/* Of a fault in the words of the command line, whatever is wrong with them. */
static bool fail_as_usage(struct zf_error *err)
{
    err->usage = true;
    return false;
}

/* The file first, then the options over it, in their order. */
static bool read_all(struct config *c, int argc, char **argv, struct zf_error *err)
{
    const char *file = NULL;
    struct option o;
    for (int i = 1; i < argc;) {
        if (!next_option(&o, argc, argv, &i, err))
            return fail_as_usage(err);
        if (is_config_file(o.name))
            file = o.text;
        else if (strcmp(o.name, "help") == 0)
            c->action = CONFIG_HELP;
        else if (strcmp(o.name, "version") == 0)
            c->action = CONFIG_VERSION;
        else if (strcmp(o.name, "print_config") == 0 && c->action == CONFIG_RUN)
            c->action = CONFIG_PRINT;
    }
    if (c->action == CONFIG_HELP || c->action == CONFIG_VERSION)
        return true;
    if (file && !read_file(c, file, err))
        return false;
    for (int i = 1; i < argc;)
        if (!next_option(&o, argc, argv, &i, err) ||
            (!is_config_file(o.name) && !is_flag(o.name) && !set_option(c, &o, err)))
            return fail_as_usage(err);
    if (c->plan)
        c->n_ranks = c->plan_ranks;
    return config_resolve(c, err);
}

void config_defaults(struct config *c, int n_ranks)
{
    *c = (struct config){.n_ranks = n_ranks};
    c->origins = zf_calloc((size_t)config_table_rows, sizeof *c->origins);
    for (int i = 0; i < config_table_rows; i++)
        if (config_table[i].name && !config_table[i].same_as)
            config_reset(c, &config_table[i]);
}

bool config_parse(struct config *c, int argc, char **argv, int n_ranks, struct zf_error *err)
{
    config_defaults(c, n_ranks);
    if (read_all(c, argc, argv, err))
        return true;
    config_free(c);
    return false;
}

void config_free(struct config *c)
{
    if (c->origins)
        for (int i = 0; i < config_table_rows; i++) {
            free(c->origins[i].file);
            const enum config_type type = config_table[i].type;
            if ((type == CONFIG_STRING || type == CONFIG_NAMES) && !config_table[i].same_as)
                free(*(char **)((char *)c + config_table[i].offset));
        }
    free(c->origins);
    *c = (struct config){0};
}
