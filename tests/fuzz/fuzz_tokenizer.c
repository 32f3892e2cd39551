/* Any bytes, encoded by tokenizers of several kinds: a call with too little room writes the same
 * ids as far as they fit, and decoding gives the text back, where the tokenizer changes nothing. */
#include "data/alloc.h"
#include "data/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define FIXTURES ZF_TESTS_DIR "/fixtures/tokenizer"

/* What decoding gives: the text; the text but for METASPACEs, which are spaces, and a first one,
 * which is dropped; another one. */
enum back { TEXT, SPACED, ANY };

static struct {
    const char *folder;
    enum back back;
    struct tokenizer *tokenizer;
} kinds[] = {
    {ZF_TESTS_DIR "/../data/sample/tokenizer", TEXT, NULL},
    {FIXTURES "/shapes/llama3", TEXT, NULL},
    {FIXTURES "/shapes/llama2", SPACED, NULL},
    {FIXTURES "/shapes/llama2_model", SPACED, NULL},
    {FIXTURES "/shapes/qwen2", ANY, NULL},
    {FIXTURES "/shapes/smollm2_file", ANY, NULL},
    {FIXTURES "/shapes/odd", ANY, NULL},
    {FIXTURES "/shapes/odd_normalized", ANY, NULL},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static void check(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "fuzz_tokenizer: %s\n", what);
    abort();
}

static void release(void)
{
    for (size_t k = 0; k < N_KINDS; k++)
        tokenizer_free(kinds[k].tokenizer);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    struct zf_error err;
    for (size_t k = 0; k < N_KINDS; k++) {
        kinds[k].tokenizer = tokenizer_load(kinds[k].folder, &err);
        check(kinds[k].tokenizer != NULL, err.text);
    }
    atexit(release);
    return 0;
}

/* Writes the text with spaces for METASPACEs and without a first one; returns its length. */
static size_t unspaced(const char *text, size_t n, char *out)
{
    static const char metaspace[] = "\xE2\x96\x81";
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        bool space = n - i >= 3 && memcmp(text + i, metaspace, 3) == 0;
        out[length++] = space ? ' ' : text[i];
        i += space ? 3 : 1;
    }
    if (length == 0 || *out != ' ')
        return length;
    memmove(out, out + 1, length - 1);
    return length - 1;
}

static void check_back(const struct tokenizer *t, enum back back, const char *text, size_t n,
                       const int *ids, size_t n_ids)
{
    size_t n_back, n_expected = n;
    char *got = tokenizer_decode(t, ids, n_ids, &n_back), *expected = zf_malloc(n + 1);
    memcpy(expected, text, n);
    if (back == SPACED)
        n_expected = unspaced(text, n, expected);
    check(back == ANY || (n_back == n_expected && memcmp(got, expected, n_back) == 0),
          "decoding does not give the text back");
    free(expected);
    free(got);
}

static void check_kind(size_t kind, const char *text, size_t n)
{
    const struct tokenizer *t = kinds[kind].tokenizer;
    size_t room = n / 3, n_ids = tokenizer_encode(t, text, n, NULL, 0);
    int *ids = zf_malloc((n_ids + 1) * sizeof *ids), *some = zf_malloc((room + 1) * sizeof *some);
    check(tokenizer_encode(t, text, n, ids, n_ids) == n_ids, "the count depends on room");
    check(tokenizer_encode(t, text, n, some, room) == n_ids, "the count depends on room");
    size_t n_some = n_ids < room ? n_ids : room;
    check(memcmp(ids, some, n_some * sizeof *ids) == 0, "the ids depend on room");
    for (size_t i = 0; i < n_ids; i++)
        check(ids[i] >= 0 && ids[i] < tokenizer_vocab_size(t), "an id is none");
    check(kinds[kind].back != TEXT || n_ids <= n, "there are more ids than bytes");
    check_back(t, kinds[kind].back, text, n, ids, n_ids);
    free(ids);
    free(some);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    for (size_t k = 0; k < N_KINDS; k++)
        check_kind(k, (const char *)data, n);
    return 0;
}
