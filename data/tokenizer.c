#include "data/tokenizer.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"
#include "data/pipeline_classes.h"
#include "data/pipeline_load.h"
#include "data/spm.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What Transformers reads beside a SentencePiece model, or instead of one. */
static const char *const file_names[] = {
    "tokenizer.json",          "vocab.json",        "merges.txt",         "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};
#define N_FILES ((int)(sizeof file_names / sizeof *file_names))

static const char *const model_names[] = {"tokenizer.model", "spiece.model",
                                          "sentencepiece.bpe.model"};
#define N_MODEL_NAMES ((int)(sizeof model_names / sizeof *model_names))

static const char config_name[] = "tokenizer_config.json";

/* A source file's bytes, kept for tokenizer_save. text is NULL where the source has none. */
struct kept_file {
    char *text;
    size_t n;
};

struct tokenizer {
    struct pipeline *bpe; /* one of these two; the other is NULL */
    struct spm *spm;
    struct kept_file files[N_FILES];
    struct kept_file model;
    char *model_name; /* the SentencePiece model's file name */
};

static bool has_file(const char *directory, const char *name)
{
    char *path = zf_format("%s/%s", directory, name);
    bool there = file_exists(path);
    free(path);
    return there;
}

static bool keep_file(struct kept_file *f, const char *directory, const char *name,
                      struct zf_error *err)
{
    char *path = zf_format("%s/%s", directory, name);
    bool ok = file_read(path, &f->text, &f->n, err);
    free(path);
    return ok;
}

static bool keep_files(struct tokenizer *t, const char *directory, struct zf_error *err)
{
    for (int i = 0; i < N_FILES; i++)
        if (has_file(directory, file_names[i]) &&
            !keep_file(&t->files[i], directory, file_names[i], err))
            return false;
    return true;
}

/* The only *.model of a folder, as a new string; *found says how many there are. */
static char *find_any_model(const char *directory, int *found)
{
    static const char ending[] = ".model";
    char *name = NULL;
    *found = 0;
    DIR *dir = opendir(directory);
    if (!dir)
        return NULL;
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t n = strlen(entry->d_name), n_ending = sizeof ending - 1;
        if (n <= n_ending || strcmp(entry->d_name + n - n_ending, ending) != 0)
            continue;
        free(name);
        name = zf_strdup(entry->d_name);
        ++*found;
    }
    closedir(dir);
    return name;
}

/* The SentencePiece model's file name as a new string, or NULL and a sentence. */
static char *find_model(const char *directory, struct zf_error *err)
{
    int found;
    for (int i = 0; i < N_MODEL_NAMES; i++)
        if (has_file(directory, model_names[i]))
            return zf_strdup(model_names[i]);
    char *name = find_any_model(directory, &found);
    if (found == 1)
        return name;
    bool vocab = has_file(directory, "vocab.json"), merges = has_file(directory, "merges.txt");
    if (found > 1)
        zf_fail(err,
                "%s: there are %d *.model files, and none is tokenizer.model, spiece.model or "
                "sentencepiece.bpe.model",
                directory, found);
    else if (vocab != merges)
        zf_fail(err, "%s: there is no tokenizer: %s is there, but not %s", directory,
                vocab ? "vocab.json" : "merges.txt", vocab ? "merges.txt" : "vocab.json");
    else
        zf_fail(err,
                "%s: there is no tokenizer: looked for tokenizer.json, vocab.json with merges.txt, "
                "tokenizer.model, spiece.model, sentencepiece.bpe.model and *.model",
                directory);
    free(name);
    return NULL;
}

static bool load_sentencepiece(struct tokenizer *t, const char *directory, struct zf_error *err)
{
    t->model_name = find_model(directory, err);
    if (!t->model_name || !keep_file(&t->model, directory, t->model_name, err))
        return false;
    char *path = zf_format("%s/%s", directory, t->model_name);
    if (pipeline_load_model(&t->bpe, directory, t->model.text, t->model.n, path, err) && !t->bpe)
        t->spm = spm_create(t->model.text, t->model.n, path, err);
    free(path);
    return t->bpe || t->spm;
}

struct tokenizer *tokenizer_load(const char *directory, struct zf_error *err)
{
    struct tokenizer *t = zf_calloc(1, sizeof *t);
    bool ok;
    if (!file_is_directory(directory))
        ok = zf_fail(err, "%s: there is no such folder to load a tokenizer from", directory);
    else if (has_file(directory, "tokenizer.json"))
        ok = (t->bpe = pipeline_load_json(directory, NULL, err));
    else if (has_file(directory, "vocab.json") && has_file(directory, "merges.txt"))
        ok = (t->bpe = pipeline_load_vocab(directory, NULL, err));
    else
        ok = load_sentencepiece(t, directory, err);
    if (ok && keep_files(t, directory, err))
        return t;
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    pipeline_free(t->bpe);
    spm_free(t->spm);
    for (int i = 0; i < N_FILES; i++)
        free(t->files[i].text);
    free(t->model.text);
    free(t->model_name);
    free(t);
}

