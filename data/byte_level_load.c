/* Reading byte-level BPE from files: tokenizer.json, or vocab.json and merges.txt with the small
 * JSON files that may lie beside them. */
#include "data/alloc.h"
#include "data/byte_level.h"
#include "data/file.h"
#include "data/json.h"
#include "data/json_scan.h"

#include <stdlib.h>
#include <string.h>

static const char end_of_text[] = "<|endoftext|>";

static struct byte_level *byte_level_create(void)
{
    struct byte_level *b = zf_calloc(1, sizeof *b);
    b->bpe = bpe_create();
    b->splitter = splitter_create();
    b->eos = -1;
    return b;
}

/* Notes an added token unless its text is there already. id -1: that of the token spelled so. */
static struct added_token *note_added(struct byte_level *b, const char *text, long id)
{
    for (int i = 0; i < b->n_added; i++)
        if (strcmp(b->added[i].text, text) == 0)
            return NULL;
    b->added = zf_realloc(b->added, ((size_t)b->n_added + 1) * sizeof *b->added);
    struct added_token *t = &b->added[b->n_added++];
    *t = (struct added_token){.text = zf_strdup(text), .n = strlen(text), .id = (int)id};
    if (id >= 0)
        bpe_add_token(b->bpe, text, t->n, id, true);
    return t;
}

/* An added token as tokenizer.json and tokenizer_config.json describe it. */
static bool read_added(struct byte_level *b, const json_t *entry, json_int_t id, const char *path,
                       const char *key, struct zf_error *err)
{
    const char *text = json_string_value(json_object_get(entry, "content"));
    if (!text || !*text)
        return zf_fail(err, "%s: a token of %s has no content, a string", path, key);
    if (id < 0 || id > INT32_MAX)
        return zf_fail(err, "%s: the token \"%s\" of %s has no id, a whole number from 0", path,
                       text, key);
    if (json_is_true(json_object_get(entry, "single_word")))
        return zf_fail(err,
                       "%s: the token \"%s\" of %s has single_word set, which is not supported",
                       path, text, key);
    struct added_token *t = note_added(b, text, (long)id);
    if (t) {
        t->strip_left = json_is_true(json_object_get(entry, "lstrip"));
        t->strip_right = json_is_true(json_object_get(entry, "rstrip"));
        t->late = json_is_true(json_object_get(entry, "normalized"));
    }
    return true;
}

/* The text of a special token: a string, or an object with its content. */
static const char *special_text(const struct json_file *f, const char *key)
{
    const json_t *value = f->root ? json_find(f, key) : NULL;
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* The small files beside a vocabulary; root is NULL where one is absent. */
struct settings {
    char *paths[3];
    struct json_file config, special, added;
};

static void settings_free(struct settings *s)
{
    for (int i = 0; i < 3; i++)
        free(s->paths[i]);
    json_free(&s->config);
    json_free(&s->special);
    json_free(&s->added);
}

static bool settings_load(struct settings *s, const char *directory, struct zf_error *err)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json"};
    struct json_file *files[] = {&s->config, &s->special, &s->added};
    *s = (struct settings){0};
    bool ok = true;
    for (int i = 0; i < 3 && ok; i++) {
        s->paths[i] = zf_format("%s/%s", directory, names[i]);
        if (file_exists(s->paths[i]))
            ok = json_load(files[i], s->paths[i], err);
    }
    if (!ok)
        settings_free(s);
    return ok;
}

/* The added tokens that tokenizer_config.json and added_tokens.json list with their ids. */
static bool read_listed_tokens(struct byte_level *b, const struct settings *s, struct zf_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(s->config.root, "added_tokens_decoder"), key, value)
    {
        char *end;
        long id = strtol(key, &end, 10);
        if (!read_added(b, value, *key && !*end ? id : -1, s->config.path, "added_tokens_decoder",
                        err))
            return false;
    }
    json_object_foreach(s->added.root, key, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > INT32_MAX)
            return zf_fail(err, "%s: the id of \"%s\" is not a whole number from 0", s->added.path,
                           key);
        struct added_token *t = note_added(b, key, (long)json_integer_value(value));
        if (t)
            t->late = true;
    }
    return true;
}

/* The tokens with a role, which are found in a text as well. */
static void note_special_tokens(struct byte_level *b, const struct settings *s)
{
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const char *in_config = special_text(&s->config, roles[i]);
        const char *in_map = special_text(&s->special, roles[i]);
        if (in_config && *in_config)
            note_added(b, in_config, -1);
        if (in_map && *in_map)
            note_added(b, in_map, -1);
    }
}

