#include "data/json_scan.h"

#include "data/alloc.h"
#include "data/utf8.h"

#include <limits.h>
#include <string.h>

int json_scan_line(const struct json_scan *s)
{
    int line = 1;
    for (const char *p = s->text; p < s->p; p++)
        line += *p == '\n';
    return line;
}

static bool fail(const struct json_scan *s, const char *expected, struct zf_error *err)
{
    int n = (int)strcspn(s->p, ",]} \t\r\n");
    if (!*s->p)
        return zf_fail(err, "%s:%d: the file ends where %s belongs", s->path, json_scan_line(s),
                       expected);
    return zf_fail(err, "%s:%d: found %.*s where %s belongs", s->path, json_scan_line(s),
                   n < 1 ? 1 : (n > 40 ? 40 : n), s->p, expected);
}

const char *json_scan_string_end(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        p += *p == '\\' && p[1];
    return p + (*p == '"');
}

static void skip_space(struct json_scan *s)
{
    while (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r')
        s->p++;
}

bool json_scan_take(struct json_scan *s, char c)
{
    skip_space(s);
    bool there = *s->p == c;
    s->p += there;
    return there;
}

bool json_scan_need(struct json_scan *s, char c, struct zf_error *err)
{
    char expected[] = {'\'', c, '\'', 0};
    return json_scan_take(s, c) || fail(s, expected, err);
}

/* The four hexadecimal digits of an escape, or -1. */
static long hex4(const char *p)
{
    long value = 0;
    for (int i = 0; i < 4; i++) {
        char lower = (char)(p[i] | 0x20);
        int digit = p[i] >= '0' && p[i] <= '9'     ? p[i] - '0'
                    : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                   : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Decodes the escape at *p (after its backslash), moves past it, and returns its length in out, or
 * 0 where it is none. */
static size_t decode_escape(const char **p, char *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = **p ? strchr(names, **p) : NULL;
    if (name) {
        *out = values[name - names];
        *p += 1;
        return 1;
    }
    long code = **p == 'u' ? hex4(*p + 1) : -1;
    if (code < 0 || (code >= 0xDC00 && code < 0xE000))
        return 0;
    *p += 5;
    if (code >= 0xD800 && code < 0xDC00) {
        long low = (*p)[0] == '\\' && (*p)[1] == 'u' ? hex4(*p + 2) : -1;
        if (low < 0xDC00 || low >= 0xE000)
            return 0;
        *p += 6;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    return utf8_encode((uint32_t)code, out);
}

static bool unescape(struct json_scan *s, struct json_scan_string *string, struct zf_error *err)
{
    size_t n = 0;
    const char *p = s->p;
    while (*p != '"') {
        if (n + 4 > string->capacity) {
            string->capacity = 2 * string->capacity + 64;
            string->buffer = zf_realloc(string->buffer, string->capacity);
        }
        if ((unsigned char)*p < ' ') {
            s->p = p;
            return fail(s, "the rest of a string", err);
        }
        if (*p != '\\') {
            string->buffer[n++] = *p++;
            continue;
        }
        const char *escape = p++;
        size_t length = decode_escape(&p, string->buffer + n);
        if (!length) {
            s->p = escape;
            return fail(s, "a valid escape", err);
        }
        n += length;
    }
    s->p = p;
    string->text = string->buffer;
    string->n = n;
    return true;
}

bool json_scan_need_end(struct json_scan *s, const char *end, struct zf_error *err)
{
    skip_space(s);
    return s->p == end || fail(s, "the end of the file", err);
}

bool json_scan_get_string(struct json_scan *s, struct json_scan_string *string,
                          struct zf_error *err)
{
    if (!json_scan_take(s, '"'))
        return fail(s, "a string", err);
    const char *end = s->p;
    while (*end != '"' && *end != '\\' && (unsigned char)*end >= ' ')
        end++;
    string->text = s->p;
    string->n = (size_t)(end - s->p);
    if (*end != '"') {
        if (!unescape(s, string, err))
            return false;
        end = s->p;
    }
    s->p = end + 1;
    return true;
}

bool json_scan_get_int(struct json_scan *s, long *value, struct zf_error *err)
{
    skip_space(s);
    const char *p = s->p + (*s->p == '-');
    long magnitude = 0;
    const char *digits = p;
    for (; *p >= '0' && *p <= '9'; p++)
        magnitude = magnitude > INT_MAX ? magnitude : magnitude * 10 + (*p - '0');
    if (p == digits || *p == '.' || *p == 'e' || *p == 'E')
        return fail(s, "a whole number", err);
    *value = *s->p == '-' ? -magnitude : magnitude;
    s->p = p;
    return true;
}

void json_scan_skip(struct json_scan *s)
{
    int depth = 0;
    do {
        skip_space(s);
        if (!*s->p)
            return;
        if (*s->p == '"') {
            s->p = json_scan_string_end(s->p);
        } else {
            depth += (*s->p == '{' || *s->p == '[') - (*s->p == '}' || *s->p == ']');
            bool one = strchr("{}[],:", *s->p);
            s->p += one ? 1 : strcspn(s->p, "{}[],:\" \t\r\n");
        }
    } while (depth > 0);
}

bool json_scan_member(struct json_scan *s, bool first, const char **name, size_t *n)
{
    if (!json_scan_take(s, first ? '{' : ','))
        return false;
    skip_space(s);
    if (*s->p != '"')
        return false;
    *name = s->p + 1;
    s->p = json_scan_string_end(s->p);
    *n = (size_t)(s->p - 1 - *name);
    if (!json_scan_take(s, ':'))
        return false;
    skip_space(s);
    return true;
}

bool json_scan_enter(struct json_scan *s, const char *key)
{
    const char *name;
    size_t n, wanted = strlen(key);
    for (bool first = true; json_scan_member(s, first, &name, &n); first = false) {
        if (n == wanted && memcmp(name, key, n) == 0)
            return true;
        json_scan_skip(s);
    }
    return false;
}
