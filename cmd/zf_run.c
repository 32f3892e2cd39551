/* zf-run: answers with a trained model: classifies sentences, completes texts, talks. One process,
 * no MPI. */
#include "cmd/answer/answer.h"
#include "cmd/live.h"
#include "cmd/openmp_spin.h"
#include "data/terminal.h"
#include "model/device/device.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: zf-run MODEL [options] [TEXT ...]\n"
    "\n"
    "MODEL is a folder that zf-train or Transformers wrote.\n"
    "\n"
    "A classifier answers each TEXT, each row of --file, or without either each line of standard\n"
    "input, with a line: its label and how probable that is, with a tab between; a model of "
    "scores\n"
    "with the score. A language model goes on with each TEXT, or with standard input; with --chat\n"
    "it answers each TEXT, or each line, in one conversation.\n"
    "\n"
    "Both:\n"
    "  --max_seq_length N        a classifier's longer texts are cut (512); a prompt and its "
    "answer\n"
    "                            have no more tokens (4096); never more than the model's "
    "positions\n"
    "  --device NAME             cpu, cuda, or auto, for classifiers a GPU if there is one (auto)\n"
    "\n"
    "Classifiers:\n"
    "  --file FILE               .csv, .tsv, .jsonl or .json; of others each line is a text\n"
    "  --text_column NAME        of such a file; default: as zf-train finds it\n"
    "  --text_pair_column NAME   of a second text\n"
    "  --label_column NAME       is no text (label)\n"
    "  --pair TEXT               the second text of each TEXT\n"
    "  --top_k N                 tell so many labels, most probable first (1)\n"
    "  --per_device_eval_batch_size N  rows of a file at a time (8)\n"
    "\n"
    "Language models:\n"
    "  --chat                    TEXTs are a user's turns, in the form of the model's chat "
    "template\n"
    "  --system TEXT             the conversation's system message\n"
    "  --max_new_tokens N        longest answer (256)\n"
    "  --do_sample               draw tokens; else, and with --temperature 0, the most likely "
    "ones\n"
    "                            are taken. Each of the next three asks for it too\n"
    "  --temperature X           above 1 more even, below 1 less (1)\n"
    "  --top_p X                 draw from the fewest tokens that together are so probable (1)\n"
    "  --top_k N                 draw from so many tokens (all)\n"
    "  --seed N                  of the draws (42)\n"
    "\n"
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
    CHAT,
    SYSTEM,
    NEW_TOKENS,
    SAMPLE,
    TEMPERATURE,
    TOP_P,
    SEED,
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
    {"chat", no_argument, NULL, CHAT},
    {"system", required_argument, NULL, SYSTEM},
    {"max_new_tokens", required_argument, NULL, NEW_TOKENS},
    {"do_sample", no_argument, NULL, SAMPLE},
    {"temperature", required_argument, NULL, TEMPERATURE},
    {"top_p", required_argument, NULL, TOP_P},
    {"seed", required_argument, NULL, SEED},
    {"help", no_argument, NULL, HELP},
    {"version", no_argument, NULL, VERSION},
    {0},
};

static bool read_whole(const char *name, const char *text, int least, int most, int *value,
                       struct zf_error *err)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (end == text || *end || errno || number < least || number > most)
        return zf_fail(err, "--%s is \"%.60s\", but it is a whole number from %d to %d", name, text,
                       least, most);
    *value = (int)number;
    return true;
}

static bool read_number(const char *name, const char *text, double least, double most,
                        double *value, struct zf_error *err)
{
    char *end;
    *value = strtod(text, &end);
    return (end != text && !*end && *value >= least && *value <= most) ||
           zf_fail(err, "--%s is \"%.60s\", but it is a number from %g to %g", name, text, least,
                   most);
}

/* Options that say how tokens are drawn ask for it. */
static bool set_sampling(struct answer_options *o, int option, const char *name, const char *value,
                         struct zf_error *err)
{
    o->do_sample = true;
    if (option == TEMPERATURE)
        return read_number(name, value, 0, 1000, &o->temperature, err);
    return option != TOP_P || read_number(name, value, 1e-6, 1, &o->top_p, err);
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
    case LENGTH:
        return read_whole(name, value, 1, 1 << 20, &o->max_seq_length, err);
    case BATCH:
        return read_whole(name, value, 1, 1024, &o->batch_size, err);
    case CHAT:
        return o->chats = true;
    case SYSTEM:
        o->system = value;
        return true;
    case NEW_TOKENS:
        return read_whole(name, value, 1, 1 << 20, &o->max_new_tokens, err);
    case SEED:
        return read_whole(name, value, 0, INT_MAX, &o->seed, err);
    case SAMPLE:
    case TEMPERATURE:
    case TOP_P:
        return set_sampling(o, option, name, value, err);
    case TOP_K:
        return read_whole(name, value, 1, INT_MAX, &o->top_k, err);
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

/* An option of the other kind of model would be passed over in silence. */
static bool check_kind(const struct answer_options *o, bool lm, struct zf_error *err)
{
    const char *wrong = NULL;
    if (lm)
        wrong = o->file            ? "--file"
                : o->pair          ? "--pair"
                : o->columns.text  ? "--text_column"
                : o->columns.pair  ? "--text_pair_column"
                : o->columns.label ? "--label_column"
                                   : NULL;
    else
        wrong = o->chats            ? "--chat"
                : o->system         ? "--system"
                : o->max_new_tokens ? "--max_new_tokens"
                : o->do_sample      ? "--do_sample, --temperature or --top_p"
                                    : NULL;
    if (wrong)
        return zf_fail(err, "%s is given, but %s is a %s", wrong, o->model,
                       lm ? "language model" : "classifier");
    return !lm || !o->system || o->chats ||
           zf_fail(err, "--system is given, but it belongs to --chat");
}

static bool answer(struct answer_options *options, struct zf_error *err)
{
    struct answerer a;
    live_begin(terminal_is_at(STDERR_FILENO));
    live_stage("loading the model", 0);
    bool ok = answerer_open(&a, options, err);
    live_end();
    const bool lm = ok && a.config.head == GPT_HEAD_LM;
    ok = ok && check_kind(options, lm, err);
    if (options->max_new_tokens == 0)
        options->max_new_tokens = 256;
    options->do_sample = (options->do_sample || options->top_k > 0) && options->temperature > 0;
    ok = ok && (lm ? answer_generate(&a, options, err) : answer_classify(&a, options, err));
    answerer_close(&a);
    return ok;
}

int main(int argc, char **argv)
{
    openmp_spin_briefly(argv);
    struct zf_error err = {""};
    struct answer_options options = {
        .batch_size = 8, .device = "auto", .temperature = 1, .top_p = 1, .seed = 42};
    bool told = false;
    bool ok = read_options(&options, argc, argv, &told, &err) && (told || answer(&options, &err));
    if (ok && (fflush(stdout) != 0 || ferror(stdout)))
        ok = zf_fail(&err, "standard output cannot be written");
    if (!ok)
        fprintf(stderr, "zf-run: %s\n", err.text);
    return ok ? 0 : 1;
}
