/* What the tests of cmd/config share: a configuration that is parsed, the sentence where that
 * fails, and what it has warned of. */
#ifndef ZF_TESTS_UNIT_CONFIG_TESTING_H
#define ZF_TESTS_UNIT_CONFIG_TESTING_H

#include "tests/testing.h"

#include "cmd/config/config.h"
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

/* Between these standard error goes to *captured; then it is added to `warnings`. */
static inline int begin_capture(FILE **captured)
{
    const int old = dup(STDERR_FILENO);
    *captured = tmpfile();
    dup2(fileno(*captured), STDERR_FILENO);
    return old;
}

static inline void end_capture(FILE *captured, int old)
{
    const size_t before = strlen(warnings);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(captured);
    warnings[before + fread(warnings + before, 1, sizeof warnings - 1 - before, captured)] = 0;
    fclose(captured);
}

/* Parses a command line of so many words, the program's own among them. */
static inline bool parse_words(int argc, char **argv, int n_ranks)
{
    FILE *captured;
    const int old = begin_capture(&captured);
    const bool ok = config_parse(&c, argc, argv, n_ranks, &err);
    *warnings = 0;
    end_capture(captured, old);
    return ok;
}

/* What a run does once it knows its examples; adds to `warnings`. */
static inline bool resolve_steps(int examples)
{
    FILE *captured;
    const int old = begin_capture(&captured);
    const bool ok = config_resolve_steps(&c, examples, &err);
    end_capture(captured, old);
    return ok;
}

/* Parses options, which are divided by spaces, after --config `file` unless it is NULL. */
static inline bool parse(const char *file, const char *options, int n_ranks)
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

static inline void write_text(const char *text)
{
    assert_works(file_write(path, text, strlen(text), &err), err);
}

static inline bool parse_text(const char *text, const char *options, int n_ranks)
{
    write_text(text);
    return parse(path, options, n_ranks);
}

static inline int count(const char *text, const char *piece)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, piece)); at++)
        n++;
    return n;
}

/* Of a group of tests: the file that they parse. */
static inline int make_path(void **state)
{
    (void)state;
    return close(mkstemp(path));
}

static inline int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

#endif
