/* What every test program includes: cmocka, and where the files are. */
#ifndef ZF_TESTS_TESTING_H
#define ZF_TESTS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Asserts that a fault's sentence holds a piece of text. */
#define assert_says(err, piece)                                                                    \
    do {                                                                                           \
        if (!strstr((err).text, piece))                                                            \
            fail_msg("the sentence is \"%s\", without \"%s\"", (err).text, piece);                 \
    } while (0)

/* Asserts that a call which takes &err succeeds. */
#define assert_works(call, err)                                                                    \
    do {                                                                                           \
        if (!(call))                                                                               \
            fail_msg("%s: %s", #call, (err).text);                                                 \
    } while (0)

/* Skips the test, saying so, where the shared data folder is absent. */
#define need_shared(path)                                                                          \
    do {                                                                                           \
        if (access(ZF_SHARED_DIR "/" path, R_OK) != 0) {                                           \
            print_message("skipped: %s is not there\n", ZF_SHARED_DIR "/" path);                   \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

static inline void copy_file(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    for (int c; (c = getc(in)) != EOF;)
        putc(c, out);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

#endif
