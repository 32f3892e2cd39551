/* cmd/config: what a configuration amounts to, what is refused with which sentence, and that a
 * written configuration gives the same run. */
#include "tests/testing.h"

#include "cmd/config/config.h"
#include "cmd/config/engine_settings.h"
#include "cmd/config/table.h"
#include "cmd/manual/manual.h"
#include "data/alloc.h"
#include "data/file.h"

#define FIXTURES ZF_TESTS_DIR "/fixtures/config/"
#define CONFIGS  ZF_TESTS_DIR "/../configs/"
/* A run that lacks nothing. */
#define COMPLETE "--task_name sst2 --model_name_or_path m --data_dir d --output_dir o "
#define ZENFLOW(keys)                                                                              \
    "{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"},\n"       \
    "\"zenflow\": {" keys "}}}"

static char path[] = "/tmp/zf-test-config-XXXXXX";
static struct config c;
static struct zf_error err;
static char warnings[4096]; /* of the last parse */

/* Parses a command line of so many words, the program's own among them. */
static bool parse_words(int argc, char **argv, int n_ranks)
{
    FILE *captured = tmpfile();
    int old = dup(STDERR_FILENO);
    dup2(fileno(captured), STDERR_FILENO);
    bool ok = config_parse(&c, argc, argv, n_ranks, &err);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(captured);
    warnings[fread(warnings, 1, sizeof warnings - 1, captured)] = 0;
    fclose(captured);
    return ok;
}

/* Parses options, which are divided by spaces, after --config `file` unless it is NULL. */
static bool parse(const char *file, const char *options, int n_ranks)
{
    char *line = zf_strdup(options), *argv[64] = {(char *)"zf-train"}, *rest = line;
    int argc = 1;
    if (file) {
        argv[argc++] = (char *)"--config";
        argv[argc++] = (char *)file;
    }
    for (char *word; (word = strtok_r(rest, " ", &rest)) && argc < 64;)
        argv[argc++] = word;
    bool ok = parse_words(argc, argv, n_ranks);
    free(line);
    return ok;
}

static void write_text(const char *text)
{
    assert_works(file_write(path, text, strlen(text), &err), err);
}

static bool parse_text(const char *text, const char *options, int n_ranks)
{
    write_text(text);
    return parse(path, options, n_ranks);
}

static int count(const char *text, const char *piece)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, piece)); at++)
        n++;
    return n;
}

static void defaults(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE, 1), err);
    assert_int_equal(c.action, CONFIG_RUN);
    assert_true(c.do_train && c.do_eval && !c.do_predict && !c.bf16 && !c.zenflow.enabled);
    assert_true(!c.gradient_checkpointing && c.device == CONFIG_DEVICE_AUTO);
    assert_true(c.learning_rate == 5e-5 && c.adam_beta1 == 0.9 && c.adam_beta2 == 0.999);
    assert_true(c.adam_epsilon == 1e-8 && c.weight_decay == 0 && c.max_grad_norm == 1);
    assert_true(c.num_train_epochs == 3 && c.max_steps == -1 && c.seed == 42);
    assert_int_equal(c.train_batch_size, 8);
    assert_int_equal(c.per_device_eval_batch_size, 8);
    assert_int_equal(c.max_seq_length, 128);
    assert_int_equal(c.logging_steps, 500);
    assert_int_equal(c.save_strategy, STRATEGY_STEPS);
    assert_int_equal(c.save_steps, 500);
    assert_int_equal(c.eval_strategy, STRATEGY_NO);
    assert_int_equal(c.lr_scheduler_type, LR_LINEAR);
    assert_int_equal(c.scheduler.type, DS_SCHEDULER_NONE);
    assert_int_equal(c.optimizer_type, OPTIMIZER_ADAMW);
    assert_true(c.adam_w_mode && c.max_train_samples == CONFIG_AUTO && c.attn_pdrop == -1);
    assert_null(c.train_file);
    assert_string_equal(c.tokenizer_name, "m");
    assert_string_equal(c.task->title, "SST-2");
    config_free(&c);
}

static void reads_deepspeed(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json", "", 2), err);
    assert_int_equal(c.train_batch_size, 64);
    assert_int_equal(c.per_device_train_batch_size, 8);
    assert_int_equal(c.gradient_accumulation_steps, 4);
    assert_int_equal(c.optimizer_type, OPTIMIZER_ADAM);
    assert_true(!c.adam_w_mode && c.learning_rate == 0.00015 && c.adam_beta1 == 0.8);
    assert_true(c.adam_beta2 == 0.95 && c.adam_epsilon == 1e-7 && c.weight_decay == 3e-7);
    assert_true(c.max_grad_norm == 0.5 && c.logging_steps == 20);
    assert_int_equal(c.scheduler.type, DS_WARMUP_LR);
    assert_int_equal(c.scheduler.warmup_type, WARMUP_LOG);
    assert_true(c.scheduler.warmup_min_lr == 1e-6 && c.scheduler.warmup_max_lr == 0.0002);
    assert_int_equal(c.scheduler.warmup_num_steps, 100);
    assert_true(c.csv_monitor.enabled);
    assert_string_equal(c.csv_monitor.output_path, "logs");
    assert_string_equal(c.csv_monitor.job_name, "run");
    assert_true(c.zero_stage == 2 && c.offload_optimizer == OFFLOAD_CPU);
    assert_string_equal(c.task_name, "stsb");
    assert_true(c.max_steps == 120 && c.attn_pdrop == 0.25);
    assert_int_equal(count(warnings, "has no meaning here"), 3);
    assert_non_null(
        strstr(warnings, "wall_clock_breakdown has no meaning here: trainer_log.jsonl"));
    assert_non_null(strstr(warnings, "deepspeed.json:12: optimizer.params.torch_adam has no"));
    config_free(&c);
}

static void reads_how_the_link_is_crossed(void **state)
{
    (void)state;
    const char *without = "{\"zero_optimization\": {\"stage\": 2,\n"
                          "\"offload_optimizer\": {\"device\": \"cpu\", \"zero_copy\": true}}}";
    assert_works(parse_text(without, COMPLETE, 1), err);
    assert_true(engine_settings(&c, NULL).zero_copy);
    config_free(&c);
}

static void reads_zenflow(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json", "", 1), err);
    const struct zenflow_config *z = &c.zenflow;
    assert_true(z->enabled && z->topk_ratio == 0.05 && z->overlap_step && z->offload);
    assert_int_equal(z->select_strategy, ZENFLOW_SELECT_STEP);
    assert_true(z->select_interval == 16 && z->update_interval == 4 && z->auto_ratio == 0.9);
    assert_true(z->full_warm_up_rounds == 3 && z->pt_reserved_cores_perc == 0.25 && !z->stagger);
    assert_true(z->apply_lag == 2 && z->deferred_lr_scale == ZENFLOW_LR_SQRT);
    assert_int_equal(z->accumulate, ZENFLOW_ACCUMULATE_HOST);
    config_free(&c);
    assert_works(parse_text(ZENFLOW(""), COMPLETE, 1), err);
    assert_true(z->enabled && z->topk_ratio == 0.1 && !z->overlap_step && !z->offload);
    assert_false(engine_settings(&c, NULL).zero_copy);
    assert_true(z->select_interval == CONFIG_AUTO && z->update_interval == CONFIG_AUTO);
    assert_true(z->auto_ratio == 0.99 && z->full_warm_up_rounds == 0 && z->stagger);
    assert_true(z->pt_reserved_cores_perc == 0.5 && z->deferred_lr_scale == 1);
    assert_int_equal(z->apply_lag, 0); /* the step waits */
    assert_false(engine_settings(&c, NULL).all_steps);
    config_free(&c);
    assert_works(parse_text(ZENFLOW("\"deferred_update\": \"all_steps\""), COMPLETE, 1), err);
    assert_true(engine_settings(&c, NULL).all_steps);
    config_free(&c);
    assert_works(parse_text(ZENFLOW(""), COMPLETE "--zero_optimization.zenflow.enabled=no", 1),
                 err);
    assert_false(z->enabled);
    config_free(&c);
    assert_works(parse(NULL,
                       COMPLETE "--zero_optimization.zenflow.overlap_step "
                                "--zero_optimization.stage 1 "
                                "--zero_optimization.offload_optimizer.device cpu",
                       1),
                 err);
    assert_true(z->enabled && z->apply_lag == 1);
    config_free(&c);
}

