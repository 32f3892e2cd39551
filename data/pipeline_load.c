#include "data/pipeline_load.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/pipeline_classes.h"
#include "data/pipeline_json.h"
#include "data/pipeline_tables.h"
#include "data/spm_pieces.h"

#include <stdlib.h>
#include <string.h>

/* Longer pieces are no words of any language, and take long to be cut into all their parts. */
#define MAX_PIECE_BYTES 1024

static const char end_of_text[] = "<|endoftext|>";

/* Notes an added token. id -1: that of the token spelled so. */
static struct added_token *note_added(struct pipeline *p, const char *text, long id, bool *is_new)
{
    struct added_token *t = added_note(&p->added, text, is_new);
    if (*is_new && id >= 0)
        bpe_add_token(p->bpe, text, strlen(text), id, true);
    return t;
}

static void note_special(struct pipeline *p, const char *text)
{
    bool is_new;
    if (text && *text)
        note_added(p, text, -1, &is_new);
}

/* An added token as tokenizer.json and tokenizer_config.json describe it; the latter counts. */
static bool read_added(struct pipeline *p, const json_t *entry, json_int_t id, const char *path,
                       const char *key, struct zf_error *err)
{
    bool is_new;
    const char *text = json_string_value(json_object_get(entry, "content"));
    if (!text || !*text)
        return zf_fail(err, "%s: a token of %s has no content, a string", path, key);
    if (id < 0 || id > INT32_MAX)
        return zf_fail(err, "%s: the token \"%s\" of %s has no id, a whole number from 0", path,
                       text, key);
    struct added_token *t = note_added(p, text, (long)id, &is_new);
    t->single_word = json_is_true(json_object_get(entry, "single_word"));
    t->strip_left = json_is_true(json_object_get(entry, "lstrip"));
    t->strip_right = json_is_true(json_object_get(entry, "rstrip"));
    t->late = json_is_true(json_object_get(entry, "normalized"));
    return true;
}

/* The added tokens that tokenizer_config.json lists with their ids. */
static bool read_listed_tokens(struct pipeline *p, const struct settings *s, struct zf_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(settings_get(&s->config, "added_tokens_decoder"), key, value)
    {
        char *end;
        long id = strtol(key, &end, 10);
        if (!read_added(p, value, *key && !*end ? id : -1, s->config.path, "added_tokens_decoder",
                        err))
            return false;
    }
    return true;
}

/* added_tokens.json: {"token": id, ...} */
static bool read_added_file(struct pipeline *p, const struct settings *s, struct zf_error *err)
{
    const char *key;
    json_t *value;
    bool is_new;
    json_object_foreach(s->added.root, key, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > INT32_MAX || !*key)
            return zf_fail(err, "%s: the id of \"%s\" is not a whole number from 0", s->added.path,
                           key);
        struct added_token *t = note_added(p, key, (long)json_integer_value(value), &is_new);
        t->late = t->late || is_new;
    }
    return true;
}

static void note_list(struct pipeline *p, const json_t *list)
{
    size_t i;
    json_t *value;
    json_array_foreach(list, i, value) note_special(p, settings_content(value));
}

/* The tokens with a role, which are found in a text as well. */
static void note_special_tokens(struct pipeline *p, const struct settings *s)
{
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    const struct json_file *files[] = {&s->config, &s->special};
    for (int f = 0; f < 2; f++) {
        for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
            note_special(p, settings_content(settings_get(files[f], roles[i])));
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
            note_list(p, settings_get(files[f], lists[i]));
    }
}

/* The tokens that a class gives roles to where no file does. */
static void note_class_tokens(struct pipeline *p, const struct settings *s, enum stages stages)
{
    bool llama = stages == OF_LLAMA, qwen2 = stages == OF_QWEN2;
    if (stages == OF_FILE)
        return;
    note_special(p, settings_role(s, "unk_token", llama ? "<unk>" : end_of_text));
    note_special(p, settings_role(s, "bos_token", llama ? "<s>" : qwen2 ? NULL : end_of_text));
    note_special(p, settings_role(s, "eos_token", llama ? "</s>" : end_of_text));
    note_special(p, settings_role(s, "pad_token", qwen2 ? end_of_text : NULL));
}

static int find_token(const struct pipeline *p, const char *text)
{
    return text ? bpe_find(p->bpe, text, strlen(text)) : -1;
}