size_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int *ids,
                        size_t capacity)
{
    return t->bpe ? pipeline_encode(t->bpe, text, n, ids, capacity)
                  : spm_encode(t->spm, text, n, ids, capacity);
}

char *tokenizer_decode(const struct tokenizer *t, const int *ids, size_t n, size_t *bytes)
{
    return t->bpe ? pipeline_decode(t->bpe, ids, n, bytes) : spm_decode(t->spm, ids, n, bytes);
}

int tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->bpe ? bpe_n_tokens(t->bpe->bpe) : spm_vocab_size(t->spm);
}

int tokenizer_eos(const struct tokenizer *t)
{
    return t->bpe ? t->bpe->eos : spm_special_id(t->spm, SPM_END);
}

int tokenizer_pad(const struct tokenizer *t)
{
    return t->bpe ? t->bpe->pad : spm_special_id(t->spm, SPM_PAD);
}

bool tokenizer_is_special(const struct tokenizer *t, int id)
{
    bool found = false;
    if (t->spm)
        for (enum spm_special i = SPM_UNKNOWN; i <= SPM_PAD; i++)
            found |= id >= 0 && spm_special_id(t->spm, i) == id;
    else
        for (int i = 0; i < t->bpe->added.n; i++)
            found |= t->bpe->added.tokens[i].id == id;
    return found;
}

struct token_template tokenizer_template(const struct tokenizer *t, bool pair)
{
    if (!t->bpe)
        return (struct token_template){.n = 0};
    return pair ? t->bpe->pair : t->bpe->single;
}

const char *tokenizer_kind(const struct tokenizer *t)
{
    return t->bpe ? "BPE" : "SentencePiece";
}

const char *tokenizer_file(const struct tokenizer *t, const char *name, size_t *bytes)
{
    for (int i = 0; i < N_FILES; i++)
        if (strcmp(file_names[i], name) == 0) {
            *bytes = t->files[i].n;
            return t->files[i].text;
        }
    return NULL;
}

/* Whether the pipeline that the type of the model decides on is this one. */
static bool is_as_decided(const struct tokenizer *t, const char *directory, const char *model_type,
                          enum stages stages, struct zf_error *why)
{
    size_t n;
    const bool file = tokenizer_file(t, "tokenizer.json", &n);
    if (t->bpe && strcmp(t->bpe->class, pipeline_class(stages)) == 0)
        return true;
    if (t->spm || (!file && (stages == OF_FILE || !tokenizer_file(t, "vocab.json", &n))))
        return zf_fail(why, "there is no tokenizer.json");
    struct pipeline *made = file ? pipeline_load_json(directory, model_type, why)
                                 : pipeline_load_vocab(directory, model_type, why);
    if (!made)
        return false;
    const char *other = pipeline_difference(t->bpe, made);
    pipeline_free(made);
    return !other || zf_fail(why, "its %s differs", other);
}

bool tokenizer_check_type(const struct tokenizer *t, const char *directory, const char *model_type,
                          struct zf_error *err)
{
    static const char *const of_file = "tokenizer.json";
    enum stages stages;
    struct zf_error why;
    if (!pipeline_type_decides(model_type, &stages) ||
        is_as_decided(t, directory, model_type, stages, &why))
        return true;
    const char *own = t->spm ? "SentencePiece" : t->bpe->class;
    return zf_fail(
        err,
        "the tokenizer of %s has the pipeline of %s, but with a model of type %s Transformers "
        "makes that of %s, whatever else the folder says (%.300s), and would not read the same "
        "ids from what is written: choose a tokenizer of that kind, or a model of another type, "
        "such as llama",
        directory, strcmp(own, pipeline_class(OF_FILE)) == 0 ? of_file : own, model_type,
        stages == OF_FILE ? of_file : pipeline_class(stages), why.text);
}

static void set_token(const struct tokenizer *t, json_t *object, const char *key, int id)
{
    if (t->spm) {
        json_object_set_new(object, key, json_string(spm_token(t->spm, id)));
        return;
    }
    char *text = zf_malloc(bpe_token_text(t->bpe->bpe, id, NULL));
    size_t n = bpe_token_text(t->bpe->bpe, id, text);
    json_object_set_new(object, key, json_stringn(text, n));
    free(text);
}