static int find_eos(const struct byte_level *b, const struct settings *s)
{
    const char *names[] = {special_text(&s->config, "eos_token"),
                           special_text(&s->special, "eos_token"), end_of_text, "</s>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int id = names[i] ? bpe_find(b->bpe, names[i], strlen(names[i])) : -1;
        if (id >= 0)
            return id;
    }
    return -1;
}

static int longest_first(const void *a, const void *b)
{
    const struct added_token *left = a, *right = b;
    return (left->n < right->n) - (left->n > right->n);
}

/* Once all tokens are known: gives each added token its id, drops those that are none, and puts the
 * longest first. */
static bool index_tokens(struct byte_level *b, const char *path, struct zf_error *err)
{
    int kept = 0;
    if (!bpe_index(b->bpe, path, err))
        return false;
    for (int i = 0; i < b->n_added; i++) {
        struct added_token t = b->added[i];
        t.id = bpe_find(b->bpe, t.text, t.n);
        if (t.id < 0) {
            free(t.text);
            continue;
        }
        b->starts_added[(unsigned char)*t.text] = true;
        b->added[kept++] = t;
    }
    b->n_added = kept;
    if (kept)
        qsort(b->added, (size_t)kept, sizeof *b->added, longest_first);
    return true;
}

/* {"token": id, ...} */
static bool scan_vocab(struct byte_level *b, struct json_scan *s, struct zf_error *err)
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
            bpe_add_token(b->bpe, token.text, token.n, id, false);
    } while (ok && json_scan_take(s, ','));
    free(token.buffer);
    return ok && json_scan_need(s, '}', err);
}

/* A merge of tokenizer.json: "left right" or, in newer files, ["left", "right"]. */
static bool scan_merge(struct byte_level *b, struct json_scan *s, struct json_scan_string part[2],
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
    return bpe_add_merge(b->bpe, left, n_left, right, n_right, &why) ||
           zf_fail(err, "%s:%d: %.900s", s->path, json_scan_line(s), why.text);
}

static bool scan_merges(struct byte_level *b, struct json_scan *s, struct zf_error *err)
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

static bool read_merges_line(struct byte_level *b, const char *line, size_t n, const char *path,
                             int number, struct zf_error *err)
{
    struct zf_error why;
    const char *space = memchr(line, ' ', n);
    size_t n_left = space ? (size_t)(space - line) : 0;
    size_t n_right = space ? n - n_left - 1 : 0;
    if (n_left == 0 || n_right == 0 || memchr(space + 1, ' ', n_right))
        return zf_fail(err, "%s:%d: \"%.*s\" is not two tokens with a space between", path, number,
                       n > 100 ? 100 : (int)n, line);
    return bpe_add_merge(b->bpe, line, n_left, space + 1, n_right, &why) ||
           zf_fail(err, "%s:%d: %.900s", path, number, why.text);
}

/* merges.txt: a version line, then a merge a line, the first to be applied first. */
static bool read_merges_text(struct byte_level *b, const char *path, struct zf_error *err)
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

static bool read_vocab_file(struct byte_level *b, const char *path, struct zf_error *err)
{
    char *text;
    size_t n;
    if (!file_read_text(path, &text, &n, err))
        return false;
    struct json_scan s = {path, text, text};
    bool ok = scan_vocab(b, &s, err);
    ok = ok && json_scan_need_end(&s, text + n, err);
    free(text);
    return ok;
}

/* vocab.json and merges.txt mean GPT-2's rules; other tokenizers use the same names. */
static bool check_class(const struct settings *s, struct zf_error *err)
{
    static const char *const known[] = {"GPT2Tokenizer", "GPT2TokenizerFast",
                                        "PreTrainedTokenizerFast", "TokenizersBackend"};
    const char *name = NULL;
    if (!s->config.root)
        return true;
    if (!json_get_string(&s->config, "tokenizer_class", &name, err))
        return false;
    if (!name)
        return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return json_fail(&s->config, "tokenizer_class",
                     "GPT2Tokenizer where there is no tokenizer.json; the rules of other "
                     "classes are not supported",
                     err);
}