/* The file that Transformers' documentation hands out: everything is left to the arguments. */
static void reads_auto(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "huggingface_auto.json",
                       COMPLETE "--learning_rate 1e-4 --adam_beta2 0.95 --adam_epsilon=1e-6 "
                                "--weight-decay .1 --max_grad_norm 2 --bf16 --warmup_ratio 0.1 "
                                "--per_device_train_batch_size 4 --gradient_accumulation_steps 3 "
                                "--gradient_checkpointing --device cuda",
                       2),
                 err);
    assert_true(c.gradient_checkpointing && c.device == CONFIG_DEVICE_CUDA);
    assert_true(c.learning_rate == 1e-4 && c.adam_beta2 == 0.95 && c.adam_epsilon == 1e-6);
    assert_true(c.weight_decay == 0.1 && c.max_grad_norm == 2 && c.bf16);
    assert_int_equal(c.train_batch_size, 24);
    assert_true(c.scheduler.warmup_max_lr == 1e-4 && c.scheduler.warmup_min_lr == 0);
    assert_int_equal(count(warnings, "warning:"), 3); /* overlap_comm, two bucket sizes */
    assert_int_equal(count(warnings, "fp16"), 0);
    assert_works(config_resolve_steps(&c, 100, &err), err);
    assert_int_equal(c.steps_per_epoch, 5);
    assert_int_equal(c.total_steps, 15);
    assert_int_equal(c.scheduler.warmup_num_steps, 2);
    config_free(&c);
}

/* The ready configurations name a task; files that can be none of GLUE's are a person's own. */
static void own_examples_put_the_files_task_aside(void **state)
{
    (void)state;
    static const struct {
        const char *file, *options;
        const char *task; /* NULL: none */
    } cases[] = {
        {CONFIGS "zenflow.json", "--train_file x.csv", NULL},
        {CONFIGS "zenflow.json", "--do_predict --test_file a/x.JSONL", NULL},
        {CONFIGS "zenflow.json", "--train_file x.json --task_name cola --data_dir d", "cola"},
        {CONFIGS "zenflow.json", "--train_file x.tsv --data_dir d", "sst2"},
        {CONFIGS "lm.json", "--train_file x.jsonl", "lm"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *options =
            zf_format("--model_name_or_path m --output_dir o --print_config %s", cases[i].options);
        assert_works(parse(cases[i].file, options, 1), err);
        assert_true((c.task != NULL) == (cases[i].task != NULL));
        if (cases[i].task)
            assert_string_equal(c.task->name, cases[i].task);
        config_free(&c);
        free(options);
    }
}

static void options_outrank_the_file(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json",
                       "--learning_rate 1e-3 --optimizer.params.eps 1e-5 --adam_beta1 0.7 "
                       "--train_batch_size 8 --gradient_clipping auto --lr_scheduler_type cosine "
                       "--logging-steps 7 --no_disable_tqdm --do_predict --do_eval false "
                       "--config_name gpt --tokenizer_name t --seed 1 --seed 2",
                       1),
                 err);
    assert_true(c.learning_rate == 1e-3 && c.adam_epsilon == 1e-5 && c.adam_beta1 == 0.7);
    assert_true(c.adam_beta2 == 0.95 && c.max_grad_norm == 1 && c.logging_steps == 7);
    assert_true(!c.disable_tqdm && c.do_predict && !c.do_eval && c.seed == 2);
    assert_int_equal(c.scheduler.type, DS_SCHEDULER_NONE);
    assert_int_equal(c.lr_scheduler_type, LR_COSINE);
    assert_null(c.model_name_or_path);
    assert_string_equal(c.config_name, "gpt");
    config_free(&c);
    assert_works(parse(CONFIGS "sample.json", "--model_name_or_path m", 1), err);
    assert_null(c.config_name);
    assert_string_equal(c.tokenizer_name, "m");
    config_free(&c);
    assert_works(parse_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                            "{\"warmup_max_lr\": 1e-3, \"warmup_num_steps\": 9}}}",
                            COMPLETE "--learning_rate 0.5 --warmup_steps 4", 1),
                 err);
    assert_works(config_resolve_steps(&c, 800, &err), err);
    assert_true(c.scheduler.warmup_max_lr == 0.5 && c.scheduler.warmup_num_steps == 4);
    assert_int_equal(c.scheduler.total_num_steps, 300);
    config_free(&c);
    /* Also where the file's scheduler is the same but for its warm-up. */
    assert_works(parse_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                            "{\"warmup_max_lr\": 1e-3, \"warmup_num_steps\": 9}}}",
                            COMPLETE "--lr_scheduler_type linear", 1),
                 err);
    assert_works(config_resolve_steps(&c, 800, &err), err);
    assert_int_equal(c.scheduler.type, DS_SCHEDULER_NONE);
    assert_int_equal(c.lr_scheduler_type, LR_LINEAR);
    assert_int_equal(c.warmup_steps, 0);
    config_free(&c);
}

static void use_cpu_is_a_device(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE "--use_cpu", 1), err);
    assert_int_equal(c.device, CONFIG_DEVICE_CPU);
    assert_string_equal(warnings, "");
    config_free(&c);
    assert_works(
        parse_text("{\"training_arguments\": {\"device\": \"cuda\"}}", COMPLETE "--no_cuda", 1),
        err);
    assert_int_equal(c.device, CONFIG_DEVICE_CPU);
    config_free(&c);
    assert_works(
        parse_text("{\"training_arguments\": {\"use_cpu\": true}}", COMPLETE "--device cuda", 1),
        err);
    assert_true(c.device == CONFIG_DEVICE_CUDA && !c.use_cpu);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--use_cpu false --device cuda", 1), err);
    assert_int_equal(c.device, CONFIG_DEVICE_CUDA);
    config_free(&c);
}

/* What Transformers does with the same arguments, and both training and evaluation without any. */
static void does_what_is_asked_for(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        bool train, eval, predict;
    } cases[] = {
        {"", true, true, false},
        {"--do_eval", false, true, false},
        {"--do_predict", false, false, true},
        {"--do_train", true, false, false},
        {"--do_train --do_eval --do_predict", true, true, true},
        {"--do_eval --do_predict", false, true, true},
        {"--do_train --eval_strategy epoch", true, true, false},
        {"--do_train --eval_steps 5", true, true, false},
        {"--no_do_train", false, true, false},
        {"--no_do_eval", true, false, false},
        {"--do_predict --no_do_eval --do_train", true, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *options = zf_format(COMPLETE "%s", cases[i].options);
        assert_works(parse(NULL, options, 1), err);
        if (c.do_train != cases[i].train || c.do_eval != cases[i].eval ||
            c.do_predict != cases[i].predict)
            fail_msg("%s: do_train %d, do_eval %d, do_predict %d", cases[i].options, c.do_train,
                     c.do_eval, c.do_predict);
        config_free(&c);
        free(options);
    }
    assert_works(
        parse_text("{\"training_arguments\": {\"do_train\": true}}", COMPLETE "--do_predict", 1),
        err);
    assert_true(c.do_train && !c.do_eval && c.do_predict);
    config_free(&c);
}

/* A row of arguments.tsv or deepspeed_keys.tsv, which fixtures/make_arguments.py and
 * make_deepspeed_keys.py make: an argument of Transformers, or a key path of DeepSpeed's; whose it
 * is, its default, another value, what that cannot be without (or "-"), and what becomes of it.
 * Values are JSON. */
struct argument {
    char *name, *of, *standard, *value, *with, *verdict;
    bool is_deepspeed;
};

static const char *const complete[4][2] = {
    {"task_name", "sst2"}, {"model_name_or_path", "m"}, {"data_dir", "d"}, {"output_dir", "o"}};

static bool is_complete_key(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(complete[i][0], name) == 0)
            return true;
    return false;
}

static json_t *json_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!value)
        fail_msg("%s is no JSON", text);
    return value;
}

/* A run that lacks nothing, with the argument at this value. A key of ZenFlow's has what ZenFlow
 * cannot be without in any case. */
static json_t *arguments_with(const struct argument *a, const char *value)
{
    json_t *all = json_object(), *with = strcmp(a->with, "-") ? json_of(a->with) : json_object(),
           *v;
    const char *name;
    for (int i = 0; i < 4; i++)
        json_object_set_new(all, complete[i][0], json_string(complete[i][1]));
    json_object_foreach(with, name, v)
    {
        if (value != a->standard || (a->is_deepspeed && !strstr(name, ".zenflow.")))
            json_object_set(all, name, v);
    }
    if (strcmp(value, "null") != 0)
        json_object_set_new(all, a->name, json_of(value));
    json_decref(with);
    return all;
}

