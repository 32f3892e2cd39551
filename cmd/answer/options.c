#include "cmd/answer/options.h"

#include "cmd/manual/manual.h"
#include "data/text.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum kind { HEADING, TEXT, CHOICE, WHOLE, REAL, FLAG, HELP, VERSION };
enum model { ANY, CLASSIFIER, LANGUAGE_MODEL };

static const struct row {
    enum kind kind;
    enum model model;   /* the one that it is for */
    const char *name;   /* without its dashes; of a heading all that it has */
    const char *value;  /* what stands for it in help; the words of a choice */
    size_t offset;      /* of the field in struct answer_options */
    double least, most; /* of a number */
    bool samples;       /* asks for do_sample */
    const char *help;
} rows[] = {
#define FIELD(name) offsetof(struct answer_options, name)
    {.name = "The program"},
    {.name = "help", .kind = HELP, .help = "show this"},
    {.name = "version",
     .kind = VERSION,
     .help = "show the version and commit, and the CUDA, MPI and BLAS that it has"},
    {.name = "max_seq_length",
     .kind = WHOLE,
     .value = "N",
     .offset = FIELD(max_seq_length),
     .least = 1,
     .most = 1 << 20,
     .help = "a classifier's longer texts are cut (512); a prompt and its answer have no more "
             "tokens (4096); never more than the model's positions"},
    {.name = "device",
     .kind = CHOICE,
     .value = "auto|cpu|cuda",
     .offset = FIELD(device),
     .help = "what computes; auto: for classifiers a GPU if there is one (auto)"},
    {.name = "top_k",
     .kind = WHOLE,
     .value = "N",
     .offset = FIELD(top_k),
     .least = 1,
     .most = INT_MAX,
     .help = "of a classifier: tell so many labels, most probable first (1); of a language model: "
             "draw from so many tokens (all)"},
    {.name = "Classifiers"},
    {.name = "file",
     .kind = TEXT,
     .model = CLASSIFIER,
     .value = "FILE",
     .offset = FIELD(file),
     .help = ".csv, .tsv, .jsonl or .json; of others each line is a text"},
    {.name = "text_column",
     .kind = TEXT,
     .model = CLASSIFIER,
     .value = "NAME",
     .offset = FIELD(columns.text),
     .help = "of such a file; default: as zf-train finds it"},
    {.name = "text_pair_column",
     .kind = TEXT,
     .model = CLASSIFIER,
     .value = "NAME",
     .offset = FIELD(columns.pair),
     .help = "of a second text"},
    {.name = "label_column",
     .kind = TEXT,
     .model = CLASSIFIER,
     .value = "NAME",
     .offset = FIELD(columns.label),
     .help = "is no text (label)"},
    {.name = "pair",
     .kind = TEXT,
     .model = CLASSIFIER,
     .value = "TEXT",
     .offset = FIELD(pair),
     .help = "the second text of each TEXT"},
    {.name = "per_device_eval_batch_size",
     .kind = WHOLE,
     .model = CLASSIFIER,
     .value = "N",
     .offset = FIELD(batch_size),
     .least = 1,
     .most = 1024,
     .help = "rows of a file at a time (8)"},
    {.name = "Language models"},
    {.name = "chat",
     .kind = FLAG,
     .model = LANGUAGE_MODEL,
     .offset = FIELD(chats),
     .help = "TEXTs are a user's turns, in the form of the model's chat template"},
    {.name = "system",
     .kind = TEXT,
     .model = LANGUAGE_MODEL,
     .value = "TEXT",
     .offset = FIELD(system),
     .help = "the conversation's system message"},
    {.name = "max_new_tokens",
     .kind = WHOLE,
     .model = LANGUAGE_MODEL,
     .value = "N",
     .offset = FIELD(max_new_tokens),
     .least = 1,
     .most = 1 << 20,
     .help = "longest answer (256)"},
    {.name = "do_sample",
     .kind = FLAG,
     .model = LANGUAGE_MODEL,
     .offset = FIELD(do_sample),
     .help = "draw tokens; else, and with --temperature 0, the most likely ones are taken. "
             "--temperature, --top_p and --top_k ask for it too"},
    {.name = "temperature",
     .kind = REAL,
     .model = LANGUAGE_MODEL,
     .value = "X",
     .offset = FIELD(temperature),
     .most = 1000,
     .samples = true,
     .help = "above 1 more even, below 1 less (1)"},
    {.name = "top_p",
     .kind = REAL,
     .model = LANGUAGE_MODEL,
     .value = "X",
     .offset = FIELD(top_p),
     .least = 1e-6,
     .most = 1,
     .samples = true,
     .help = "draw from the fewest tokens that together are so probable (1)"},
    {.name = "seed",
     .kind = WHOLE,
     .model = LANGUAGE_MODEL,
     .value = "N",
     .offset = FIELD(seed),
     .most = INT_MAX,
     .help = "of the draws (42)"},
#undef FIELD
};
#define N_ROWS ((int)(sizeof rows / sizeof *rows))
static_assert(N_ROWS <= 64, "answer_options.given has a bit for each");

static bool read_whole(const struct row *row, const char *text, int *value, struct zf_error *err)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (end == text || *end || errno || number < (long)row->least || number > (long)row->most)
        return zf_fail_usage(err, "--%s is \"%.60s\", but it is a whole number from %.0f to %.0f",
                             row->name, text, row->least, row->most);
    *value = (int)number;
    return true;
}