static bool load_vocab(struct byte_level *b, const struct settings *s, const char *vocab,
                       const char *merges, struct zf_error *err)
{
    if (!check_class(s, err) || !read_vocab_file(b, vocab, err) || !read_listed_tokens(b, s, err))
        return false;
    note_special_tokens(b, s);
    note_added(b, end_of_text, -1);
    if (s->config.root && !json_get_bool(&s->config, "add_prefix_space", &b->add_prefix_space, err))
        return false;
    if (b->add_prefix_space)
        splitter_add_prefix_space(b->splitter);
    if (!splitter_add_gpt2_pattern(b->splitter, err) || !index_tokens(b, vocab, err))
        return false;
    b->eos = find_eos(b, s);
    return read_merges_text(b, merges, err);
}

struct byte_level *byte_level_load_vocab(const char *directory, struct zf_error *err)
{
    struct settings s;
    if (!settings_load(&s, directory, err))
        return NULL;
    struct byte_level *b = byte_level_create();
    char *vocab = zf_format("%s/vocab.json", directory);
    char *merges = zf_format("%s/merges.txt", directory);
    bool ok = load_vocab(b, &s, vocab, merges, err);
    free(vocab);
    free(merges);
    settings_free(&s);
    if (ok)
        return b;
    byte_level_free(b);
    return NULL;
}

/* Fills err with "FILE:LINE: KEY is VALUE, which is not supported; supported: WHAT". */
static bool unsupported(const struct json_file *f, const char *key, const json_t *value,
                        const char *what, struct zf_error *err)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    zf_fail(err, "%s:%d: %s is %.200s, which is not supported; supported: %s", f->path,
            json_line(f, key), key, text ? text : "absent", what);
    free(text);
    return false;
}

/* Absent, null, false or "" all say "no". */
static bool is_set(const json_t *value)
{
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_string(value) && !*json_string_value(value));
}

static bool read_model_settings(struct byte_level *b, const struct json_file *f,
                                struct zf_error *err)
{
    static const char *const refused[] = {"normalizer", "model.dropout",
                                          "model.continuing_subword_prefix",
                                          "model.end_of_word_suffix", "model.byte_fallback"};
    const char *type = "BPE";
    bool ignore_merges = false;
    if (!json_get_string(f, "model.type", &type, err) ||
        !json_get_bool(f, "model.ignore_merges", &ignore_merges, err))
        return false;
    if (strcmp(type, "BPE") != 0)
        return unsupported(f, "model.type", json_find(f, "model.type"), "BPE", err);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_set(json_find(f, refused[i])))
            return unsupported(f, refused[i], json_find(f, refused[i]), "null", err);
    if (ignore_merges)
        bpe_ignore_merges_of_tokens(b->bpe);
    return true;
}