/* Puts a value into nested objects by its key path. */
static void put_at(json_t *root, const char *key_path, json_t *value)
{
    const char *dot = strchr(key_path, '.');
    if (!dot) {
        json_object_set(root, key_path, value);
        return;
    }
    char *name = zf_format("%.*s", (int)(dot - key_path), key_path);
    if (!json_object_get(root, name))
        json_object_set_new(root, name, json_object());
    put_at(json_object_get(root, name), dot + 1, value);
    free(name);
}

/* Parses them as a file. */
static bool parse_as_file(json_t *all, bool is_deepspeed)
{
    json_t *root = json_object(), *value;
    const char *name;
    json_object_foreach(all, name, value)
    {
        const bool is_argument = !is_deepspeed || is_complete_key(name);
        char *at = zf_format("%s%s", is_argument ? CONFIG_ARGUMENTS : "", name);
        put_at(root, at, value);
        free(at);
    }
    char *text = json_dumps(root, 0);
    bool ok = parse_text(text, "", 1);
    free(text);
    json_decref(root);
    return ok;
}

/* Parses them as options. */
static bool parse_as_options(json_t *all)
{
    char *argv[64] = {zf_strdup("zf-train")};
    const char *name;
    json_t *value;
    int argc = 1;
    json_object_foreach(all, name, value)
    {
        if (json_is_null(value))
            continue;
        argv[argc++] = zf_format("--%s", name);
        argv[argc++] = json_is_string(value) ? zf_strdup(json_string_value(value))
                                             : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    }
    bool ok = parse_words(argc, argv, 1);
    while (argc-- > 0)
        free(argv[argc]);
    return ok;
}

/* That what was parsed has done with the value what the row says. */
static void check_verdict(const struct argument *a, const char *value, bool ok)
{
    const struct config_key *key =
        a->is_deepspeed ? config_find_path(a->name) : config_find_option(a->name);
    const char *verdict = value == a->standard ? "done" : a->verdict;
    const bool warned = strstr(warnings, a->name) && strstr(warnings, "has no meaning here: ");
    if (ok == !strcmp(verdict, "refused") || warned == (strcmp(verdict, "idle") != 0 || !ok))
        fail_msg("%s %s: %s, but it is %s", a->name, value, ok ? warnings : err.text, verdict);
    if (!ok && !strstr(err.text, a->name) && strcmp(a->name, "deepspeed") != 0)
        fail_msg("%s %s: %s", a->name, value, err.text);
    if (!ok || !key || value == a->standard)
        return;
    json_t *given = json_of(value), *taken = config_value(&c, key);
    const bool numbers = json_is_number(given) && json_is_number(taken);
    if (numbers ? json_number_value(given) != json_number_value(taken) : !json_equal(given, taken))
        fail_msg("%s %s is not taken", a->name, value);
    json_decref(given);
    json_decref(taken);
}

/* What the program says to the value, for people. */
static void describe_argument(FILE *page, const struct argument *a)
{
    static const char idle[] = "has no meaning here: ";
    const char *note = strstr(warnings, idle), *why = err.text;
    if (strncmp(why, path, strlen(path)) == 0) /* without the place in a file */
        why = strchr(why + strlen(path), ' ') + 1;
    fprintf(page, "| `%s` | `%s` | `%s` | ", a->name, a->standard, a->value);
    if (strcmp(a->verdict, "refused") == 0)
        fprintf(page, "refused: %s |\n", why);
    else if (strcmp(a->verdict, "idle") == 0)
        fprintf(page, "no bearing: %.*s |\n", (int)strcspn(note + strlen(idle), "\n"),
                note + strlen(idle));
    else
        fprintf(page, "%s |\n", a->verdict);
}

/* Whether an option of that name is this argument: it has a value, and where a key of DeepSpeed's
 * is called as an argument of Transformers', the option is that. */
static bool is_option(const struct argument *a, const char *value)
{
    char *argument = zf_format(CONFIG_ARGUMENTS "%s", a->name);
    struct config_foreign foreign;
    const bool other = config_find_path(argument) || config_find_foreign(argument, &foreign);
    free(argument);
    return strcmp(value, "\"\"") != 0 && !(a->is_deepspeed && other);
}

static void check_argument(FILE *page, const struct argument *a)
{
    const char *values[] = {a->standard, a->value};
    for (int i = 0; i < 2; i++) {
        json_t *all = arguments_with(a, values[i]);
        for (int form = 0; form < 2; form++) {
            const bool as_file = (form == 0) != a->is_deepspeed; /* how it is called there, last */
            if (!as_file && !is_option(a, values[i]))
                continue;
            check_verdict(a, values[i],
                          as_file ? parse_as_file(all, a->is_deepspeed) : parse_as_options(all));
            config_free(&c);
        }
        json_decref(all);
    }
    describe_argument(page, a);
}

/* The arguments of one source: their defaults are accepted, their other values done or refused, in
 * a file and as options alike; none is passed over but with a warning, and why it may be. */
static int check_arguments_of(FILE *page, const char *of, const char *text, bool is_deepspeed)
{
    char *copy = zf_strdup(text), *rest = copy, *line;
    int rows = 0;
    fprintf(page, "\n## %s\n\n| name | default | other value | what becomes of it |\n", of);
    fprintf(page, "| --- | --- | --- | --- |\n");
    while ((line = strsep(&rest, "\n")) && *line) {
        char *fields[6] = {NULL};
        for (int i = 0; i < 6; i++)
            fields[i] = strsep(&line, "\t");
        const struct argument a = {fields[0], fields[1], fields[2],   fields[3],
                                   fields[4], fields[5], is_deepspeed};
        if (!a.verdict || *a.name == '#' || strcmp(a.of, of) != 0)
            continue;
        check_argument(page, &a);
        rows++;
    }
    free(copy);
    return rows;
}

/* A page of this room says of every row of a table what the program says; ZF_WRITE=1 writes it. */
static void check_page(const char *name, const char *table, const char *head,
                       const char *const *sources, bool is_deepspeed, int least)
{
    char *file = zf_format(ZF_TESTS_DIR "/../cmd/config/%s", name);
    char *rows_file = zf_format(FIXTURES "%s", table);
    char *text, *page, *written;
    size_t n, bytes;
    int rows = 0;
    FILE *out = open_memstream(&page, &bytes);
    fprintf(out,
            "%s Defaults are accepted. `test_config` holds the program to\nevery row, and "
            "makes this page of what it says: `ZF_WRITE=1 build/tests/test_config`.\n",
            head);
    assert_works(file_read(rows_file, &text, &n, &err), err);
    for (; *sources; sources++)
        rows += check_arguments_of(out, *sources, text, is_deepspeed);
    assert_in_range(rows, least, 1000);
    assert_int_equal(rows + 1, count(text, "\n")); /* all but the heading */
    fclose(out);
    if (getenv("ZF_WRITE"))
        assert_works(file_write(file, page, bytes, &err), err);
    assert_works(file_read(file, &written, &n, &err), err);
    if (strcmp(written, page) != 0)
        fail_msg("%s is not what the program does: ZF_WRITE=1 makes it anew", name);
    free(written);
    free(page);
    free(text);
    free(rows_file);
    free(file);
}

static void takes_every_argument_of_transformers(void **state)
{
    (void)state;
    check_page(
        "ARGUMENTS.md", "arguments.tsv",
        "# Transformers' arguments\n\nWhat zf-train does with each argument of Transformers "
        "5.23's `TrainingArguments`, of `run_glue.py` and of\n`EarlyStoppingCallback`, as an "
        "option and in a file's `training_arguments`.",
        (const char *const[]){"TrainingArguments", "run_glue.py", "EarlyStoppingCallback",
                              "earlier versions", NULL},
        false, 200);
}

static void takes_every_key_of_deepspeed(void **state)
{
    (void)state;
    check_page(
        "DEEPSPEED.md", "deepspeed_keys.tsv",
        "# DeepSpeed's keys\n\nWhat zf-train does with each key of DeepSpeed 0.19's "
        "configuration, in a file and as an option, such as\n`--zero_optimization.stage 2`. A "
        "block that is one row stands for all in it.",
        (const char *const[]){"DeepSpeed 0.19.8", "documentation", NULL}, true, 140);
}

