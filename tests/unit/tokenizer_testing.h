/* A tokenizer's files in a test's own folder, and what is made of them. */
#ifndef ZF_TESTS_TOKENIZER_TESTING_H
#define ZF_TESTS_TOKENIZER_TESTING_H

#include "tests/folder.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/tokenizer.h"

#define FIXTURES ZF_TESTS_DIR "/fixtures/tokenizer"
#define SHAPES   FIXTURES "/shapes"
#define SAMPLE   ZF_TESTS_DIR "/../data/sample/tokenizer"

static inline void put(const char *name, const char *text)
{
    struct zf_error err;
    char *path = zf_format("%s/%s", folder, name);
    assert_works(file_write(path, text, strlen(text), &err), err);
    free(path);
}

static inline int remove_file(const char *name)
{
    char *path = zf_format("%s/%s", folder, name);
    int failed = unlink(path);
    free(path);
    return failed;
}

static inline void copy(const char *from, const char *name)
{
    char *path = zf_format("%s/%s", folder, name);
    copy_file(from, path);
    free(path);
}

static inline bool is_there(const char *directory, const char *name)
{
    char *path = zf_format("%s/%s", directory, name);
    bool there = file_exists(path);
    free(path);
    return there;
}

static inline struct tokenizer *load(const char *directory)
{
    struct zf_error err;
    struct tokenizer *t = tokenizer_load(directory, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

/* Loading `folder` fails with a sentence that holds this. */
static inline void refuses(const char *piece)
{
    struct zf_error err;
    struct tokenizer *t = tokenizer_load(folder, &err);
    if (t)
        fail_msg("this was loaded, without \"%s\"", piece);
    assert_says(err, piece);
    assert_says(err, folder);
}

static const char sentence[] = "The old river <|endoftext|> carries\t\xE6\x97\xA5\xE6\x9C\xAC.";

#define in_folder(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

#endif
