/* gpt_config_load on any bytes: it refuses them, or the configuration is one that can be saved and
 * loaded again, and whose sizes multiply without overflow. */
#include "data/file.h"
#include "model/gpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static char directory[64];

static void remove_files(void)
{
    struct zf_error err;
    file_remove_directory(directory, &err);
}

static const char *make_directory(void)
{
    if (!directory[0]) {
        snprintf(directory, sizeof directory, "/tmp/zf-fuzz-config-XXXXXX");
        if (!mkdtemp(directory))
            abort();
        atexit(remove_files);
    }
    return directory;
}

static void must(bool truth)
{
    if (!truth)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct zf_error err;
    struct gpt_config c, again;
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", make_directory());
    FILE *f = fopen(path, "wb");
    must(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    if (!gpt_config_load(&c, directory, &err))
        return 0;
    const struct heads h = gpt_heads(&c);
    must(h.head_dim > 0 && h.n_head % h.n_kv_head == 0 && c.eos_token_id < c.vocab_size);
    must(!c.parts.rotary || (h.head_dim % 2 == 0 && c.rope.theta > 1));
    must((long long)c.vocab_size * c.n_embd < 1LL << 41);
    must(gpt_config_save(&c, directory, NULL, &err));
    must(gpt_config_load(&again, directory, &err));
    must(again.n_inner == c.n_inner && again.layer_norm_epsilon == c.layer_norm_epsilon);
    must(again.n_kv_heads == c.n_kv_heads && again.head_dim == c.head_dim);
    must(again.window == c.window && again.rope.type == c.rope.type);
    return 0;
}
