#include "data/pipeline_tables.h"

#include "data/file.h"

#include <stdlib.h>
#include <string.h>

bool tables_scan_vocab(struct bpe *b, struct json_scan *s, struct zf_error *err)
{
    struct json_scan_string token = {0};
    long id;
    bool ok = json_scan_need(s, '{', err);
    if (ok && json_scan_take(s, '}'))
        return true;
    do {
        ok = ok && json_scan_get_string(s, &token, err) && json_scan_need(s, ':', err) &&
             json_scan_get_int(s, &id, err);
        if (ok)
            bpe_add_token(b, token.text, token.n, id, false);
    } while (ok && json_scan_take(s, ','));
    free(token.buffer);
    return ok && json_scan_need(s, '}', err);
}

/* A merge of tokenizer.json: "left right" or, in newer files, ["left", "right"]. */
static bool scan_merge(struct bpe *b, struct json_scan *s, struct json_scan_string part[2],
                       struct zf_error *err)
{
    const char *left, *right;
    size_t n_left, n_right;
    struct zf_error why;
    if (json_scan_take(s, '[')) {
        if (!json_scan_get_string(s, &part[0], err) || !json_scan_need(s, ',', err) ||
            !json_scan_get_string(s, &part[1], err) || !json_scan_need(s, ']', err))
            return false;
        left = part[0].text, n_left = part[0].n;
        right = part[1].text, n_right = part[1].n;
    } else {
        if (!json_scan_get_string(s, &part[0], err))
            return false;
        const char *space = memchr(part[0].text, ' ', part[0].n);
        if (!space)
            return zf_fail(err, "%s:%d: the merge \"%.*s\" is not two tokens with a space between",
                           s->path, json_scan_line(s), (int)part[0].n, part[0].text);
        left = part[0].text, n_left = (size_t)(space - left);
        right = space + 1, n_right = part[0].n - n_left - 1;
    }
    return bpe_add_merge(b, left, n_left, right, n_right, &why) ||
           zf_fail(err, "%s:%d: %.900s", s->path, json_scan_line(s), why.text);
}

bool tables_scan_merges(struct bpe *b, struct json_scan *s, struct zf_error *err)
{
    struct json_scan_string part[2] = {{0}, {0}};
    bool ok = json_scan_need(s, '[', err);
    if (ok && json_scan_take(s, ']'))
        return true;
    do
        ok = ok && scan_merge(b, s, part, err);
    while (ok && json_scan_take(s, ','));
    free(part[0].buffer);
    free(part[1].buffer);
    return ok && json_scan_need(s, ']', err);
}

static bool read_merges_line(struct bpe *b, const char *line, size_t n, const char *path,
                             int number, struct zf_error *err)
{
    struct zf_error why;
    const char *space = memchr(line, ' ', n);
    size_t n_left = space ? (size_t)(space - line) : 0;
    size_t n_right = space ? n - n_left - 1 : 0;
    if (n_left == 0 || n_right == 0 || memchr(space + 1, ' ', n_right))
        return zf_fail(err, "%s:%d: \"%.*s\" is not two tokens with a space between", path, number,
                       n > 100 ? 100 : (int)n, line);
    return bpe_add_merge(b, line, n_left, space + 1, n_right, &why) ||
           zf_fail(err, "%s:%d: %.900s", path, number, why.text);
}

bool tables_read_merges(struct bpe *b, const char *path, struct zf_error *err)
{
    static const char version[] = "#version";
    char *text;
    size_t n;
    if (!file_read_text(path, &text, &n, err))
        return false;
    bool ok = true;
    int number = 1;
    for (const char *line = text, *end = text + n; ok && line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((stop ? stop : end) - line);
        size_t bare = length > 0 && line[length - 1] == '\r' ? length - 1 : length;
        if (bare > 0 && strncmp(line, version, sizeof version - 1) != 0)
            ok = read_merges_line(b, line, bare, path, number, err);
        line += length + 1;
    }
    free(text);
    return ok;
}

bool tables_read_vocab(struct bpe *b, const char *path, struct zf_error *err)
{
    char *text;
    size_t n;
    if (!file_read_text(path, &text, &n, err))
        return false;
    struct json_scan s = {path, text, text};
    bool ok = tables_scan_vocab(b, &s, err);
    ok = ok && json_scan_need_end(&s, text + n, err);
    free(text);
    return ok;
}
