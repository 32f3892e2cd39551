/* Rows of the table and their values: finding them, naming them, storing into struct config. */
#include "cmd/config/table.h"

#include "data/alloc.h"

#include <assert.h>
#include <ctype.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 64 /* longer names are too far from any of ours to be compared */

static void *field(const struct config *c, const struct config_key *key)
{
    return (char *)c + key->offset;
}

const struct config_key *config_find_path(const char *path)
{
    for (int i = 0; i < config_table_rows; i++)
        if (config_table[i].name && strcmp(config_table[i].name, path) == 0)
            return &config_table[i];
    return NULL;
}

const struct config_key *config_find_option(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, CONFIG_ARGUMENTS "%s", name);
    const struct config_key *key = config_find_path(path);
    return key ? key : config_find_path(name);
}

const struct config_key *config_primary(const struct config_key *key)
{
    return key->same_as ? config_find_path(key->same_as) : key;
}

const char *config_option_name(const struct config_key *key)
{
    size_t prefix = strlen(CONFIG_ARGUMENTS);
    return key->name + (strncmp(key->name, CONFIG_ARGUMENTS, prefix) == 0 ? prefix : 0);
}

bool config_is_block(const char *path)
{
    size_t n = strlen(path);
    for (int i = 0; i < config_table_rows; i++)
        if (config_table[i].name && strncmp(config_table[i].name, path, n) == 0 &&
            config_table[i].name[n] == '.')
            return true;
    return false;
}

/* Edits (insertions, deletions, replacements) that turn a into b; both shorter than MAX_NAME. */
static int edit_distance(const char *a, const char *b)
{
    int row[MAX_NAME];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = diagonal + (tolower((unsigned char)a[i]) != tolower((unsigned char)b[j]));
            int least = row[j] < row[j + 1] ? row[j] + 1 : row[j + 1] + 1;
            diagonal = row[j + 1];
            row[j + 1] = change < least ? change : least;
        }
    }
    return row[n];
}

/* True where b has a as whole words: "epochs" in "num_train_epochs". */
static bool has_words(const char *b, const char *a)
{
    const char *at = strstr(b, a);
    size_t n = strlen(a);
    return at && n > 2 && (at == b || at[-1] == '_') && (at[n] == 0 || at[n] == '_');
}

/* How far one name is from another, or INT_MAX: too far to be meant. */
static int name_distance(const char *unknown, const char *known)
{
    int longest = (int)strlen(unknown);
    if (longest >= MAX_NAME || strlen(known) >= MAX_NAME)
        return INT_MAX;
    int edits = edit_distance(unknown, known);
    if (edits <= 1 + longest / 5 && edits < longest)
        return edits;
    return has_words(known, unknown) ? 4 : INT_MAX;
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The distance of two paths: that of their last parts, and something for lying elsewhere. */
static int path_distance(const char *unknown, const char *known)
{
    const char *a = last_part(unknown), *b = last_part(known);
    int distance = name_distance(a, b);
    if (distance == INT_MAX)
        return distance;
    bool together = a - unknown == b - known && strncmp(unknown, known, (size_t)(a - unknown)) == 0;
    return 2 * distance + !together;
}

const char *config_nearest(const char *path, bool with_blocks, char *out, size_t size)
{
    int best = INT_MAX;
    size_t best_length = 0;
    for (int i = 0; i < config_table_rows; i++) {
        const char *name = config_table[i].name;
        if (!name)
            continue;
        for (size_t n = strlen(name); n > 0; n--) {
            char known[128];
            if (name[n] && (name[n] != '.' || !with_blocks))
                continue;
            snprintf(known, sizeof known, "%.*s", (int)n, name);
            int distance = path_distance(path, known);
            if (distance < best || (distance == best && best != INT_MAX && n < best_length)) {
                best = distance;
                best_length = n;
                snprintf(out, size, "%s", known);
            }
        }
    }
    return best == INT_MAX ? NULL : out;
}

/* The next choice of a list "a|b|c": sets *n to its length. *rest is advanced; NULL at the end. */
static const char *next_choice(const char **rest, size_t *n)
{
    const char *choice = *rest;
    if (!choice)
        return NULL;
    *n = strcspn(choice, "|");
    *rest = choice[*n] ? choice + *n + 1 : NULL;
    return choice;
}

static void append(char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *out, size_t size, const char *format, ...)
{
    size_t n = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + n, size - n, format, args);
    va_end(args);
}

