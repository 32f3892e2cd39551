/* A tokenizer for tests, whose tokens are bytes. */
#ifndef ZF_TESTS_UNIT_BYTE_TOKENIZER_H
#define ZF_TESTS_UNIT_BYTE_TOKENIZER_H

#include "tests/testing.h"

#include "data/file.h"
#include "data/json.h"
#include "data/tokenizer.h"

/* The code point that stands for a byte in GPT-2's vocabulary files: the printable ones stand for
 * themselves, the others for U+0100 and on. */
static inline int code_of_byte(int byte)
{
    int others = 0;
    for (int b = 0; b <= byte; b++) {
        bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte && printable)
            return b;
        others += !printable;
    }
    return 255 + others;
}

/* Bytes as tokens: a tokenizer without merges, whose end-of-text id is 256. */
static inline struct tokenizer *make_byte_tokenizer(const char *folder)
{
    struct zf_error err;
    char path[128], merges[] = "#version: 0.2\n";
    json_t *vocab = json_object();
    for (int byte = 0; byte < 256; byte++) {
        int code = code_of_byte(byte);
        char text[3] = {(char)code, 0, 0};
        if (code >= 0x80) {
            text[0] = (char)(0xC0 | code >> 6);
            text[1] = (char)(0x80 | (code & 63));
        }
        json_object_set_new(vocab, text, json_integer(byte));
    }
    json_object_set_new(vocab, "<|endoftext|>", json_integer(256));
    snprintf(path, sizeof path, "%s/vocab.json", folder);
    assert_int_equal(json_dump_file(vocab, path, 0), 0);
    json_decref(vocab);
    snprintf(path, sizeof path, "%s/merges.txt", folder);
    assert_works(file_write(path, merges, strlen(merges), &err), err);
    struct tokenizer *t = tokenizer_load(folder, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

#endif