static void batch_triple(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int ranks, total, micro, steps;
    } cases[] = {
        {"{}", 3, 24, 8, 1},
        {"{\"train_batch_size\": 32}", 2, 32, 16, 1},
        {"{\"train_micro_batch_size_per_gpu\": 5}", 2, 10, 5, 1},
        {"{\"gradient_accumulation_steps\": 5}", 2, 80, 8, 5},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", 2, 32, 4, 4},
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 4}", 2, 32, 4, 4},
        {"{\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 4}", 2, 24, 3,
         4},
        {"{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"training_arguments\": {\"per_device_train_batch_size\": 6}}",
         2, 12, 6, 1},
        {"{\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 6, "
         "\"gradient_accumulation_steps\": 1}",
         2, 12, 6, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_works(parse_text(cases[i].text, COMPLETE, cases[i].ranks), err);
        assert_int_equal(c.train_batch_size, cases[i].total);
        assert_int_equal(c.per_device_train_batch_size, cases[i].micro);
        assert_int_equal(c.gradient_accumulation_steps, cases[i].steps);
        config_free(&c);
    }
}

static void resolves_steps(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE "--num_train_epochs 1.5 --warmup_ratio 0.1", 1), err);
    assert_works(config_resolve_steps(&c, 41, &err), err);
    assert_int_equal(c.steps_per_epoch, 6);
    assert_int_equal(c.total_steps, 9);
    assert_int_equal(c.warmup_steps, 1);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--max_steps 7 --warmup_ratio 0.5 --warmup_steps 2", 1), err);
    assert_works(config_resolve_steps(&c, 41, &err), err);
    assert_int_equal(c.total_steps, 7);
    assert_int_equal(c.warmup_steps, 2);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--num_train_epochs 1e300", 1), err);
    assert_false(config_resolve_steps(&c, 41, &err));
    assert_says(err, "--num_train_epochs is ");
    assert_false(config_resolve_steps(&c, 0, &err));
    assert_says(err, "there are no training examples");
    config_free(&c);
    assert_works(parse_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}", COMPLETE, 1), err);
    assert_non_null(strstr(warnings, "warms up to 0.001"));
    assert_works(config_resolve_steps(&c, 80000, &err), err);
    assert_int_equal(c.scheduler.warmup_num_steps, 1000);
    assert_int_equal(c.scheduler.total_num_steps, 30000);
    assert_true(c.scheduler.warmup_max_lr == 0.001 && c.scheduler.warmup_type == WARMUP_LOG);
    config_free(&c);
}

/* Each row of steps.tsv, which fixtures/make_trainer.py makes: all steps, a share, and what it is
 * of them by Transformers, as logging_steps, eval_steps or save_steps, and as warmup_steps. */
static void resolves_shares_of_steps(void **state)
{
    (void)state;
    char *text, *rest, *line;
    size_t n;
    int rows = 0;
    assert_works(file_read(ZF_TESTS_DIR "/fixtures/trainer/steps.tsv", &text, &n, &err), err);
    rest = text;
    while ((line = strsep(&rest, "\n")) && *line) {
        char share[32], options[512];
        int all, logging, warmup;
        if (*line == '#')
            continue;
        assert_int_equal(sscanf(line, "%d %31s %d %d", &all, share, &logging, &warmup), 4);
        snprintf(options, sizeof options,
                 COMPLETE "--max_steps %d --logging_steps %s --eval_steps %s --save_steps %s "
                          "--warmup_steps %s",
                 all, share, share, share, share);
        assert_works(parse(NULL, options, 1), err);
        assert_works(config_resolve_steps(&c, 100, &err), err);
        if (c.logging_steps != logging || c.eval_steps != logging || c.save_steps != logging ||
            c.warmup_steps != warmup)
            fail_msg("%s: %g %g", line, c.logging_steps, c.warmup_steps);
        config_free(&c);
        rows++;
    }
    free(text);
    assert_in_range(rows, 60, 1000);
    assert_works(parse(NULL,
                       COMPLETE "--load_best_model_at_end --max_steps 7 --save_steps 0.4 "
                                "--eval_steps 0.2",
                       1),
                 err);
    assert_false(config_resolve_steps(&c, 100, &err));
    assert_says(err,
                "it needs save_steps to be a multiple of eval_steps, and of 7 steps they are 3 "
                "and 2");
    config_free(&c);
}

static void settles_what_is_best(void **state)
{
    (void)state;
    static const char *const seekers[] = {"--load_best_model_at_end --save_strategy best",
                                          "--save_strategy best", "--early_stopping_patience 2"};
    for (int i = 0; i < 3; i++) {
        char *without = zf_format(COMPLETE "%s", seekers[i]);
        char *with = zf_format(COMPLETE "--eval_strategy epoch %s", seekers[i]);
        assert_false(parse(NULL, without, 1));
        assert_says(err, "it needs eval_strategy \"steps\" or \"epoch\"");
        assert_works(parse(NULL, with, 1), err);
        assert_string_equal(c.metric_for_best_model, "loss");
        assert_false(c.greater_is_better);
        config_free(&c);
        free(without);
        free(with);
    }
    assert_works(parse(NULL, COMPLETE "--eval_steps 5 --metric_for_best_model mse", 1), err);
    assert_false(c.greater_is_better);
    config_free(&c);
}

static void settles_evaluation(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE "--eval_steps 20", 1), err);
    assert_int_equal(c.eval_strategy, STRATEGY_STEPS);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--evaluation_strategy steps --logging_steps 30", 1), err);
    assert_int_equal(c.eval_steps, 30);
    config_free(&c);
    assert_works(parse(CONFIGS "adamw.json", COMPLETE "--no_do_eval", 1), err);
    assert_int_equal(c.eval_strategy, STRATEGY_NO);
    config_free(&c);
    assert_works(parse(NULL,
                       COMPLETE "--load_best_model_at_end --eval_steps 250 "
                                "--metric_for_best_model eval_accuracy",
                       1),
                 err);
    assert_string_equal(c.metric_for_best_model, "accuracy");
    assert_true(c.greater_is_better);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--load_best_model_at_end --eval_steps 250", 1), err);
    assert_string_equal(c.metric_for_best_model, "loss");
    assert_false(c.greater_is_better);
    config_free(&c);
    assert_works(parse(NULL,
                       "--task_name lm --train_file t --config_name gpt --tokenizer_name v "
                       "--output_dir o --resume_from_checkpoint",
                       1),
                 err);
    assert_true(c.do_eval); /* on a part of train_file */
    assert_string_equal(c.resume_from_checkpoint, "latest");
    config_free(&c);
    assert_works(parse_text("{\"training_arguments\": {\"resume_from_checkpoint\": true}}",
                            COMPLETE "--resume_from_checkpoint false", 1),
                 err);
    assert_null(c.resume_from_checkpoint);
    config_free(&c);
}

/* text: of the file, which is "FILE" in `sentence`; NULL: none. */
struct refusal {
    const char *text, *options, *sentence;
};

static void refuse(const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct refusal *r = &cases[i];
        bool ok = r->text ? parse_text(r->text, r->options, 2) : parse(NULL, r->options, 2);
        if (ok)
            ok = config_resolve_steps(&c, 8, &err);
        bool starts = strncmp(r->sentence, "FILE", 4) == 0;
        char *sentence = zf_format("%s%s", starts ? path : "", r->sentence + (starts ? 4 : 0));
        if (ok)
            fail_msg("not refused: %s", sentence);
        assert_string_equal(err.text, sentence);
        free(sentence);
        config_free(&c);
    }
}

#define REFUSE(cases) refuse(cases, sizeof cases / sizeof *cases)

static void refuses_unknown_keys(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\n\"optimiser\": {}}", COMPLETE,
         "FILE:2: optimiser is not a known key (did you mean optimizer?)"},
        {"{\"training_arguments\": {\n\n\"lerning_rate\": 1}}", COMPLETE,
         "FILE:3: training_arguments.lerning_rate is not a known key (did you mean "
         "training_arguments.learning_rate?)"},
        {"{\"learning_rate\": 1}", COMPLETE,
         "FILE:1: learning_rate is not a known key (did you mean "
         "training_arguments.learning_rate?)"},
        {"{\"zenflow\": {}}", COMPLETE,
         "FILE:1: zenflow is not a known key (did you mean zero_optimization.zenflow?)"},
        {ZENFLOW("\n\"topk\": 1"), COMPLETE,
         "FILE:3: zero_optimization.zenflow.topk is not a known key (did you mean "
         "zero_optimization.zenflow.topk_ratio?)"},
        {"{\"xyzzy\": 1}", COMPLETE, "FILE:1: xyzzy is not a known key"},
        {NULL, "--topk_ratio 3",
         "--topk_ratio is not an option (did you mean --zero_optimization.zenflow.topk_ratio?)"},
        {NULL, "--learning-rat 3",
         "--learning_rat is not an option (did you mean --learning_rate?)"},
        {NULL, "--epochs 3", "--epochs is not an option (did you mean --num_train_epochs?)"},
        {NULL, "my.json", "my.json is not an option (did you mean --config my.json?)"},
        {NULL, "my.csv", "my.csv is not an option (did you mean --train_file my.csv?)"},
        {NULL, "-x", "-x is not an option"},
    };
    REFUSE(cases);
}

