#include "data/pipeline_json.h"

#include <stdlib.h>
#include <string.h>

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

static const char *string_in(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static bool is_type(const json_t *stage, const char *name)
{
    const char *type = string_in(stage, "type");
    return type && strcmp(type, name) == 0;
}

/* The stages under a key: a Sequence's own ones, which `list` names, or one. */
struct stages {
    const json_t *root, *list; /* list is NULL where root is no Sequence */
    size_t n;
};

static struct stages stages_of(const struct json_file *f, const char *key, const char *list)
{
    struct stages s = {.root = json_find(f, key)};
    if (is_type(s.root, "Sequence"))
        s.list = json_object_get(s.root, list);
    s.n = s.list ? json_array_size(s.list) : is_set(s.root);
    return s;
}

static const json_t *stage_at(const struct stages *s, size_t i)
{
    return s->list ? json_array_get(s->list, i) : s->root;
}

static bool read_normalizer_stage(struct pipeline *p, const struct json_file *f,
                                  const json_t *stage, struct zf_error *err)
{
    const char *content = string_in(stage, "content"), *front = string_in(stage, "prepend");
    const char *pattern = string_in(json_object_get(stage, "pattern"), "String");
    if (is_type(stage, "NFC"))
        normalizer_add_nfc(p->normalizer);
    else if (is_type(stage, "Prepend") && front)
        normalizer_add_prepend(p->normalizer, front);
    else if (is_type(stage, "Replace") && pattern && *pattern && content)
        normalizer_add_replace(p->normalizer, pattern, content);
    else
        return unsupported(f, "normalizer", stage,
                           "null, NFC, Prepend, Replace of a String, or a Sequence of them", err);
    p->drops_first_space = p->drops_first_space || (front && strcmp(front, METASPACE) == 0);
    return true;
}

static bool read_normalizer(struct pipeline *p, const struct json_file *f, struct zf_error *err)
{
    const struct stages s = stages_of(f, "normalizer", "normalizers");
    for (size_t i = 0; i < s.n; i++)
        if (!read_normalizer_stage(p, f, stage_at(&s, i), err))
            return false;
    return true;
}

static bool add_pattern(struct pipeline *p, const struct json_file *f,
                        const struct split_pattern *pattern, struct zf_error *err)
{
    struct zf_error why;
    return splitter_add_pattern(p->splitter, pattern, &why) ||
           zf_fail(err, "%s:%d: pre_tokenizer: %.900s", f->path, json_line(f, "pre_tokenizer"),
                   why.text);
}

static bool read_split(struct pipeline *p, const struct json_file *f, const json_t *stage,
                       struct zf_error *err)
{
    static const char *const names[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const json_t *pattern = json_object_get(stage, "pattern");
    const char *regex = string_in(pattern, "Regex"), *literal = string_in(pattern, "String");
    const char *behavior = string_in(stage, "behavior");
    size_t n = sizeof names / sizeof *names, i = 0;
    while (i < n && behavior && strcmp(names[i], behavior) != 0)
        i++;
    if (!behavior || i == n || (!regex && !literal))
        return unsupported(f, "pre_tokenizer", stage,
                           "a Split by Regex or String, Isolated, Removed, MergedWithPrevious, "
                           "MergedWithNext or Contiguous",
                           err);
    const struct split_pattern split = {.text = regex ? regex : literal,
                                        .literal = !regex,
                                        .behavior = (enum split_behavior)i,
                                        .invert = json_is_true(json_object_get(stage, "invert"))};
    return add_pattern(p, f, &split, err);
}

/* Numbers as Rust has them, which knows Unicode 17. */
#define NUMBER "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]"

static bool read_digits(struct pipeline *p, const struct json_file *f, const json_t *stage,
                        struct zf_error *err)
{
    bool each = json_is_true(json_object_get(stage, "individual_digits"));
    const struct split_pattern split = {.text = each ? NUMBER : NUMBER "+"};
    return add_pattern(p, f, &split, err);
}

/* Older files say add_prefix_space instead of prepend_scheme. */
static bool read_metaspace(struct pipeline *p, const struct json_file *f, const json_t *stage,
                           struct zf_error *err)
{
    const char *scheme = string_in(stage, "prepend_scheme");
    const char *replacement = string_in(stage, "replacement");
    if (!scheme)
        scheme = json_is_false(json_object_get(stage, "add_prefix_space")) ? "never" : "always";
    enum metaspace_prefix prefix = strcmp(scheme, "always") == 0  ? METASPACE_ALWAYS
                                   : strcmp(scheme, "first") == 0 ? METASPACE_FIRST
                                                                  : METASPACE_NEVER;
    if (!replacement || strcmp(replacement, METASPACE) != 0 ||
        (prefix == METASPACE_NEVER && strcmp(scheme, "never") != 0))
        return unsupported(f, "pre_tokenizer", stage,
                           "a Metaspace with replacement \"" METASPACE
                           "\" and prepend_scheme always, first or never",
                           err);
    p->drops_first_space = p->drops_first_space || prefix != METASPACE_NEVER;
    return splitter_add_metaspace(p->splitter, prefix,
                                  !json_is_false(json_object_get(stage, "split")), err);
}

/* Hugging Face's defaults where a key is absent. */
static bool read_byte_level(struct pipeline *p, const json_t *stage, struct zf_error *err)
{
    p->add_prefix_space = !json_is_false(json_object_get(stage, "add_prefix_space"));
    if (p->add_prefix_space && !splitter_add_prefix_space(p->splitter, err))
        return false;
    return json_is_false(json_object_get(stage, "use_regex")) ||
           splitter_add_gpt2_pattern(p->splitter, err);
}

static bool read_pre_tokenizer(struct pipeline *p, struct bpe_rules *rules,
                               const struct json_file *f, struct zf_error *err)
{
    const struct stages s = stages_of(f, "pre_tokenizer", "pretokenizers");
    for (size_t i = 0; i < s.n; i++) {
        const json_t *stage = stage_at(&s, i);
        bool last = i + 1 == s.n, ok;
        if (is_type(stage, "Split"))
            ok = read_split(p, f, stage, err);
        else if (is_type(stage, "Digits"))
            ok = read_digits(p, f, stage, err);
        else if (is_type(stage, "Metaspace"))
            ok = read_metaspace(p, f, stage, err);
        else if (is_type(stage, "ByteLevel") && last)
            ok = read_byte_level(p, stage, err);
        else
            ok = unsupported(f, "pre_tokenizer", stage,
                             "null, Split, Digits, Metaspace, ByteLevel, or a Sequence of them "
                             "with ByteLevel last",
                             err);
        if (!ok)
            return false;
        rules->characters = !is_type(stage, "ByteLevel");
    }
    return true;
}

bool pipeline_read_rules(struct pipeline *p, struct bpe_rules *rules, const struct json_file *f,
                         bool stages, struct zf_error *err)
{
    static const char *const refused[] = {"model.dropout", "model.continuing_subword_prefix",
                                          "model.end_of_word_suffix"};
    const char *type = "BPE", *unk = NULL;
    *rules = (struct bpe_rules){.characters = true};
    if (!json_get_string(f, "model.type", &type, err) ||
        !json_get_string(f, "model.unk_token", &unk, err) ||
        !json_get_bool(f, "model.byte_fallback", &rules->byte_fallback, err) ||
        !json_get_bool(f, "model.fuse_unk", &rules->fuse_unk, err) ||
        !json_get_bool(f, "model.ignore_merges", &rules->ignore_merges, err))
        return false;
    if (strcmp(type, "BPE") != 0)
        return unsupported(f, "model.type", json_find(f, "model.type"), "BPE", err);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_set(json_find(f, refused[i])))
            return unsupported(f, refused[i], json_find(f, refused[i]), "null", err);
    rules->unk_token = unk && *unk ? unk : NULL;
    return !stages || (read_normalizer(p, f, err) && read_pre_tokenizer(p, rules, f, err));
}

bool pipeline_check_fallback(const struct pipeline *p, const struct json_file *f,
                             struct zf_error *err)
{
    return !bpe_falls_back_from_bytes(p->bpe) ||
           unsupported(f, "model.byte_fallback", json_true(),
                       "false where there is ByteLevel and a byte's character has no token, but "
                       "its own bytes have",
                       err);
}

/* A special token's ids, appended. */
static bool append_special(const struct pipeline *p, struct token_template *t,
                           const json_t *special, const char *name)
{
    size_t i;
    json_t *id;
    const json_t *ids = json_object_get(json_object_get(special, name), "ids");
    json_array_foreach(ids, i, id)
    {
        if (t->n == TEMPLATE_MAX_IDS || !json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= bpe_n_tokens(p->bpe))
            return false;
        t->ids[t->n++] = (int)json_integer_value(id);
    }
    return json_is_array(ids);
}

/* [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...]: false where the texts are not
 * n_texts, each once and in order, or a token is none. */
static bool read_template(const struct pipeline *p, struct token_template *t, const json_t *pieces,
                          const json_t *special, int n_texts)
{
    size_t i;
    json_t *piece;
    int seen = 0;
    json_array_foreach(pieces, i, piece)
    {
        const char *text = string_in(json_object_get(piece, "Sequence"), "id");
        const char *token = string_in(json_object_get(piece, "SpecialToken"), "id");
        const char expected[] = {(char)('A' + seen), 0};
        if (text && seen < n_texts && strcmp(text, expected) == 0)
            *(seen++ ? &t->between : &t->before) = t->n;
        else if (!token || !append_special(p, t, special, token))
            return false;
    }
    if (n_texts == 1)
        t->between = t->before;
    return seen == n_texts;
}

bool pipeline_read_templates(struct pipeline *p, const struct json_file *f, struct zf_error *err)
{
    const struct stages s = stages_of(f, "post_processor", "processors");
    bool found = false;
    for (size_t i = 0; i < s.n; i++) {
        const json_t *stage = stage_at(&s, i), *special = json_object_get(stage, "special_tokens");
        if (is_type(stage, "ByteLevel")) /* is about offsets alone */
            continue;
        if (!is_type(stage, "TemplateProcessing") || found ||
            !read_template(p, &p->single, json_object_get(stage, "single"), special, 1) ||
            !read_template(p, &p->pair, json_object_get(stage, "pair"), special, 2))
            return unsupported(f, "post_processor", stage,
                               "null, ByteLevel, one TemplateProcessing that puts tokens of the "
                               "vocabulary around A, and around and between A and B, or a Sequence "
                               "of them",
                               err);
        found = true;
    }
    return true;
}
