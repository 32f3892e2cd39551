#include "cmd/report/page.h"

#include "data/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEGIN  "<script type=\"application/json\" id=\"runs\">"
#define END    "</script>"
#define DIGITS 7

extern const unsigned char page_html[]; /* page.html and a NUL, which CMake puts into the program */

/* No text within may end the script, or begin a comment in it. */
static int write_escaped(const char *text, size_t n, void *stream)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] == '<')
            fputs("\\u003c", stream);
        else
            putc(text[i], (FILE *)stream);
    return 0;
}

bool page_write(const char *path, const json_t *runs, struct zf_error *err)
{
    struct file_replace f;
    const char *page = (const char *)page_html, *place = strstr(page, BEGIN) + strlen(BEGIN);
    if (!file_replace_begin(&f, path, err))
        return false;
    fwrite(page, 1, (size_t)(place - page), f.stream);
    json_dump_callback(runs, write_escaped, f.stream,
                       JSON_COMPACT | JSON_REAL_PRECISION(DIGITS) | JSON_PRESERVE_ORDER);
    fputs(place, f.stream);
    return file_replace_end(&f, true, err);
}

json_t *page_read(const char *path, struct zf_error *err)
{
    char *text;
    size_t n;
    if (!file_read(path, &text, &n, err))
        return NULL;
    char *begin = strstr(text, BEGIN), *end = begin ? strstr(begin, END) : NULL;
    json_t *runs = NULL;
    if (end)
        runs = json_loadb(begin + strlen(BEGIN), (size_t)(end - begin) - strlen(BEGIN), 0, NULL);
    if (!json_is_array(runs)) {
        json_decref(runs);
        runs = NULL;
        zf_fail(err, "%s: this is no report of zf-train", path);
    }
    free(text);
    return runs;
}
