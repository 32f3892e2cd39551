/* A walk forward over JSON text, for what Jansson's values do not tell: on which line a key stands
 * (json.h), and the two big tables of a tokenizer, its vocabulary and its merges: tens of thousands
 * of small values that are wanted once, in order, and fast. It checks what it reads; what it skips
 * is left to Jansson. */
#ifndef ZF_DATA_JSON_SCAN_H
#define ZF_DATA_JSON_SCAN_H

#include "data/error.h"

#include <stddef.h>

struct json_scan {
    const char *path; /* for messages */
    const char *text; /* NUL-terminated */
    const char *p;    /* where it stands */
};

/* A string's text: within the JSON text, or where it has escapes, in `buffer`. */
struct json_scan_string {
    const char *text;
    size_t n;
    char *buffer;
    size_t capacity;
};

/* The line (from 1) on which p stands. */
int json_scan_line(const struct json_scan *s);
/* Skips white space and, if it comes next, this character. */
bool json_scan_take(struct json_scan *s, char c);
/* The same, but another character is a fault: "FILE:LINE: found X where EXPECTED belongs". So it is
 * with all that take an err. */
bool json_scan_need(struct json_scan *s, char c, struct zf_error *err);
/* Only white space may come before `end`, where the text ends. */
bool json_scan_need_end(struct json_scan *s, const char *end, struct zf_error *err);
/* string->buffer is NULL at first, grows, and is the caller's to free. */
bool json_scan_get_string(struct json_scan *s, struct json_scan_string *string,
                          struct zf_error *err);
bool json_scan_get_int(struct json_scan *s, long *value, struct zf_error *err);
/* Skips one value without checking more than its brackets. */
void json_scan_skip(struct json_scan *s);
/* Past the string that begins at p, or to the end of the text. */
const char *json_scan_string_end(const char *p);
/* Moves to the value of the first or the next member of an object; false where there is none. name:
 * (n) as it is spelled, within the text. */
bool json_scan_member(struct json_scan *s, bool first, const char **name, size_t *n);
/* In the object that comes next: moves to the value of this key; false where there is none. */
bool json_scan_enter(struct json_scan *s, const char *key);

#endif