static void refuses_bad_values(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {ZENFLOW("\n\"topk_ratio\": 5"), COMPLETE,
         "FILE:3: zero_optimization.zenflow.topk_ratio is 5, but it is a fraction from 0 to 1 (did "
         "you mean 0.05?)"},
        {"{\"training_arguments\": {\"learning_rate\": \"1e-4\"}}", COMPLETE,
         "FILE:1: training_arguments.learning_rate is \"1e-4\", but it is a number of at least 0 "
         "(did you mean 0.0001, without quotes?)"},
        {"{\"optimizer\": {\"type\": \"SGD\"}}", COMPLETE,
         "FILE:1: optimizer.type is \"SGD\", but it is one of \"AdamW\" or \"Adam\""},
        {"{\n\"bf16\": true}", COMPLETE,
         "FILE:2: bf16 is true, but it is a block of keys in braces, such as {\"enabled\": true}"},
        {NULL, "--max_steps -5",
         "--max_steps is -5, but it is a whole number of steps, or -1 for as many as "
         "num_train_epochs has"},
        {"{\"optimizer\": 3}", COMPLETE,
         "FILE:1: optimizer is 3, but it is a block of keys in braces"},
        {"{\"optimizer\": {\"params\": {\"betas\": 0.9}}}", COMPLETE,
         "FILE:1: optimizer.params.betas is 0.9, but it is two numbers in brackets, each from 0 to "
         "below 1"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1]}}}", COMPLETE,
         "FILE:1: optimizer.params.betas is 1, but it is a fraction from 0 to below 1"},
        {"{\"zero_optimization\": {\"stage\": 4}}", COMPLETE,
         "FILE:1: zero_optimization.stage is 4, but it is from 0 to 3"},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}}}", COMPLETE,
         "FILE:1: zero_optimization.offload_optimizer.device is \"nvme\", but it is one of "
         "\"none\" "
         "or \"cpu\""},
        {"{\"training_arguments\": {\"do_eval\": \"yes\"}}", COMPLETE,
         "FILE:1: training_arguments.do_eval is \"yes\", but it is true or false (did you mean "
         "true, "
         "without quotes?)"},
        {"{\"training_arguments\": {\"data_dir\": 7}}", COMPLETE,
         "FILE:1: training_arguments.data_dir is 7, but it is a string"},
        {NULL, "--do_predict maybe", "--do_predict is \"maybe\", but it is true or false"},
        {NULL, "--learning_rate", "--learning_rate needs a value: a number of at least 0"},
        {NULL, "--learning_rate --do_train",
         "--learning_rate needs a value: a number of at least 0"},
        {NULL, "--config", "--config needs a value: a file"},
        {NULL, "--config /nonexistent.json",
         "/nonexistent.json: cannot be read: No such file or directory"},
        {NULL, "--learning_rate nan",
         "--learning_rate is \"nan\", but it is a number of at least 0"},
        {NULL, "--max_seq_length 12.5",
         "--max_seq_length is 12.5, but it is a whole number of at least 1"},
        {NULL, "--max_steps 3000000000",
         "--max_steps is 3000000000, but it is a whole number of steps, or -1 for as many as "
         "num_train_epochs has"},
        {NULL, "--seed=-1", "--seed is -1, but it is a whole number of at least 0"},
        {NULL, "--num_train_epochs 0", "--num_train_epochs is 0, but it is a number above 0"},
        {NULL, "--embd_pdrop 10",
         "--embd_pdrop is 10, but it is a fraction from 0 to below 1 (did you mean 0.1?)"},
        {NULL, "--eval_strategy step",
         "--eval_strategy is \"step\", but it is one of \"no\", \"steps\" or \"epoch\" (did you "
         "mean "
         "\"steps\"?)"},
        {NULL, "--task_name colla",
         "--task_name is \"colla\", but it is one of \"cola\", \"sst2\", \"mrpc\", \"stsb\", "
         "\"qqp\", \"mnli\", \"qnli\", \"rte\", \"wnli\" or \"lm\" (did you mean \"cola\"?)"},
        {NULL, "--zero_optimization.zenflow.deferred_lr_scale squart",
         "--zero_optimization.zenflow.deferred_lr_scale is \"squart\", but it is a number above 0, "
         "or \"sqrt\""},
    };
    REFUSE(cases);
}

static void refuses_what_is_not_here(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\"fp16\": {\"enabled\": true}}", COMPLETE,
         "FILE:1: fp16 is {\"enabled\":true}, but half precision here is bf16: use bf16"},
        {"{\"zero_optimization\": {\"cpu_offload_param\": true}}", COMPLETE,
         "FILE:1: zero_optimization.cpu_offload_param is true, but use "
         "zero_optimization.offload_param.device"},
        {"{\"optimizer\": {\"params\": {\"bias_correction\": false}}}", COMPLETE,
         "FILE:1: optimizer.params.bias_correction is false, but AdamW here corrects its moments' "
         "bias"},
        {"{\"gradient_allreduce_op\": \"sum\"}", COMPLETE,
         "FILE:1: gradient_allreduce_op is \"sum\", but gradients are averaged over the ranks"},
        {NULL, COMPLETE "--fp16", "--fp16 is true, but half precision here is bf16: use bf16"},
        {NULL, COMPLETE "--optim adafactor",
         "--optim is \"adafactor\", but the optimizer is AdamW, which is \"adamw_torch\""},
        {NULL, COMPLETE "--optim adamw_bnb_8bit",
         "--optim is \"adamw_bnb_8bit\", but the optimizer is AdamW, which is \"adamw_torch\""},
        {NULL, COMPLETE "--data_seed 0",
         "--data_seed is 0, but the order of the examples follows seed"},
        {NULL, COMPLETE "--no_save_safetensors",
         "--save_safetensors is false, but weights are written as safetensors"},
        {"{\"dataloader_drop_last\": true}", COMPLETE,
         "FILE:1: dataloader_drop_last is true, but every example is used"},
        {NULL, COMPLETE "--label_smoothing_factor 0.1",
         "--label_smoothing_factor is 0.1, but that is not available here"},
    };
    REFUSE(cases);
}