static int find_eos(const struct pipeline *p, const struct settings *s)
{
    const char *names[] = {settings_content(settings_get(&s->config, "eos_token")),
                           settings_content(settings_get(&s->special, "eos_token")), end_of_text,
                           "<|end_of_text|>", "</s>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int id = find_token(p, names[i]);
        if (id >= 0)
            return id;
    }
    return -1;
}

static void find_roles(struct pipeline *p, const struct settings *s, enum stages stages)
{
    p->eos = find_eos(p, s);
    p->pad = find_token(p, settings_role(s, "pad_token", stages == OF_QWEN2 ? end_of_text : NULL));
}

/* How an added token looks in a text in which it is found; NULL: it never is. */
static char *found_text(const struct pipeline *p, const struct added_token *t)
{
    size_t n;
    char *text = t->late ? normalizer_run(p->normalizer, t->text, strlen(t->text), &n) : NULL;
    if (text && n == 0) {
        free(text);
        return NULL;
    }
    char *found = text ? zf_format("%.*s", (int)n, text) : zf_strdup(t->text);
    free(text);
    return found;
}

/* Once all tokens are known: gives each added token its id and drops those that are none. */
static bool index_tokens(struct pipeline *p, const struct bpe_rules *rules, const char *path,
                         struct zf_error *err)
{
    int kept = 0;
    if (!bpe_index(p->bpe, rules, path, err))
        return false;
    for (int i = 0; i < p->added.n; i++) {
        struct added_token t = p->added.tokens[i];
        t.id = find_token(p, t.text);
        t.found = t.id < 0 ? NULL : found_text(p, &t);
        if (t.found)
            p->added.tokens[kept++] = t;
        else
            free(t.text);
    }
    p->added.n = kept;
    added_index(&p->added);
    return true;
}

static void put_id(struct token_template *t, int id)
{
    if (id >= 0)
        t->ids[t->n++] = id;
}

/* What add_bos_token and add_eos_token ask for. */
static bool read_bos_and_eos(struct pipeline *p, const struct settings *s, const char *usual_bos,
                             const char *usual_eos, struct zf_error *err)
{
    bool add_bos = false, add_eos = false;
    if (!settings_get_flag(s, "add_bos_token", &add_bos, err) ||
        !settings_get_flag(s, "add_eos_token", &add_eos, err))
        return false;
    int bos = add_bos ? find_token(p, settings_role(s, "bos_token", usual_bos)) : -1;
    int eos = add_eos ? find_token(p, settings_role(s, "eos_token", usual_eos)) : -1;
    put_id(&p->single, bos);
    p->single.before = p->single.between = p->single.n;
    put_id(&p->single, eos);
    p->pair = p->single;
    put_id(&p->pair, bos);
    p->pair.between = p->pair.n;
    put_id(&p->pair, eos);
    return true;
}

/* Without tokenizer.json. Other tokenizers have files of the same names. */
static bool check_vocab_class(const struct settings *s, struct zf_error *err)
{
    static const char *const known[] = {"GPT2Tokenizer", "Qwen2Tokenizer", "PreTrainedTokenizer",
                                        "TokenizersBackend"};
    const char *name = NULL;
    if (s->config.root && !json_get_string(&s->config, "tokenizer_class", &name, err))
        return false;
    if (!name)
        return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (settings_class_is(s, known[i]))
            return true;
    return json_fail(&s->config, "tokenizer_class",
                     "GPT2Tokenizer or Qwen2Tokenizer where there is no tokenizer.json; the rules "
                     "of other classes are not supported",
                     err);
}

static bool load_vocab(struct pipeline *p, const struct settings *s, const char *vocab,
                       const char *merges, struct zf_error *err)
{
    struct bpe_rules rules;
    enum stages stages = pipeline_choose_stages(s) == OF_QWEN2 ? OF_QWEN2 : OF_GPT2;
    pipeline_set_class(p, stages, s);
    if (!check_vocab_class(s, err) || !tables_read_vocab(p->bpe, vocab, err) ||
        !read_listed_tokens(p, s, err) || !read_added_file(p, s, err))
        return false;
    note_special_tokens(p, s);
    note_class_tokens(p, s, stages);
    if (!pipeline_set_stages(p, stages, s, &rules, err) || !index_tokens(p, &rules, vocab, err))
        return false;
    find_roles(p, s, stages);
    return tables_read_merges(p->bpe, merges, err) &&
           read_bos_and_eos(p, s, stages == OF_QWEN2 ? NULL : end_of_text, end_of_text, err);
}

