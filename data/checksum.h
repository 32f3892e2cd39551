/* XXH3-128 (libxxhash): finds what has changed by accident, at the memory's speed. It proves
 * nothing against who wants to deceive. */
#ifndef ZF_DATA_CHECKSUM_H
#define ZF_DATA_CHECKSUM_H

#include "data/error.h"

#include <stddef.h>

#define CHECKSUM_TEXT  33 /* 32 hexadecimal digits, as xxhsum -H2 prints them, and a NUL */
#define CHECKSUM_PIECE ((size_t)1 << 20)

struct checksum {
    unsigned char bytes[16];
};

struct checksum checksum_of(const void *data, size_t n);
/* Of two, in this order. */
struct checksum checksum_join(struct checksum a, struct checksum b);
void checksum_text(struct checksum sum, char text[CHECKSUM_TEXT]);

/* Of a file's content, and how many bytes it has. A file of more than CHECKSUM_PIECE bytes has the
 * checksum of its pieces' checksums, one behind the other, so that all threads read it together;
 * the last piece may be shorter. */
bool checksum_file(const char *path, struct checksum *sum, size_t *bytes, struct zf_error *err);

#endif