static void refuses_contradictions(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 3}", COMPLETE,
         "FILE:1: train_batch_size is 32, but it is per_device_train_batch_size x "
         "gradient_accumulation_steps x ranks, and 5 x 3 x 2 is 30"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4,\n"
         "\"gradient_accumulation_steps\": 8}",
         COMPLETE,
         "FILE:1: train_batch_size is 32, but it is per_device_train_batch_size x "
         "gradient_accumulation_steps x ranks, and 4 x 8 x 2 is 64"},
        {"{\"train_batch_size\": 1}", COMPLETE,
         "FILE:1: train_batch_size is 1, but it is per_device_train_batch_size x "
         "gradient_accumulation_steps x ranks, and 1 x 1 x 2 is 2"},
        {NULL, COMPLETE "--train_micro_batch_size_per_gpu 2000000000",
         "--train_micro_batch_size_per_gpu is 2000000000, but with 1 accumulation steps and 2 "
         "ranks "
         "a step would have more than 2147483647 examples"},
        {"{\"optimizer\": {\"params\": {\"adam_w_mode\": false}}}", COMPLETE,
         "FILE:1: optimizer.params.adam_w_mode is false, but optimizer.type is \"AdamW\", which "
         "decouples weight decay: use \"Adam\""},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}}", COMPLETE,
         "FILE:1: zero_optimization.offload_optimizer.device is \"cpu\", but offloading needs "
         "zero_optimization.stage 1, 2 or 3, and it is 0"},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"cpu\", but parameters are offloaded "
         "in stage 3, and it is 2"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"cpu\", but where parameters live on "
         "the host, so does the optimizer's state: offload_optimizer.device must be \"cpu\" too"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},"
         " \"offload_param\": {\"device\": \"cpu\"}, \"zenflow\": {\"topk_ratio\": 1}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"cpu\", but with topk_ratio 1 the "
         "device updates all of them, and keeps them"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"nvme\", but it is one of "
         "\"none\", \"cpu\" or \"auto\""},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"auto\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"auto\", but parameters are offloaded "
         "in stage 3, and it is 2"},
        {"{\"zero_optimization\": {\"zenflow\": {\"offload\": \"host\"}}}", COMPLETE,
         "FILE:1: zero_optimization.zenflow.offload is \"host\", but it is true or false, or "
         "\"auto\""},
        {"{\"scheduler\": {\"params\": {\"warmup_max_lr\": 1}}}", COMPLETE,
         "FILE:1: scheduler.params.warmup_max_lr is 1.0, but scheduler.type is not given: "
         "WarmupLR, "
         "WarmupDecayLR or WarmupCosineLR"},
        {"{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_max_lr\": 1}}}",
         COMPLETE,
         "FILE:1: scheduler.params.warmup_max_lr is 1.0, but scheduler.type \"WarmupCosineLR\" has "
         "no such key"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\"},\n"
         "\"training_arguments\": {\"lr_scheduler_type\": \"cosine\"}}",
         COMPLETE,
         "FILE:2: training_arguments.lr_scheduler_type is \"cosine\", but scheduler.type is "
         "\"WarmupLR\", which is constant_with_warmup"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.25}},\n"
         "\"training_arguments\": {\"learning_rate\": 0.5}}",
         COMPLETE,
         "FILE:1: scheduler.params.warmup_max_lr is 0.25, but learning_rate is 0.5: give one of "
         "them, or \"auto\""},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}},\n"
         "\"training_arguments\": {\"warmup_steps\": 6}}",
         COMPLETE,
         "FILE:1: scheduler.params.warmup_num_steps is 5, but warmup_steps is given too: give one "
         "of them, or \"auto\""},
        {NULL, COMPLETE "--use_cpu --device cuda", "--use_cpu is true, but device is \"cuda\""},
        {NULL, COMPLETE "--config_name gpt",
         "--config_name is \"gpt\", but model_name_or_path is given too: name a trained model, or "
         "a "
         "shape for random initialisation"},
        {NULL, COMPLETE "--load_best_model_at_end",
         "--load_best_model_at_end is true, but it needs eval_strategy and save_strategy to be "
         "both \"steps\" or both \"epoch\", or save_strategy \"best\" with either"},
        {NULL, COMPLETE "--early_stopping_threshold 0.1",
         "--early_stopping_threshold is 0.1, but early_stopping_patience, which it belongs to, is "
         "not given"},
        {NULL, COMPLETE "--load_best_model_at_end --eval_steps 3",
         "--load_best_model_at_end is true, but it needs save_steps (500) to be a multiple of "
         "eval_steps (3)"},
        {NULL, COMPLETE "--no_do_eval --eval_strategy epoch",
         "--do_eval is false, but eval_strategy asks for evaluation"},
        {NULL, COMPLETE "--no_do_eval --no_do_train",
         "--do_train is false, but do_eval and do_predict are false too: there is nothing to do"},
        {NULL, COMPLETE "--task_name lm --do_predict",
         "--do_predict is true, but task lm has no predictions to make"},
    };
    REFUSE(cases);
    assert_false(parse_text("{\"training_arguments\": {\"learning_rate\": 0.25},\n"
                            "\"optimizer\": {\"params\": {\"lr\": 0.5}}}",
                            COMPLETE, 1));
    assert_says(err, ":2: optimizer.params.lr is 0.5, but /tmp/");
    assert_says(err, ":1: training_arguments.learning_rate, which means the same, is 0.25");
    assert_false(parse_text("{\"training_arguments\": {\"adam_beta1\": 0.25},\n"
                            "\"optimizer\": {\"params\": {\"betas\": [0.5, 0.9]}}}",
                            COMPLETE, 1));
    assert_says(err, ":2: optimizer.params.betas is 0.5, but /tmp/");
}

static void refuses_what_zenflow_cannot_do(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\"zero_optimization\": {\"zenflow\": {}}}", COMPLETE,
         "zero_optimization.stage is 0 by default, but ZenFlow needs stage 1, 2 or 3"},
        {"{\"zero_optimization\": {\"stage\": 1, \"zenflow\": {}}}", COMPLETE,
         "zero_optimization.offload_optimizer.device is \"none\" by default, but ZenFlow needs "
         "\"cpu\": that is where it keeps what it defers"},
        {ZENFLOW("\"select_interval\": 4"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.select_interval is 4, but select_strategy \"auto\" "
         "selects every epoch and would overwrite it: use select_strategy \"step\" or \"epoch\""},
        {ZENFLOW("\"select_strategy\": \"epoch\""), COMPLETE,
         "zero_optimization.zenflow.select_interval is \"auto\" by default, but with a "
         "select_strategy other than \"auto\" it must be a number"},
        {ZENFLOW("\"select_strategy\": \"step\", \"select_interval\": 2, \"update_interval\": 4"),
         COMPLETE,
         "FILE:2: zero_optimization.zenflow.select_interval is 2, but it must be at least "
         "update_interval, which is 4"},
        {ZENFLOW("\"select_strategy\": \"epoch\", \"select_interval\": 2, \"update_interval\": 4"),
         COMPLETE,
         "FILE:2: zero_optimization.zenflow.select_interval is 2, but that is 2 steps, and it must "
         "be at least update_interval, which is 4"},
        {ZENFLOW("\"update_interval\": 0"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.update_interval is 0, but it is a whole number of at "
         "least 1, or \"auto\", or \"keep_up\""},
        {ZENFLOW("\"apply_lag\": 1"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.apply_lag is 1, but without overlap_step the step "
         "waits "
         "for the host: it must be 0"},
        {ZENFLOW("\"deferred_update\": \"all_steps\", \"deferred_lr_scale\": \"sqrt\""), COMPLETE,
         "FILE:2: zero_optimization.zenflow.deferred_lr_scale is \"sqrt\", but deferred_update "
         "\"all_steps\" has the learning rates of the steps that it stands for: it must be 1"},
        {ZENFLOW("\"deferred_update\": \"all_steps\""),
         COMPLETE "--optimizer.type Adam --optimizer.params.adam_w_mode false",
         "FILE:2: zero_optimization.zenflow.deferred_update is \"all_steps\", but it needs "
         "adam_w_mode: with L2 regularisation the decay is part of the gradient, whose squares "
         "it does not count"},
        {ZENFLOW("\"deferred_update\": \"all_step\""), COMPLETE,
         "FILE:2: zero_optimization.zenflow.deferred_update is \"all_step\", but it is one of "
         "\"one_step\" or \"all_steps\" (did you mean \"all_steps\"?)"},
        {ZENFLOW("\"steps_per_epoch\": 9"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.steps_per_epoch is 9, but the run counts them itself"},
    };
    REFUSE(cases);
}

static void refuses_incomplete_runs(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {NULL, "",
         "task_name is not given: a GLUE task, or lm; or train_file, for examples of your own"},
        {NULL, "--task_name cola",
         "model_name_or_path is not given: the folder of a model, or config_name for random "
         "initialisation"},
        {NULL, "--task_name cola --config_name gpt",
         "--config_name is \"gpt\", but tokenizer_name is not given: the folder of its tokenizer"},
        {NULL, "--task_name cola --model_name_or_path m",
         "output_dir is not given: the folder for what this run makes"},
        {NULL, "--task_name CoLA --model_name_or_path m --output_dir o",
         "data_dir is not given: training on task cola needs the folder of its GLUE files, or "
         "train_file"},
        {NULL, "--task_name lm --model_name_or_path m --output_dir o --data_dir d",
         "train_file is not given: training on task lm needs a text file"},
        {NULL, "--task_name lm --model_name_or_path m --output_dir o --no_do_train --do_eval",
         "validation_file is not given: evaluation on task lm needs a text file"},
    };
    REFUSE(cases);
    assert_works(parse(NULL, "--print_config", 1), err); /* shows what there is */
    assert_int_equal(c.action, CONFIG_PRINT);
    config_free(&c);
}

/* Stage 3 of several ranks divides parameters, wherever they live; of one it is stage 2, unless
 * they live on the host. */
static void stage_3_divides_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int ranks, slots;
        bool on_host;
    } cases[] = {
        {"{\"zero_optimization\": {\"stage\": 2}}", 2, 0, false},
        {"{\"zero_optimization\": {\"stage\": 3}}", 1, 0, false},
        {"{\"zero_optimization\": {\"stage\": 3}}", 2, CONFIG_AUTO, false},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"buffer_count\": 3}}}", 2, 3,
         false},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},\n"
         "\"offload_param\": {\"device\": \"cpu\"}}}",
         1, CONFIG_AUTO, true},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},\n"
         "\"offload_param\": {\"device\": \"cpu\", \"buffer_count\": 1}}}",
         4, 1, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_works(parse_text(cases[i].json, COMPLETE, cases[i].ranks), err);
        assert_works(config_resolve_steps(&c, 800, &err), err);
        const struct engine_config e = engine_settings(&c, NULL);
        assert_int_equal(engine_value_slots(&c), cases[i].slots);
        assert_int_equal(e.params_on_host, cases[i].on_host);
        assert_int_equal(e.params_divided, c.zero_stage == 3);
        config_free(&c);
    }
}