static void append_choices(const char *choices, char *out, size_t size)
{
    size_t n;
    append(out, size, "one of ");
    for (const char *rest = choices, *choice; (choice = next_choice(&rest, &n));)
        append(out, size, "\"%.*s\"%s", (int)n, choice,
               !rest               ? ""
               : strchr(rest, '|') ? ", "
                                   : " or ");
}

static void append_range(const struct config_key *key, char *out, size_t size)
{
    bool ends = key->max < (key->type == CONFIG_INT ? INT_MAX : DBL_MAX);
    if (key->min == DBL_MIN)
        append(out, size, " above 0");
    else if (ends)
        append(out, size, " from %g to %s%g", key->min,
               key->max < 1 && key->max > 0.99 ? "below " : "", key->max);
    else
        append(out, size, " of at least %g", key->min);
}

const char *config_expected(const struct config_key *key, char *out, size_t size)
{
    *out = 0;
    if (key->expected) {
        append(out, size, "%s", key->expected);
    } else if (key->type == CONFIG_BOOL || key->type == CONFIG_TRUTH) {
        append(out, size, "true or false");
    } else if (key->type == CONFIG_STRING || key->type == CONFIG_NAMES) {
        append(out, size, "a string%s", key->type == CONFIG_NAMES ? " or a list of strings" : "");
    } else if (key->type == CONFIG_CHOICE) {
        append_choices(key->choices, out, size);
    } else if (key->type == CONFIG_STEPS) {
        append(out, size, "a whole number of steps, or a share of all steps%s below 1",
               key->min > 0 ? " above 0 and" : "");
    } else {
        bool fraction = key->type == CONFIG_REAL && key->min == 0 && key->max <= 1;
        append(out, size, "%s",
               key->type == CONFIG_INT ? "a whole number"
               : fraction              ? "a fraction"
                                       : "a number");
        append_range(key, out, size);
    }
    size_t n;
    for (const char *rest = key->word, *word; (word = next_choice(&rest, &n));)
        append(out, size, ", or \"%.*s\"", (int)n, word);
    return out;
}

static json_t *parse_bool(const char *text)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0)
            return json_true();
        if (strcasecmp(text, no[i]) == 0)
            return json_false();
    }
    return NULL;
}

static json_t *parse_number(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return NULL;
    if (fabs(x) < 1e15 && x == floor(x) && !strpbrk(text, ".eExX"))
        return json_integer((json_int_t)x);
    return json_real(x);
}

json_t *config_parse_text(const struct config_key *key, const char *text)
{
    json_t *value = NULL;
    if (key->type == CONFIG_BOOL || key->type == CONFIG_TRUTH)
        value = parse_bool(text);
    else if (key->type == CONFIG_INT || key->type == CONFIG_REAL || key->type == CONFIG_STEPS)
        value = parse_number(text);
    else if (key->type == CONFIG_PAIR)
        value = json_loads(text, 0, NULL);
    if (!value)
        value = json_string(text);
    return value ? value : json_null(); /* text that is not UTF-8 */
}

/* Which one of "a|b|c" the text is; -1: none. */
static int choice_index(const char *choices, const char *text)
{
    size_t n;
    int i = 0;
    if (!text)
        return -1;
    for (const char *choice; (choice = next_choice(&choices, &n)); i++)
        if (strncasecmp(choice, text, n) == 0 && text[n] == 0)
            return i;
    return -1;
}

static json_t *choice_value(const char *choices, int index)
{
    size_t n = 0;
    const char *choice = next_choice(&choices, &n);
    while (index-- > 0)
        choice = next_choice(&choices, &n);
    return json_stringn(choice, n);
}