/* GPT2Tokenizer's tokens with a role are all one. */
static void describe_bpe(const struct tokenizer *t, json_t *config)
{
    const struct pipeline *p = t->bpe;
    json_object_set_new(config, "tokenizer_class", json_string(p->class));
    json_object_set_new(config, "add_prefix_space", json_boolean(p->add_prefix_space));
    if (p->eos < 0)
        return;
    set_token(t, config, "eos_token", p->eos);
    if (strcmp(p->class, "GPT2Tokenizer") == 0) {
        set_token(t, config, "bos_token", p->eos);
        set_token(t, config, "unk_token", p->eos);
    }
}

/* BertGenerationTokenizer is the class of Transformers that hands a text to the SentencePiece
 * library as it is, so that ids are the library's; it calls its file spiece.model. */
static void describe_sentencepiece(const struct tokenizer *t, json_t *config)
{
    static const struct {
        const char *key;
        enum spm_special special;
    } roles[] = {{"unk_token", SPM_UNKNOWN},
                 {"bos_token", SPM_BEGIN},
                 {"eos_token", SPM_END},
                 {"pad_token", SPM_PAD},
                 {"sep_token", SPM_END}};
    json_object_set_new(config, "tokenizer_class", json_string("BertGenerationTokenizer"));
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        int id = spm_special_id(t->spm, roles[i].special);
        json_object_set_new(config, roles[i].key,
                            id < 0 ? json_null() : json_string(spm_token(t->spm, id)));
    }
}

static bool write_config(const struct tokenizer *t, const char *path, int pad, struct zf_error *err)
{
    json_t *config = json_object();
    if (t->bpe)
        describe_bpe(t, config);
    else
        describe_sentencepiece(t, config);
    if (tokenizer_pad(t) < 0 && pad >= 0)
        set_token(t, config, "pad_token", pad);
    bool ok = json_write(path, config, 17, err);
    json_decref(config);
    return ok;
}

/* The source's own, but for the class and the padding token. */
static bool write_changed_config(const struct tokenizer *t, const struct kept_file *f,
                                 const char *path, int pad, struct zf_error *err)
{
    struct json_file config;
    size_t mark = f->n >= 3 && memcmp(f->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0, n = f->n - mark;
    char *text = zf_malloc(n + 1);
    memcpy(text, f->text + mark, n + 1);
    if (!json_parse(&config, path, text, n, err))
        return false;
    if (t->bpe->needs_class)
        json_object_set_new(config.root, "tokenizer_class", json_string(t->bpe->class));
    if (t->bpe->pad < 0 && pad >= 0)
        set_token(t, config.root, "pad_token", pad);
    bool ok = json_write(path, config.root, 17, err);
    json_free(&config);
    return ok;
}

/* Writes one of file_names, or sees to it that none is there. */
static bool save_file(const struct tokenizer *t, int i, const char *directory, int pad,
                      struct zf_error *err)
{
    char *path = zf_format("%s/%s", directory, file_names[i]);
    bool ok = true, is_config = strcmp(file_names[i], config_name) == 0;
    bool changes = t->bpe && (t->bpe->needs_class || (t->bpe->pad < 0 && pad >= 0));
    if (t->files[i].text && is_config && changes)
        ok = write_changed_config(t, &t->files[i], path, pad, err);
    else if (t->files[i].text)
        ok = file_write(path, t->files[i].text, t->files[i].n, err);
    else if (is_config)
        ok = write_config(t, path, pad, err);
    else if (unlink(path) != 0 && errno != ENOENT)
        ok = zf_fail(err, "%s: another tokenizer's file cannot be removed: %s", path,
                     strerror(errno));
    free(path);
    return ok;
}

static bool has_config(const struct tokenizer *t)
{
    for (int i = 0; i < N_FILES; i++)
        if (strcmp(file_names[i], config_name) == 0)
            return t->files[i].text != NULL;
    return false;
}

bool tokenizer_save(const struct tokenizer *t, const char *directory, int pad, struct zf_error *err)
{
    if (!file_make_directory(directory, err))
        return false;
    for (int i = 0; i < N_FILES; i++)
        if (!save_file(t, i, directory, pad, err))
            return false;
    if (!t->model.text)
        return true;
    const bool renamed = t->spm && !has_config(t);
    char *path = zf_format("%s/%s", directory, renamed ? "spiece.model" : t->model_name);
    bool ok = file_write(path, t->model.text, t->model.n, err);
    free(path);
    return ok;
}
