/* zf-run: answers with a trained model: classifies sentences. One process, no MPI. */
#include "cmd/answer/answer.h"
#include "cmd/openmp_spin.h"
#include "model/device/device.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: zf-run MODEL [options] [TEXT ...]\n"
    "\n"
    "MODEL is a folder that zf-train or Transformers wrote. A classifier answers each TEXT, each "
    "row\n"
    "of --file, or without either each line of standard input, with a line: its label and how\n"
    "probable that is, with a tab between; a model of scores with the score.\n"
    "\n"
    "  --file FILE               .csv, .tsv, .jsonl or .json; of others each line is a text\n"
    "  --text_column NAME        of such a file; default: as zf-train finds it\n"
    "  --text_pair_column NAME   of a second text\n"
    "  --label_column NAME       is no text (label)\n"
    "  --pair TEXT               the second text of each TEXT\n"
    "  --top_k N                 tell so many labels, most probable first (1)\n"
    "  --max_seq_length N        longer texts are cut (512, or the model's positions)\n"
    "  --per_device_eval_batch_size N  rows of a file at a time (8)\n"
    "  --device NAME             cpu, cuda, or auto, a GPU if there is one (auto)\n"
    "  --help, --version\n";

enum {
    FILE_OPTION = 256,
    TEXT_COLUMN,
    PAIR_COLUMN,
    LABEL_COLUMN,
    PAIR,
    TOP_K,
    LENGTH,
    BATCH,
    DEVICE,
    HELP,
    VERSION
};

static const struct option option_table[] = {
    {"file", required_argument, NULL, FILE_OPTION},
    {"text_column", required_argument, NULL, TEXT_COLUMN},
    {"text_pair_column", required_argument, NULL, PAIR_COLUMN},
    {"label_column", required_argument, NULL, LABEL_COLUMN},
    {"pair", required_argument, NULL, PAIR},
    {"top_k", required_argument, NULL, TOP_K},
    {"max_seq_length", required_argument, NULL, LENGTH},
    {"per_device_eval_batch_size", required_argument, NULL, BATCH},
    {"device", required_argument, NULL, DEVICE},
    {"help", no_argument, NULL, HELP},
    {"version", no_argument, NULL, VERSION},
    {0},
};

static bool read_whole(const char *name, const char *text, int most, int *value,
                       struct zf_error *err)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (end == text || *end || errno || number < 1 || number > most)
        return zf_fail(err, "--%s is \"%.60s\", but it is a whole number from 1 to %d", name, text,
                       most);
    *value = (int)number;
    return true;
}

static bool set_option(struct answer_options *o, int option, const char *name, char *value,
                       struct zf_error *err)
{
    switch (option) {
    case FILE_OPTION:
        o->file = value;
        return true;
    case TEXT_COLUMN:
        o->columns.text = value;
        return true;
    case PAIR_COLUMN:
        o->columns.pair = value;
        return true;
    case LABEL_COLUMN:
        o->columns.label = value;
        return true;
    case PAIR:
        o->pair = value;
        return true;
    case TOP_K:
        return read_whole(name, value, INT_MAX, &o->top_k, err);
    case LENGTH:
        return read_whole(name, value, 1 << 20, &o->max_seq_length, err);
    case BATCH:
        return read_whole(name, value, 1024, &o->batch_size, err);
    case DEVICE:
        o->device = value;
        return strcmp(value, "auto") == 0 || strcmp(value, "cpu") == 0 ||
               strcmp(value, "cuda") == 0 ||
               zf_fail(err, "--device is \"%.60s\", but it is auto, cpu or cuda", value);
    }
    return false;
}

/* *told: --help or --version was all. */
static bool read_options(struct answer_options *o, int argc, char **argv, bool *told,
                         struct zf_error *err)
{
    int at = 0;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":", option_table, &at)) != -1;) {
        if (option == HELP || option == VERSION) {
            if (option == HELP)
                fputs(usage, stdout);
            else
                printf("zf-run " ZF_VERSION " (matrix products on CPUs: %s)\n",
                       device_cpu_products());
            return *told = true;
        }
        if (option == ':')
            return zf_fail(err, "%s is the last word, but it takes a value", argv[optind - 1]);
        if (option == '?')
            return zf_fail(err, "there is no option %s (see zf-run --help)", argv[optind - 1]);
        if (!set_option(o, option, option_table[at].name, optarg, err))
            return false;
    }
    if (optind == argc)
        return zf_fail(err, "no model is given: zf-run MODEL [TEXT ...] (see zf-run --help)");
    o->model = argv[optind++];
    o->texts = argv + optind;
    o->n_texts = argc - optind;
    if (o->n_texts && o->file)
        return zf_fail(err, "there are both --file and a text, \"%.60s\": give one of them",
                       o->texts[0]);
    return true;
}

static bool answer(const struct answer_options *options, struct zf_error *err)
{
    struct answerer a;
    bool ok = answerer_open(&a, options, err);
    if (ok && a.config.head == GPT_HEAD_LM)
        ok = zf_fail(err, "%s is a language model, but a classifier is needed", options->model);
    ok = ok && answer_classify(&a, options, err);
    answerer_close(&a);
    return ok;
}

int main(int argc, char **argv)
{
    openmp_spin_briefly(argv);
    struct zf_error err = {""};
    struct answer_options options = {
        .top_k = 1, .max_seq_length = 512, .batch_size = 8, .device = "auto"};
    bool told = false;
    bool ok = read_options(&options, argc, argv, &told, &err) && (told || answer(&options, &err));
    if (ok && (fflush(stdout) != 0 || ferror(stdout)))
        ok = zf_fail(&err, "standard output cannot be written");
    if (!ok)
        fprintf(stderr, "zf-run: %s\n", err.text);
    return ok ? 0 : 1;
}