static bool store_number(struct config *c, const struct config_key *key, const json_t *value)
{
    double x = json_number_value(value);
    const int word = choice_index(key->word, json_string_value(value));
    if (word >= 0)
        x = CONFIG_AUTO - word;
    else if (!json_is_number(value) || x < key->min || x > key->max)
        return false;
    if (key->type == CONFIG_STEPS && x > 1 && x != floor(x))
        return false;
    if (key->type != CONFIG_INT)
        *(double *)field(c, key) = x;
    else if (x == floor(x))
        *(int *)field(c, key) = (int)x;
    else
        return false;
    return true;
}

static bool store_truth(struct config *c, const struct config_key *key, const json_t *value)
{
    const char *text = json_string_value(value);
    const bool is_auto = text && strcmp(text, key->word) == 0;
    if (is_auto || json_is_boolean(value))
        *(int *)field(c, key) = is_auto ? CONFIG_AUTO : json_is_true(value);
    return is_auto || json_is_boolean(value);
}

static bool store_choice(struct config *c, const struct config_key *key, const char *text)
{
    const int i = choice_index(key->choices, text);
    if (i >= 0)
        *(int *)field(c, key) = i;
    return i >= 0;
}

/* Where the key has a word, true stands for it and false for nothing. */
static bool store_string(struct config *c, const struct config_key *key, const json_t *value)
{
    const char *text = json_string_value(value);
    if (key->word && (json_is_true(value) || (text && strcasecmp(text, "true") == 0)))
        text = key->word;
    else if (key->word && (json_is_false(value) || (text && strcasecmp(text, "false") == 0)))
        text = "";
    if (!text || (!*text && key->expected)) /* an empty one is no time */
        return false;
    char **string = field(c, key);
    free(*string);
    *string = *text ? zf_strdup(text) : NULL;
    return true;
}

static bool store_names(struct config *c, const struct config_key *key, const json_t *value)
{
    char *all = zf_strdup("");
    bool ok = true;
    json_t *name;
    size_t i;
    if (!json_is_array(value)) {
        free(all);
        return store_string(c, key, value);
    }
    json_array_foreach(value, i, name)
    {
        char *before = all;
        ok = ok && json_is_string(name);
        all = zf_format("%s%s%s", before, i ? "," : "", ok ? json_string_value(name) : "");
        free(before);
    }
    json_t *joined = json_string(all);
    ok = ok && store_string(c, key, joined);
    json_decref(joined);
    free(all);
    return ok;
}

bool config_store(struct config *c, const struct config_key *key, const json_t *value)
{
    switch (key->type) {
    case CONFIG_BOOL:
        if (json_is_boolean(value))
            *(bool *)field(c, key) = json_is_true(value);
        return json_is_boolean(value);
    case CONFIG_TRUTH:
        return store_truth(c, key, value);
    case CONFIG_INT:
    case CONFIG_REAL:
    case CONFIG_STEPS:
        return store_number(c, key, value);
    case CONFIG_CHOICE:
        return store_choice(c, key, json_string_value(value));
    case CONFIG_STRING:
        return store_string(c, key, value);
    case CONFIG_NAMES:
        return store_names(c, key, value);
    case CONFIG_PAIR:
    case CONFIG_SAME:
    case CONFIG_HEADING:
        break;
    }
    return false;
}

void config_reset(struct config *c, const struct config_key *key)
{
    if (key->type == CONFIG_INT)
        *(int *)field(c, key) = CONFIG_AUTO;
    else if (key->type == CONFIG_REAL || key->type == CONFIG_STEPS)
        *(double *)field(c, key) = CONFIG_AUTO;
    json_t *value = key->standard ? config_parse_text(key, key->standard) : NULL;
    bool fits = !value || config_store(c, key, value);
    assert(fits); /* the table's own */
    (void)fits;
    json_decref(value);
}

