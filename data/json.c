#include "data/json.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/json_scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Jansson's memory is ours: it would leave out of a text or an object what it has none for. */
__attribute__((constructor)) static void give_memory(void)
{
    json_set_alloc_funcs(zf_malloc, free);
}

/* Whether a number that is no integer of 64 bits is spelled as one. */
static bool is_big_integer(const char *number, size_t n)
{
    errno = 0;
    strtoll(number, NULL, 10);
    return errno == ERANGE && strspn(number, "-0123456789") == n;
}

/* A copy of the text in which integers that Jansson cannot hold are reals: Transformers writes
 * 10^30 for "no limit". */
static char *with_big_integers_as_reals(const char *text, size_t *bytes)
{
    char *copy = zf_malloc(*bytes + *bytes / 8 + 1), *to = copy; /* of 19 digits or more */
    for (const char *p = text, *end; p < text + *bytes; p = end) {
        size_t n = strspn(p, "-+.0123456789eE");
        end = *p == '"' ? json_scan_string_end(p) : p + (n ? n : 1);
        memcpy(to, p, (size_t)(end - p));
        to += end - p;
        if (*p != '"' && n && is_big_integer(p, n)) {
            *to++ = '.';
            *to++ = '0';
        }
    }
    *to = 0;
    *bytes = (size_t)(to - copy);
    return copy;
}

/* What a person writes into JSON that it does not have: a comment, or a comma after the last item.
 * At its first place, with the line; NULL: neither. */
static const char *find_liberty(const char *text, int *line)
{
    *line = 1;
    for (const char *p = text; *p;) {
        if (*p == '"') {
            p = json_scan_string_end(p);
            continue;
        }
        if (*p == '#' || (*p == '/' && (p[1] == '/' || p[1] == '*')))
            return "a comment begins here, but JSON has no comments";
        char next = *p == ',' ? p[1 + strspn(p + 1, " \t\r\n")] : 0;
        if (next == '}' || next == ']')
            return "a comma stands after the last item, where JSON has none";
        *line += *p++ == '\n';
    }
    return NULL;
}

static bool fail_syntax(const struct json_file *f, const json_error_t *fault, struct zf_error *err)
{
    int line;
    const char *liberty = find_liberty(f->text, &line);
    bool first = liberty && line <= fault->line;
    return zf_fail(err, "%s:%d: not valid JSON: %s", f->path, first ? line : fault->line,
                   first ? liberty : fault->text);
}

bool json_load(struct json_file *f, const char *path, struct zf_error *err)
{
    char *text;
    size_t n;
    *f = (struct json_file){.path = path};
    return file_read_text(path, &text, &n, err) && json_parse(f, path, text, n, err);
}

bool json_parse(struct json_file *f, const char *path, char *text, size_t n, struct zf_error *err)
{
    json_error_t fault;
    *f = (struct json_file){.path = path, .text = text};
    f->root = json_loadb(f->text, n, JSON_REJECT_DUPLICATES, &fault);
    if (!f->root && json_error_code(&fault) == json_error_numeric_overflow) {
        f->text = with_big_integers_as_reals(text, &n);
        free(text);
        f->root = json_loadb(f->text, n, JSON_REJECT_DUPLICATES, &fault);
    }
    if (f->root && json_is_object(f->root))
        return true;
    if (f->root)
        zf_fail(err, "%s:1: this is not a JSON object in braces", path);
    else
        fail_syntax(f, &fault, err);
    json_free(f);
    return false;
}

void json_free(struct json_file *f)
{
    json_decref(f->root);
    free(f->text);
    f->root = NULL;
    f->text = NULL;
}

/* What is left of `rest` after `key`: NULL if it does not start with it, "" if that is all. */
static const char *path_after(const char *rest, const char *key, size_t n)
{
    if (strncmp(rest, key, n) != 0 || (rest[n] != 0 && rest[n] != '.'))
        return NULL;
    return rest[n] ? rest + n + 1 : rest + n;
}

/* Where the key stands in the object that comes next; NULL: nowhere. */
static const char *find_key(struct json_scan s, const char *rest)
{
    const char *name;
    size_t n;
    for (bool first = true; json_scan_member(&s, first, &name, &n); first = false) {
        const char *inner = path_after(rest, name, n);
        const char *found = !inner ? NULL : *inner ? find_key(s, inner) : name;
        if (found)
            return found;
        json_scan_skip(&s);
    }
    return NULL;
}

int json_line(const struct json_file *f, const char *key_path)
{
    struct json_scan s = {f->path, f->text, f->text};
    s.p = find_key(s, key_path);
    return s.p ? json_scan_line(&s) : 0;
}

json_t *json_find(const struct json_file *f, const char *key_path)
{
    json_t *value = f->root;
    while (value && *key_path) {
        char key[256];
        size_t n = strcspn(key_path, ".");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, key_path, n);
        key[n] = 0;
        value = json_object_get(value, key);
        key_path += n + (key_path[n] == '.');
    }
    return value;
}

bool json_fail(const struct json_file *f, const char *key_path, const char *expected,
               struct zf_error *err)
{
    char *value = json_dumps(json_find(f, key_path), JSON_ENCODE_ANY | JSON_COMPACT);
    zf_fail(err, "%s:%d: %s is %.100s, but it is %s", f->path, json_line(f, key_path), key_path,
            value ? value : "absent", expected);
    free(value);
    return false;
}

/* The value if it is there and not null. */
static json_t *present(const struct json_file *f, const char *key_path)
{
    json_t *value = json_find(f, key_path);
    return json_is_null(value) ? NULL : value;
}

bool json_get_int(const struct json_file *f, const char *key_path, int *value, struct zf_error *err)
{
    json_t *v = present(f, key_path);
    if (!v)
        return true;
    if (!json_is_integer(v) || json_integer_value(v) < INT32_MIN ||
        json_integer_value(v) > INT32_MAX)
        return json_fail(f, key_path, "a whole number", err);
    *value = (int)json_integer_value(v);
    return true;
}

bool json_get_float(const struct json_file *f, const char *key_path, float *value,
                    struct zf_error *err)
{
    json_t *v = present(f, key_path);
    if (v && !json_is_number(v))
        return json_fail(f, key_path, "a number", err);
    if (v)
        *value = (float)json_number_value(v);
    return true;
}

bool json_get_bool(const struct json_file *f, const char *key_path, bool *value,
                   struct zf_error *err)
{
    json_t *v = present(f, key_path);
    if (v && !json_is_boolean(v))
        return json_fail(f, key_path, "true or false", err);
    if (v)
        *value = json_is_true(v);
    return true;
}

bool json_get_string(const struct json_file *f, const char *key_path, const char **value,
                     struct zf_error *err)
{
    json_t *v = present(f, key_path);
    if (v && !json_is_string(v))
        return json_fail(f, key_path, "a string", err);
    if (v)
        *value = json_string_value(v);
    return true;
}

bool json_write(const char *path, const json_t *root, int digits, struct zf_error *err)
{
    char *text =
        json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(digits));
    if (!text)
        return zf_fail(err, "%s: cannot be written: a value is not representable in JSON", path);
    size_t n = strlen(text);
    text[n] = '\n'; /* in place of the NUL: JSON text is written by length */
    bool ok = file_write(path, text, n + 1, err);
    free(text);
    return ok;
}
