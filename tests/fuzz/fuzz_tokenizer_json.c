/* Any bytes as a tokenizer.json: it is refused with a sentence, or gives a tokenizer that works. */
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

/* Not file_write, which waits for the disk. */
static void write_input(const uint8_t *data, size_t n)
{
    char *path = zf_format("%s/tokenizer.json", folder);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        abort();
    free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "Hello  w\xC3\xB6rld\xFF<|endoftext|> 123\n";
    struct zf_error err = {""};
    size_t n_back;
    int ids[256];
    write_input(data, n);
    struct tokenizer *t = tokenizer_load(folder, &err);
    if (!t) {
        if (!strstr(err.text, "tokenizer.json"))
            abort();
        return 0;
    }
    size_t n_ids = tokenizer_encode(t, text, sizeof text - 1, ids, 256);
    free(tokenizer_decode(t, ids, n_ids < 256 ? n_ids : 256, &n_back));
    tokenizer_free(t);
    return 0;
}