static json_t *number_value(const struct config_key *key, double x)
{
    if (x <= CONFIG_AUTO && key->word)
        return choice_value(key->word, (int)(CONFIG_AUTO - x));
    if (x == CONFIG_AUTO && !key->standard)
        return NULL;
    const bool whole = key->type == CONFIG_INT || (key->type == CONFIG_STEPS && x == floor(x));
    return whole ? json_integer((json_int_t)x) : json_real(x);
}

json_t *config_value(const struct config *c, const struct config_key *key)
{
    const struct config_key *at = config_primary(key);
    switch (key->type == CONFIG_PAIR ? CONFIG_PAIR : at->type) {
    case CONFIG_BOOL:
        return json_boolean(*(bool *)field(c, at));
    case CONFIG_TRUTH:
        return *(int *)field(c, at) == CONFIG_AUTO ? json_string(at->word)
                                                   : json_boolean(*(int *)field(c, at));
    case CONFIG_INT:
        return number_value(at, *(int *)field(c, at));
    case CONFIG_REAL:
    case CONFIG_STEPS:
        return number_value(at, *(double *)field(c, at));
    case CONFIG_STRING:
    case CONFIG_NAMES:
        return json_string(*(char **)field(c, at));
    case CONFIG_CHOICE:
        return choice_value(at->choices, *(int *)field(c, at));
    case CONFIG_PAIR:
        return json_pack("[f, f]", *(double *)field(c, at), *(double *)field(c, at + 1));
    case CONFIG_SAME:
    case CONFIG_HEADING:
        break;
    }
    return NULL;
}

json_t *config_option_value(const struct config *c, const char *option)
{
    return config_value(c, config_find_option(option));
}

/* The least digits after which every number inside comes back the same, at least 1. */
static int digits_needed(const json_t *value)
{
    int digits = 1;
    const char *name;
    json_t *item;
    size_t i;
    json_object_foreach((json_t *)value, name, item)
    {
        int n = digits_needed(item);
        digits = n > digits ? n : digits;
    }
    json_array_foreach(value, i, item)
    {
        int n = digits_needed(item);
        digits = n > digits ? n : digits;
    }
    if (!json_is_real(value))
        return digits;
    for (char text[40]; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, json_real_value(value));
        if (strtod(text, NULL) == json_real_value(value))
            break;
    }
    return digits;
}

char *config_dump(const json_t *value, size_t flags)
{
    size_t precision = JSON_REAL_PRECISION((size_t)digits_needed(value));
    char *text = json_dumps(value, flags | JSON_ENCODE_ANY | JSON_PRESERVE_ORDER | precision);
    return text ? text : zf_strdup("null");
}

/* The choice nearest to a text, or false. */
static bool nearest_choice(const char *choices, const char *text, char *out, size_t size)
{
    int best = INT_MAX;
    size_t n;
    for (const char *rest = choices, *choice; (choice = next_choice(&rest, &n));) {
        char known[MAX_NAME];
        snprintf(known, sizeof known, "%.*s", (int)n, choice);
        int distance = name_distance(text, known);
        if (distance < best) {
            best = distance;
            snprintf(out, size, "%s", known);
        }
    }
    return best < INT_MAX;
}

const char *config_suggest_value(const struct config_key *key, const json_t *value, char *out,
                                 size_t size)
{
    const char *text = json_string_value(value);
    char choice[MAX_NAME];
    *out = 0;
    if (key->type == CONFIG_CHOICE && text && nearest_choice(key->choices, text, choice, MAX_NAME))
        append(out, size, " (did you mean \"%s\"?)", choice);
    double x = json_number_value(value);
    if (key->type == CONFIG_REAL && key->min == 0 && key->max <= 1 && x > 1 && x <= 100)
        append(out, size, " (did you mean %g?)", x / 100);
    if (text && key->type != CONFIG_CHOICE && key->type != CONFIG_STRING &&
        key->type != CONFIG_NAMES) {
        json_t *unquoted = config_parse_text(key, text);
        char *plain = config_dump(unquoted, 0);
        if (!json_is_string(unquoted))
            append(out, size, " (did you mean %s, without quotes?)", plain);
        free(plain);
        json_decref(unquoted);
    }
    return out;
}
