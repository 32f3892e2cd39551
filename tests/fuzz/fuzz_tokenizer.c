/* Any bytes, encoded by the sample's BPE: decoding gives them back, and a call with too little room
 * writes the same ids as far as they fit. */
#include "data/alloc.h"
#include "data/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct tokenizer *tokenizer;

static void check(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "fuzz_tokenizer: %s\n", what);
    abort();
}

static void release(void)
{
    tokenizer_free(tokenizer);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    struct zf_error err;
    tokenizer = tokenizer_load(ZF_TESTS_DIR "/../data/sample/tokenizer", &err);
    check(tokenizer != NULL, err.text);
    atexit(release);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    size_t room = n / 3, n_back;
    int *ids = zf_malloc((n + 1) * sizeof *ids), *some = zf_malloc((room + 1) * sizeof *some);
    size_t n_ids = tokenizer_encode(tokenizer, text, n, ids, n + 1);
    check(n_ids <= n, "there are more ids than bytes");
    check(tokenizer_encode(tokenizer, text, n, some, room) == n_ids, "the count depends on room");
    size_t n_some = n_ids < room ? n_ids : room;
    check(memcmp(ids, some, n_some * sizeof *ids) == 0, "the ids depend on room");
    char *back = tokenizer_decode(tokenizer, ids, n_ids, &n_back);
    check(n_back == n && memcmp(back, text, n) == 0, "decoding does not give the text back");
    free(back);
    free(ids);
    free(some);
    return 0;
}