static void warns_once_a_key(void **state)
{
    (void)state;
    assert_works(parse_text("{\"wall_clock_breakdown\": true,\n"
                            "\"comet\": {\"enabled\": false, \"project\": \"x\"},\n"
                            "\"prescale_gradients\": true}",
                            COMPLETE "--no_pad_to_max_length --tf32 --optim adamw_torch "
                                     "--dataloader_num_workers 4 --local_rank=0",
                            1),
                 err);
    assert_int_equal(count(warnings, "warning:"), 5);
    assert_non_null(strstr(warnings, ":1: wall_clock_breakdown has no meaning here: trainer_log"));
    assert_non_null(
        strstr(warnings, ":3: prescale_gradients has no meaning here: ranks exchange "));
    assert_non_null(
        strstr(warnings, "--pad_to_max_length has no meaning here: there is no padding"));
    config_free(&c);
}

/* What is the same in two configurations: every field of the table. */
static json_t *effective(const struct config *config)
{
    json_t *all = json_object();
    for (int i = 0; i < config_table_rows; i++) {
        const struct config_key *key = &config_table[i];
        if (key->name && !key->same_as)
            json_object_set_new(all, key->name, config_value(config, key));
    }
    return all;
}

static void round_trip(const char *file, const char *options, int ranks)
{
    assert_works(parse(file, options, ranks), err);
    assert_works(config_resolve_steps(&c, 1000, &err), err);
    json_t *before = effective(&c);
    assert_works(config_write(&c, path, &err), err);
    int steps = c.total_steps, per_epoch = c.steps_per_epoch;
    config_free(&c);
    assert_works(parse(path, "", ranks), err);
    assert_string_equal(warnings, "");
    assert_works(config_resolve_steps(&c, 1000, &err), err);
    json_t *after = effective(&c);
    char *a = config_dump(before, JSON_INDENT(1)), *b = config_dump(after, JSON_INDENT(1));
    assert_string_equal(a, b);
    assert_true(json_equal(before, after)); /* to the last digit */
    assert_true(c.total_steps == steps && c.steps_per_epoch == per_epoch);
    free(a);
    free(b);
    json_decref(before);
    json_decref(after);
    config_free(&c);
}

/* Where things live may be left to the plan of memory, and so may the micro-batch. */
static void leaves_places_open(void **state)
{
    (void)state;
    static const char open[] =
        "{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": \"auto\","
        " \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},"
        " \"offload_param\": {\"device\": \"auto\"}, \"zenflow\": {\"offload\": \"auto\"}},"
        " \"training_arguments\": {\"gradient_checkpointing\": \"auto\"}}";
    write_text(open);
    assert_works(parse(path, COMPLETE, 1), err);
    assert_true(c.offload_param == OFFLOAD_AUTO && c.param_buffers == CONFIG_AUTO);
    assert_true(c.gradient_checkpointing == CONFIG_AUTO && c.zenflow.offload == CONFIG_AUTO);
    assert_true(c.zenflow.accumulate == ZENFLOW_ACCUMULATE_AUTO && c.divides_batch);
    assert_true(c.per_device_train_batch_size == 24 && c.gradient_accumulation_steps == 1);
    config_free(&c);
    round_trip(path, COMPLETE, 1);
    write_text(open);
    assert_works(parse(path,
                       COMPLETE "--no_gradient_checkpointing --zero_optimization.zenflow.offload "
                                "--gradient_accumulation_steps 2",
                       1),
                 err);
    assert_true(c.gradient_checkpointing == false && c.zenflow.offload == true && !c.divides_batch);
    assert_int_equal(c.per_device_train_batch_size, 12);
    config_free(&c);
    /* where the device updates all channels it keeps their parameters */
    assert_works(parse(path, COMPLETE "--zero_optimization.zenflow.topk_ratio 1", 1), err);
    assert_true(c.offload_param == OFFLOAD_NONE);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--train_batch_size 8 --per_device_train_batch_size 4", 1),
                 err);
    assert_true(!c.divides_batch && c.gradient_accumulation_steps == 2);
    config_free(&c);
}

static void writes_the_same_run(void **state)
{
    (void)state;
    round_trip(NULL, COMPLETE, 1);
    round_trip(NULL,
               COMPLETE "--learning_rate 0.12345678901234567 --adam_beta2 0.9999999 --seed 7 "
                        "--warmup_ratio 0.15 --lr_scheduler_type cosine --attn_pdrop 0 "
                        "--load_best_model_at_end --eval_steps 50 --do_predict --bf16 "
                        "--gradient_checkpointing true --use_cpu "
                        "--max_train_samples 10 --save_total_limit 2 --resume_from_checkpoint x",
               3);
    round_trip(FIXTURES "deepspeed.json", "", 2);
    round_trip(FIXTURES "huggingface_auto.json", COMPLETE "--warmup_steps 9", 2);
    write_text(
        "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"cos_min_ratio\": 0.1, "
        "\"warmup_num_steps\": \"auto\", \"total_num_steps\": 375}}}");
    round_trip(path, COMPLETE "--warmup_ratio 0.1 --num_train_epochs 3", 1);
    write_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}");
    round_trip(path, COMPLETE, 1);
}

static void ready_configurations_parse(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool zenflow;
        int update_interval;
    } ready[] = {{"adamw", false, CONFIG_AUTO},
                 {"zenflow", true, CONFIG_KEEP_UP},
                 {"zenflow_auto", true, CONFIG_AUTO},
                 {"zenflow_offload_param", true, CONFIG_KEEP_UP},
                 {"zero_offload", false, CONFIG_AUTO}};
    for (size_t i = 0; i < sizeof ready / sizeof *ready; i++) {
        char *file = zf_format(CONFIGS "%s.json", ready[i].name);
        round_trip(file, COMPLETE, 2);
        assert_works(parse(file, COMPLETE, 1), err);
        assert_int_equal(c.zenflow.enabled, ready[i].zenflow);
        assert_int_equal(c.zenflow.update_interval, ready[i].update_interval);
        assert_string_equal(warnings, "");
        config_free(&c);
        free(file);
    }
    round_trip(CONFIGS "sample.json", "", 1);
    assert_works(parse(CONFIGS "sample.json", "", 1), err);
    assert_int_equal(c.zenflow.update_interval, CONFIG_KEEP_UP);
    config_free(&c);
    round_trip(CONFIGS "lm.json",
               "--train_file t --validation_file v --config_name gpt --tokenizer_name t "
               "--output_dir o",
               1);
}

static char printed[32768]; /* by config_print or as help */

