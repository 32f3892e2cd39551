/* Any bytes as a tokenizer.json or, where they do not begin as one, as a SentencePiece model of
 * Llama: they are refused with a sentence, or give a tokenizer that works. */
#include "data/alloc.h"
#include "data/file.h"
#include "data/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char folder[] = "/tmp/zf-fuzz-tokenizer-XXXXXX";

static void remove_folder(void)
{
    struct zf_error err;
    file_remove_directory(folder, &err);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    if (!mkdtemp(folder))
        abort();
    atexit(remove_folder);
    return 0;
}

/* Not file_write, which waits for the disk. bytes = NULL: the file is not to be there. */
static void put(const char *name, const void *bytes, size_t n)
{
    char *path = zf_format("%s/%s", folder, name);
    if (!bytes)
        unlink(path);
    FILE *f = bytes ? fopen(path, "wb") : NULL;
    if (bytes && (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0))
        abort();
    free(path);
}

/* As the class says that the length chooses. */
static void put_config(size_t n, bool json)
{
    static const char *const configs[] = {
        "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": true}",
        "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}",
        "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"add_prefix_space\": true}"};
    const char *config = configs[json ? n % 3 : 0];
    put("tokenizer_config.json", config, strlen(config));
}

static void encode(const struct tokenizer *t, const char *text, size_t n)
{
    size_t n_back, n_ids = tokenizer_encode(t, text, n, NULL, 0);
    int *ids = zf_malloc((n_ids + 1) * sizeof *ids);
    if (tokenizer_encode(t, text, n, ids, n_ids) != n_ids)
        abort();
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= tokenizer_vocab_size(t))
            abort();
    free(tokenizer_decode(t, ids, n_ids, &n_back));
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] =
        "Hello  w\xC3\xB6rld\xFF<|endoftext|> 123\n\xE2\x96\x81 e\xCC\x81<s>";
    struct zf_error err = {0};
    bool json = n == 0 || *data == '{';
    put("tokenizer.json", json ? data : NULL, n);
    put("tokenizer.model", json ? NULL : data, n);
    put_config(n, json);
    struct tokenizer *t = tokenizer_load(folder, &err);
    if (!t) {
        if (!strstr(err.text, json ? "tokenizer.json" : "tokenizer.model"))
            abort();
        return 0;
    }
    encode(t, text, sizeof text - 1);
    encode(t, (const char *)data, n < 300 ? n : 300);
    tokenizer_free(t);
    return 0;
}
