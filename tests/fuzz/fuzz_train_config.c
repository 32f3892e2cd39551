/* Any bytes as a configuration file, with options from its first line where that begins with "--":
 * they are refused with a sentence, or give a configuration that can be printed, written, and read
 * again. */
#include "cmd/config/config.h"
#include "data/file.h"
#include "data/log.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/zf-fuzz-config-XXXXXX";
static char given[64], written[64];

static void remove_folder(void)
{
    unlink(given);
    unlink(written);
    rmdir(folder);
}

static void start(void)
{
    if (!mkdtemp(folder))
        abort();
    snprintf(given, sizeof given, "%s/given.json", folder);
    snprintf(written, sizeof written, "%s/written.json", folder);
    atexit(remove_folder);
    log_set_rank(1); /* no warnings */
}

static bool parse(struct config *c, const char *file, char *options, struct zf_error *err)
{
    char *argv[16] = {(char *)"zf-train", (char *)"--config", (char *)file};
    int argc = 3;
    for (char *word; argc < 16 && (word = strtok_r(options, " ", &options));)
        argv[argc++] = word;
    return config_parse(c, argc, argv, 2, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char options[4096];
    struct config c;
    struct zf_error err;
    char none[] = "";
    if (!*given)
        start();
    const uint8_t *end = size > 2 && data[0] == '-' ? memchr(data, '\n', size) : NULL;
    size_t n = end && end - data < (long)sizeof options ? (size_t)(end - data) : 0;
    memcpy(options, data, n);
    options[n] = 0;
    FILE *file = fopen(given, "wb");
    if (!file || fwrite(data + n, 1, size - n, file) != size - n || fclose(file) != 0)
        abort();
    if (!parse(&c, given, options, &err))
        return 0;
    bool ok = c.action == CONFIG_RUN && config_resolve_steps(&c, 100, &err);
    FILE *sink = fopen("/dev/null", "w");
    config_print(&c, sink);
    fclose(sink);
    if (ok && !config_write(&c, written, &err))
        abort();
    config_free(&c);
    if (ok && !parse(&c, written, none, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    if (ok)
        config_free(&c);
    return 0;
}