struct pipeline *pipeline_load_vocab(const char *directory, const char *model_type,
                                     struct zf_error *err)
{
    struct settings s;
    if (!settings_load(&s, directory, model_type, err))
        return NULL;
    struct pipeline *p = pipeline_create();
    char *vocab = zf_format("%s/vocab.json", directory);
    char *merges = zf_format("%s/merges.txt", directory);
    bool ok = load_vocab(p, &s, vocab, merges, err);
    free(vocab);
    free(merges);
    settings_free(&s);
    if (ok)
        return p;
    pipeline_free(p);
    return NULL;
}

static bool read_added_tokens(struct pipeline *p, const struct json_file *f, struct zf_error *err)
{
    size_t i;
    json_t *entry;
    json_array_foreach(json_find(f, "added_tokens"), i, entry)
    {
        const json_t *id = json_object_get(entry, "id");
        if (!read_added(p, entry, json_is_integer(id) ? json_integer_value(id) : -1, f->path,
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

/* A tokenizer.json: its text, where its tables lie in that, and what lies around them as JSON. */
struct document {
    char *text;
    struct span vocab, merges;
    struct json_file rest;
};

static void document_free(struct document *d)
{
    json_free(&d->rest);
    free(d->text);
}

static bool document_load(struct document *d, const char *path, struct zf_error *err)
{
    size_t n;
    *d = (struct document){0};
    if (!file_read_text(path, &d->text, &n, err))
        return false;
    d->vocab = find_table(path, d->text, "vocab");
    d->merges = find_table(path, d->text, "merges");
    char *copy = zf_malloc(n + 1);
    memcpy(copy, d->text, n + 1);
    const struct span tables[] = {d->vocab, d->merges};
    for (int i = 0; i < 2; i++)
        if (tables[i].begin)
            blank_table(copy + (tables[i].begin - d->text), copy + (tables[i].end - d->text));
    if (json_parse(&d->rest, path, copy, n, err))
        return true;
    document_free(d);
    return false;
}

/* The tables were found by their keys alone; here they are read strictly. */
static bool read_tables(struct pipeline *p, const struct bpe_rules *rules, const struct document *d,
                        const struct settings *s, enum stages stages, struct zf_error *err)
{
    const struct json_file *f = &d->rest;
    struct json_scan vocab = {f->path, d->text, d->vocab.begin};
    struct json_scan merges = {f->path, d->text, d->merges.begin};
    if (!vocab.p || !merges.p)
        return zf_fail(err, "%s: model.%s is absent, but it is %s", f->path,
                       vocab.p ? "merges" : "vocab", vocab.p ? "a list" : "an object");
    if (!tables_scan_vocab(p->bpe, &vocab, err) || !read_added_tokens(p, f, err) ||
        !read_listed_tokens(p, s, err))
        return false;
    note_special_tokens(p, s);
    note_class_tokens(p, s, stages);
    if (!index_tokens(p, rules, f->path, err) || !pipeline_check_fallback(p, f, err))
        return false;
    find_roles(p, s, stages);
    return tables_scan_merges(p->bpe, &merges, err);
}

struct pipeline *pipeline_load_json(const char *directory, const char *model_type,
                                    struct zf_error *err)
{
    struct settings s;
    struct document d;
    struct bpe_rules rules;
    if (!settings_load(&s, directory, model_type, err))
        return NULL;
    struct pipeline *p = pipeline_create();
    char *path = zf_format("%s/tokenizer.json", directory);
    bool ok = document_load(&d, path, err);
    if (ok) {
        enum stages stages = pipeline_choose_stages(&s);
        if (stages == OF_LLAMA && strstr(d.text, "\"ByteLevel\""))
            stages = OF_FILE;
        pipeline_set_class(p, stages, &s);
        ok = pipeline_read_rules(p, &rules, &d.rest, stages == OF_FILE, err) &&
             (stages == OF_FILE || pipeline_set_stages(p, stages, &s, &rules, err)) &&
             read_tables(p, &rules, &d, &s, stages, err) &&
             pipeline_read_templates(p, &d.rest, err);
        document_free(&d);
    }
    free(path);
    settings_free(&s);
    if (ok)
        return p;
    pipeline_free(p);
    return NULL;
}

/* The tokens of a model, in the order of their ids; those that are for control, and those that a
 * person has put in, are found in a text. */
static bool add_pieces(struct pipeline *p, const char *bytes, size_t n, const char *path,
                       struct zf_error *err)
{
    struct spm_piece piece;
    bool broken;
    long id = 0;
    for (size_t at = 0; spm_next_piece(bytes, n, &at, &piece, &broken); id++) {
        if (piece.n == 0 || piece.n > MAX_PIECE_BYTES || memchr(piece.text, 0, piece.n))
            return zf_fail(err, "%s: the piece %ld has %zu bytes, but it is text of 1 to %d", path,
                           id, piece.n, MAX_PIECE_BYTES);
        bpe_add_token(p->bpe, piece.text, piece.n, id, false);
        if (piece.type != SPM_TYPE_CONTROL && piece.type != SPM_TYPE_USER_DEFINED)
            continue;
        char *text = zf_format("%.*s", (int)piece.n, piece.text);
        note_special(p, text);
        free(text);
    }
    return (id > 0 && !broken) ||
           zf_fail(err, "%s: this is not a SentencePiece model: %s", path,
                   broken ? "a field goes beyond its end" : "it has no pieces");
}

/* A piece is made of any two pieces: one merge for each way to cut it, in the order of ids and, of
 * one piece, of the first part's length. */
static bool add_merges_of_piece(struct pipeline *p, const struct spm_piece *piece, const char *path,
                                struct zf_error *err)
{
    struct zf_error why;
    for (size_t cut = 1; cut < piece->n; cut++) {
        const char *right = piece->text + cut;
        bool inside = ((unsigned char)*right & 0xC0) == 0x80; /* a character */
        if (inside || bpe_find_own(p->bpe, piece->text, cut) < 0 ||
            bpe_find_own(p->bpe, right, piece->n - cut) < 0)
            continue;
        if (!bpe_add_merge(p->bpe, piece->text, cut, right, piece->n - cut, &why))
            return zf_fail(err, "%s: %.900s", path, why.text);
    }
    return true;
}

static bool load_model(struct pipeline *p, const struct settings *s, const char *bytes, size_t n,
                       const char *path, struct zf_error *err)
{
    struct bpe_rules rules;
    struct spm_piece piece;
    bool broken;
    pipeline_set_class(p, OF_LLAMA, s);
    if (!pipeline_set_stages(p, OF_LLAMA, s, &rules, err) || !add_pieces(p, bytes, n, path, err) ||
        !read_listed_tokens(p, s, err) || !read_added_file(p, s, err))
        return false;
    note_special_tokens(p, s);
    note_class_tokens(p, s, OF_LLAMA);
    if (!index_tokens(p, &rules, path, err))
        return false;
    for (size_t at = 0; spm_next_piece(bytes, n, &at, &piece, &broken);)
        if (!add_merges_of_piece(p, &piece, path, err))
            return false;
    find_roles(p, s, OF_LLAMA);
    return read_bos_and_eos(p, s, "<s>", "</s>", err);
}

/* Whose rules a SentencePiece model has, tokenizer_config.json alone says. Where it does not,
 * Transformers puts no space in front, as neither Llama nor the library does. */
static bool choose_rules(const struct settings *s, const char *path, bool *is_llama,
                         struct zf_error *err)
{
    enum stages decided;
    const bool alone = !s->config.root && !s->model.root;
    *is_llama = settings_class_is(s, "LlamaTokenizer");
    if (alone || settings_class_is(s, "BertGenerationTokenizer"))
        return true;
    if (pipeline_type_decides(s->model_type, &decided))
        return zf_fail(err,
                       "%s: there is no tokenizer.json beside it, which a model of type %s needs",
                       path, s->model_type);
    const char *class = settings_class(s);
    return *is_llama ||
           zf_fail(err,
                   "%s: tokenizer_class in tokenizer_config.json beside it is %s, but it is "
                   "LlamaTokenizer for Llama's rules, or BertGenerationTokenizer for "
                   "SentencePiece's own",
                   path, class ? class : "absent");
}

bool pipeline_load_model(struct pipeline **p, const char *directory, const char *bytes, size_t n,
                         const char *path, struct zf_error *err)
{
    struct settings s;
    bool is_llama;
    *p = NULL;
    if (!settings_load(&s, directory, NULL, err))
        return false;
    bool ok = choose_rules(&s, path, &is_llama, err);
    if (ok && is_llama) {
        *p = pipeline_create();
        ok = load_model(*p, &s, bytes, n, path, err);
    }
    settings_free(&s);
    if (ok)
        return true;
    pipeline_free(*p);
    *p = NULL;
    return false;
}