static bool read_real(const struct row *row, const char *text, double *value, struct zf_error *err)
{
    char *end;
    *value = strtod(text, &end);
    return (end != text && !*end && *value >= row->least && *value <= row->most) ||
           zf_fail_usage(err, "--%s is \"%.60s\", but it is a number from %g to %g", row->name,
                         text, row->least, row->most);
}

static bool is_choice(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (; words; words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL)
        if (strncmp(words, text, n) == 0 && (words[n] == '|' || !words[n]))
            return true;
    return false;
}

static bool set_option(struct answer_options *o, const struct row *row, const char *text,
                       struct zf_error *err)
{
    void *field = (char *)o + row->offset;
    o->given |= UINT64_C(1) << (row - rows);
    o->do_sample = o->do_sample || row->samples;
    if (row->kind == FLAG)
        return *(bool *)field = true;
    if (row->kind == WHOLE)
        return read_whole(row, text, field, err);
    if (row->kind == REAL)
        return read_real(row, text, field, err);
    if (row->kind == CHOICE && !is_choice(row->value, text))
        return zf_fail_usage(err, "--%s is \"%.60s\", but it is one of %s", row->name, text,
                             row->value);
    *(const char **)field = text;
    return true;
}

/* The rows as getopt has them; an option's number is 256 and its row's. */
static void fill_table(struct option table[N_ROWS + 1])
{
    int n = 0;
    memset(table, 0, (N_ROWS + 1) * sizeof *table);
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].kind != HEADING)
            table[n++] = (struct option){
                rows[i].name, rows[i].value ? required_argument : no_argument, NULL, 256 + i};
}

static bool check_word(const char *name, const char *text, struct zf_error *err)
{
    return !text || text_check(name, 1, text, strlen(text), err);
}

/* The command line is as much a text as a file is. */
static bool check_words(const struct answer_options *o, struct zf_error *err)
{
    bool ok = check_word("--pair", o->pair, err) && check_word("--system", o->system, err);
    for (int i = 0; ok && i < o->n_texts; i++)
        ok = check_word("TEXT", o->texts[i], err);
    return ok;
}

/* What is given beside nothing that it belongs to would be passed over. */
static bool check_texts(const struct answer_options *o, struct zf_error *err)
{
    const struct own_columns *c = &o->columns;
    if (o->n_texts && o->file)
        return zf_fail_usage(err, "there are both --file and a text, \"%.60s\": give one of them",
                             o->texts[0]);
    if (o->pair && !o->n_texts)
        return zf_fail_usage(err, "--pair is given, but no TEXT whose second text it would be");
    if (!check_words(o, err))
        return false;
    return !(c->text || c->pair || c->label) || (o->file && table_is(o->file)) ||
           zf_fail_usage(err,
                         "--%s is given, but no --file with columns: .csv, .tsv, .jsonl or "
                         ".json",
                         c->text   ? "text_column"
                         : c->pair ? "text_pair_column"
                                   : "label_column");
}

bool answer_options_read(struct answer_options *o, int argc, char **argv,
                         enum answer_action *action, struct zf_error *err)
{
    struct option table[N_ROWS + 1];
    fill_table(table);
    *o = (struct answer_options){
        .batch_size = 8, .device = "auto", .temperature = 1, .top_p = 1, .seed = 42};
    *action = ANSWER;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":", table, NULL)) != -1;) {
        if (option == ':')
            return zf_fail_usage(err, "%s is the last word, but it takes a value",
                                 argv[optind - 1]);
        if (option == '?')
            return zf_fail_usage(err, "there is no option %s (see zf-run --help)",
                                 argv[optind - 1]);
        const struct row *row = &rows[option - 256];
        if (row->kind == HELP || row->kind == VERSION) {
            *action = row->kind == HELP ? ANSWER_HELP : ANSWER_VERSION;
            return true;
        }
        if (!set_option(o, row, optarg, err))
            return false;
    }
    if (optind == argc)
        return zf_fail_usage(err, "no model is given: zf-run MODEL [TEXT ...] (see zf-run --help)");
    o->model = argv[optind++];
    o->texts = argv + optind;
    o->n_texts = argc - optind;
    return check_texts(o, err);
}

bool answer_options_settle(struct answer_options *o, bool lm, struct zf_error *err)
{
    const enum model other = lm ? CLASSIFIER : LANGUAGE_MODEL;
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].model == other && (o->given >> i & 1))
            return zf_fail_usage(err, "--%s is given, but %s is a %s", rows[i].name, o->model,
                                 lm ? "language model" : "classifier");
    if (lm && o->system && !o->chats)
        return zf_fail_usage(err, "--system is given, but it belongs to --chat");
    if (o->max_new_tokens == 0)
        o->max_new_tokens = 256;
    o->do_sample = (o->do_sample || o->top_k > 0) && o->temperature > 0;
    return true;
}

void answer_add_options(struct manual *m)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (rows[i].kind == HEADING) {
            manual_begin_options(m, rows[i].name, NULL);
            continue;
        }
        char name[64];
        snprintf(name, sizeof name, "--%s", rows[i].name);
        manual_add_option(m, name, rows[i].value, rows[i].help);
    }
}