static void shows_where_values_come_from(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json", "--seed 3", 2), err);
    FILE *out = fmemopen(printed, sizeof printed, "w");
    config_print(&c, out);
    fclose(out);
    const char *const lines[][3] = {
        {"\nseed ", " = 3 ", "# --seed\n"},
        {"\nlearning_rate ", " = 0.00015 ", "deepspeed.json:7 (optimizer.params.lr)\n"},
        {"\nadam_beta1 ", " = 0.8 ", "deepspeed.json:8 (optimizer.params.betas)\n"},
        {"\ngradient_accumulation_steps ", " = 4 ", "# auto\n"},
        {"\nmax_seq_length ", " = 128 ", "# default\n"},
        {"\ntask_name ", " = \"stsb\" ", "deepspeed.json:45\n"},
        {"\ntrain_file ", " = null ", "# default\n"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *line = strstr(printed, lines[i][0]),
                   *at = line ? strstr(line, lines[i][1]) : NULL;
        const char *origin = at ? strstr(at, lines[i][2]) : NULL;
        assert_non_null(origin);
        assert_ptr_equal(strchr(line + 1, '\n'), origin + strlen(lines[i][2]) - 1);
    }
    config_free(&c);
}

/* What was worked out says so, and what was given and has stayed keeps its place. */
static void origins_are_true_after_resolving(void **state)
{
    (void)state;
    static const struct {
        const char *json, *options, *key, *value, *origin;
    } cases[] = {
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\"}, \"training_arguments\":\n"
         "{\"lr_scheduler_type\": \"linear\"}}",
         "", "lr_scheduler_type", "\"linear\"", ":2"},
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}", "", "lr_scheduler_type", "\"linear\"",
         "auto"},
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\":\n"
         "{\"warmup_num_steps\": \"auto\"}}}",
         "--warmup_steps 7", "warmup_steps", "7", "--warmup_steps"},
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\":\n"
         "{\"warmup_num_steps\": 9}}}",
         "", "warmup_steps", "9", "auto"},
        {"{}", "--warmup_ratio 0.1", "warmup_ratio", "0.0", "auto"},
        {"{}", "--warmup_ratio 0.1", "warmup_steps", "30", "auto"},
        {"{\"training_arguments\":\n{\"use_cpu\": true}}", "--device cpu", "use_cpu", "true", ":2"},
        {"{\"training_arguments\":\n{\"use_cpu\": true}}", "--device cuda", "use_cpu", "false",
         "auto"},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
         "--zero_optimization.zenflow.topk_ratio 0.2", "zero_optimization.zenflow.enabled", "true",
         "--zero_optimization.zenflow.topk_ratio"},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
         "--zero_optimization.zenflow.topk_ratio 0.2 --zero_optimization.zenflow.enabled false",
         "zero_optimization.zenflow.enabled", "false", "--zero_optimization.zenflow.enabled"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[512], start[128];
        snprintf(options, sizeof options, COMPLETE "%s", cases[i].options);
        assert_works(parse_text(cases[i].json, options, 1), err);
        assert_works(config_resolve_steps(&c, 800, &err), err);
        FILE *out = fmemopen(printed, sizeof printed, "w");
        config_print(&c, out);
        fclose(out);
        snprintf(start, sizeof start, "\n%s ", cases[i].key);
        char *line = strstr(printed, start);
        assert_non_null(line);
        line[1 + strcspn(line + 1, "\n")] = 0;
        const char *value = strstr(line, "= ") + 2, *origin = strstr(line, "# ");
        size_t n = strlen(cases[i].value), tail = strlen(cases[i].origin);
        bool ok = strncmp(value, cases[i].value, n) == 0 && value[n] == ' ' &&
                  strcmp(origin + strlen(origin) - tail, cases[i].origin) == 0;
        if (!ok)
            fail_msg("case %zu: %s", i, line + 1);
        config_free(&c);
    }
}

static void helps_with_every_key(void **state)
{
    (void)state;
    assert_works(parse(NULL, "--nonsense --help", 1), err);
    assert_int_equal(c.action, CONFIG_HELP);
    config_free(&c);
    assert_works(parse(NULL, "--version", 1), err);
    assert_int_equal(c.action, CONFIG_VERSION);
    config_free(&c);
    FILE *out = fmemopen(printed, sizeof printed, "w");
    struct manual *m = manual_of_train();
    manual_print_help(m, out);
    manual_free(m);
    fclose(out);
    assert_null(strstr(printed, "(null)"));
    for (int i = 0; i < config_table_rows; i++)
        if (config_table[i].name)
            assert_non_null(strstr(printed, config_option_name(&config_table[i])));
    size_t width;
    for (const char *line = printed; *line; line += width + (line[width] == '\n')) {
        width = strcspn(line, "\n");
        assert_in_range(width, 0, 100);
    }
}

/* The exit status: whether what is wrong stands on the command line. */
static void tells_usage_from_input(void **state)
{
    (void)state;
    static const struct {
        const char *file, *options;
        bool usage;
    } cases[] = {
        {NULL, "--nonsense 1", true},
        {NULL, "stray", true},
        {NULL, COMPLETE "--seed", true},
        {NULL, COMPLETE "--seed many", true},
        {NULL, COMPLETE "--fp16", true},
        {NULL, COMPLETE "--use_cpu --device cuda", true},
        {NULL, "--task_name sst2", true},
        {NULL, "--config /nowhere.json", false},
        {"{\"seed\": \"many\"}", COMPLETE, false},
        {"{\"nonsense\": 1}", COMPLETE, false},
        {"{\"fp16\": {\"enabled\": true}}", COMPLETE, false},
        {"{\"training_arguments\": {\"use_cpu\": true, \"device\": \"cuda\"}}", COMPLETE, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err = (struct zf_error){0};
        assert_false(cases[i].file ? parse_text(cases[i].file, cases[i].options, 1)
                                   : parse(NULL, cases[i].options, 1));
        if (err.usage != cases[i].usage)
            fail_msg("\"%s\" is%s taken for a fault of the command line", err.text,
                     err.usage ? "" : " not");
    }
}

static void reads_times(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"45s", 45},    {"0.5s", 0.5},      {"90m", 5400},   {"36h", 129600},
                {"2d", 172800}, {"01:30:00", 5400}, {"0:00:10", 10}, {"1-12:00:00", 129600}};
    static const char *const bad[] = {
        "90",     "1:30", "0s",   "-5m", "5 m",     "m",        "1h30m",    "1:60:00",   "1:00:60",
        "1-2:00", "inf",  "1e3s", "nan", "1:2:3:4", "00:00:00", "1:00:00x", "1-2-3:4:5", "."};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char *options = zf_format(COMPLETE "--max_runtime %s", good[i].text);
        assert_works(parse(NULL, options, 1), err);
        assert_true(c.max_seconds == good[i].seconds);
        config_free(&c);
        free(options);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *said =
            zf_format("--max_runtime is \"%s\", but it is a time: a number with s, m, h or d "
                      "behind it, or [days-]hours:minutes:seconds, above 0",
                      bad[i]);
        char *option = zf_format("--max_runtime=%s", bad[i]), *name = zf_strdup("zf-train");
        char *argv[] = {name, option};
        assert_false(config_parse(&c, 2, argv, 1, &err));
        assert_string_equal(err.text, said);
        free(said);
        free(option);
        free(name);
    }
    assert_false(parse_text("{\"training_arguments\": {\"max_runtime\": 90}}", COMPLETE, 1));
    assert_says(err, ":1: training_arguments.max_runtime is 90, but it is a time: a number with");
    assert_works(parse(NULL, COMPLETE, 1), err);
    assert_true(c.max_seconds == 0 && c.ddp_timeout == 300);
    config_free(&c);
}

int main(void)
{
    close(mkstemp(path));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(reads_deepspeed),
        cmocka_unit_test(reads_how_the_link_is_crossed),
        cmocka_unit_test(reads_zenflow),
        cmocka_unit_test(reads_auto),
        cmocka_unit_test(options_outrank_the_file),
        cmocka_unit_test(own_examples_put_the_files_task_aside),
        cmocka_unit_test(use_cpu_is_a_device),
        cmocka_unit_test(does_what_is_asked_for),
        cmocka_unit_test(takes_every_argument_of_transformers),
        cmocka_unit_test(takes_every_key_of_deepspeed),
        cmocka_unit_test(batch_triple),
        cmocka_unit_test(resolves_steps),
        cmocka_unit_test(resolves_shares_of_steps),
        cmocka_unit_test(settles_what_is_best),
        cmocka_unit_test(settles_evaluation),
        cmocka_unit_test(refuses_unknown_keys),
        cmocka_unit_test(refuses_bad_values),
        cmocka_unit_test(refuses_what_is_not_here),
        cmocka_unit_test(refuses_contradictions),
        cmocka_unit_test(refuses_what_zenflow_cannot_do),
        cmocka_unit_test(refuses_incomplete_runs),
        cmocka_unit_test(stage_3_divides_parameters),
        cmocka_unit_test(warns_once_a_key),
        cmocka_unit_test(leaves_places_open),
        cmocka_unit_test(writes_the_same_run),
        cmocka_unit_test(ready_configurations_parse),
        cmocka_unit_test(shows_where_values_come_from),
        cmocka_unit_test(origins_are_true_after_resolving),
        cmocka_unit_test(helps_with_every_key),
        cmocka_unit_test(tells_usage_from_input),
        cmocka_unit_test(reads_times),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
