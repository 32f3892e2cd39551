/* A fault, as one sentence, written where it is seen.
 *
 * Whatever reads something from outside takes a `struct zf_error *`, returns false (or NULL) on a
 * fault and has filled it; nothing below cmd/ prints or exits. The sentence names the file, the
 * line or key, what was found and what was expected. */
#ifndef ZF_DATA_ERROR_H
#define ZF_DATA_ERROR_H

#include <stdbool.h>

struct zf_error {
    char text[1024]; /* the sentence, without a final newline, fit to be shown (data/show.h); longer
                        ones are cut */
    bool usage;      /* what is wrong stands on the command line, or is missing there */
};

/* Writes the sentence and returns false, so that a caller can say `return zf_fail(err, ...)`. */
bool zf_fail(struct zf_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same of the command line, whose faults have an exit status of their own. */
bool zf_fail_usage(struct zf_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