static bool read_split_step(struct byte_level *b, const struct json_file *f, const json_t *step,
                            struct zf_error *err)
{
    static const char key[] = "pre_tokenizer";
    const json_t *pattern = json_object_get(step, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    struct zf_error why;
    if (!regex || !behavior || strcmp(behavior, "Isolated") != 0 ||
        is_set(json_object_get(step, "invert")))
        return unsupported(f, key, step, "a Split by Regex, Isolated, not inverted", err);
    return splitter_add_pattern(b->splitter, regex, &why) ||
           zf_fail(err, "%s:%d: %s: %.900s", f->path, json_line(f, key), key, why.text);
}

static bool read_byte_level_step(struct byte_level *b, const json_t *step, struct zf_error *err)
{
    /* Hugging Face's defaults where a key is absent. */
    const json_t *prefix = json_object_get(step, "add_prefix_space");
    b->add_prefix_space = !prefix || json_is_true(prefix);
    if (b->add_prefix_space)
        splitter_add_prefix_space(b->splitter);
    return json_is_false(json_object_get(step, "use_regex")) ||
           splitter_add_gpt2_pattern(b->splitter, err);
}

/* A ByteLevel, or a Sequence of Splits that ends with one. */
static bool read_pre_tokenizer(struct byte_level *b, const struct json_file *f,
                               struct zf_error *err)
{
    static const char what[] = "ByteLevel, or a Sequence of Split and, last, ByteLevel";
    const json_t *root = json_find(f, "pre_tokenizer");
    const char *type = json_string_value(json_object_get(root, "type"));
    const json_t *steps = json_object_get(root, "pretokenizers");
    bool sequence = type && strcmp(type, "Sequence") == 0;
    size_t n_steps = sequence ? json_array_size(steps) : 1;
    if (n_steps == 0)
        return unsupported(f, "pre_tokenizer", root, what, err);
    for (size_t i = 0; i < n_steps; i++) {
        const json_t *step = sequence ? json_array_get(steps, i) : root;
        const char *name = json_string_value(json_object_get(step, "type"));
        bool last = i + 1 == n_steps;
        if (!name || strcmp(name, last ? "ByteLevel" : "Split") != 0)
            return unsupported(f, "pre_tokenizer", step, what, err);
        if (last ? !read_byte_level_step(b, step, err) : !read_split_step(b, f, step, err))
            return false;
    }
    return true;
}

static bool read_added_tokens(struct byte_level *b, const struct json_file *f, struct zf_error *err)
{
    size_t i;
    json_t *entry;
    json_array_foreach(json_find(f, "added_tokens"), i, entry)
    {
        const json_t *id = json_object_get(entry, "id");
        if (!read_added(b, entry, json_is_integer(id) ? json_integer_value(id) : -1, f->path,
                        "added_tokens", err))
            return false;
    }
    return true;
}

/* Where a big table lies in the text of tokenizer.json; begin is NULL where there is none. */
struct span {
    char *begin, *end;
};

static struct span find_table(const char *path, char *text, const char *key)
{
    struct json_scan s = {path, text, text};
    if (!json_scan_enter(&s, "model") || !json_scan_enter(&s, key))
        return (struct span){NULL, NULL};
    size_t begin = (size_t)(s.p - text);
    json_scan_skip(&s);
    return (struct span){text + begin, text + (s.p - text)};
}

/* Overwrites a table by an empty one of the same lines, so that Jansson reads the rest quickly and
 * faults keep their line numbers. */
static void blank_table(char *begin, const char *end)
{
    if (end - begin < 2 || !strchr("{[", *begin) || !strchr("}]", end[-1]))
        return;
    for (char *p = begin + 1; p < end - 1; p++)
        if (*p != '\n')
            *p = ' ';
}

/* What lies around the tables, as JSON. */
static bool load_rest(struct json_file *f, const char *path, char *text, size_t n,
                      const struct span tables[2], struct zf_error *err)
{
    char *copy = zf_malloc(n + 1);
    memcpy(copy, text, n + 1);
    for (int i = 0; i < 2; i++)
        if (tables[i].begin)
            blank_table(copy + (tables[i].begin - text), copy + (tables[i].end - text));
    return json_parse(f, path, copy, n, err);
}

/* The tables were found by their keys alone; here they are read strictly. */
static bool read_tables(struct byte_level *b, const struct json_file *f, const struct settings *s,
                        const char *text, const struct span tables[2], struct zf_error *err)
{
    struct json_scan vocab = {f->path, text, tables[0].begin};
    struct json_scan merges = {f->path, text, tables[1].begin};
    if (!vocab.p || !merges.p)
        return zf_fail(err, "%s: model.%s is absent, but it is %s", f->path,
                       vocab.p ? "merges" : "vocab", vocab.p ? "a list" : "an object");
    if (!scan_vocab(b, &vocab, err) || !read_added_tokens(b, f, err))
        return false;
    note_special_tokens(b, s);
    if (!index_tokens(b, f->path, err))
        return false;
    b->eos = find_eos(b, s);
    return scan_merges(b, &merges, err);
}

static bool load_json(struct byte_level *b, const struct settings *s, const char *path,
                      struct zf_error *err)
{
    char *text;
    size_t n;
    struct json_file f;
    if (!file_read_text(path, &text, &n, err))
        return false;
    const struct span tables[2] = {find_table(path, text, "vocab"),
                                   find_table(path, text, "merges")};
    bool ok = load_rest(&f, path, text, n, tables, err);
    if (ok) {
        ok = read_model_settings(b, &f, err) && read_pre_tokenizer(b, &f, err) &&
             read_tables(b, &f, s, text, tables, err);
        json_free(&f);
    }
    free(text);
    return ok;
}

struct byte_level *byte_level_load_json(const char *directory, struct zf_error *err)
{
    struct settings s;
    if (!settings_load(&s, directory, err))
        return NULL;
    struct byte_level *b = byte_level_create();
    char *path = zf_format("%s/tokenizer.json", directory);
    bool ok = load_json(b, &s, path, err);
    free(path);
    settings_free(&s);
    if (ok)
        return b;
    byte_level_free(b);
    return NULL;
}
