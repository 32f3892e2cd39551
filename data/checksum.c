#include "data/checksum.h"

#include "data/alloc.h"
#include "data/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

struct checksum checksum_of(const void *data, size_t n)
{
    struct checksum sum;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, n));
    memcpy(sum.bytes, canonical.digest, sizeof sum.bytes);
    return sum;
}

struct checksum checksum_join(struct checksum a, struct checksum b)
{
    const struct checksum both[] = {a, b};
    return checksum_of(both, sizeof both);
}

void checksum_text(struct checksum sum, char text[CHECKSUM_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof sum.bytes; i++) {
        text[2 * i] = digits[sum.bytes[i] >> 4];
        text[2 * i + 1] = digits[sum.bytes[i] & 15];
    }
    text[CHECKSUM_TEXT - 1] = 0;
}

/* Reads n bytes from `at` on; returns 0, or what went wrong. */
static int read_piece(int fd, char *to, size_t n, size_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, to + done, n - done, (off_t)(at + done));
        if (got == 0)
            return ENODATA; /* it has become shorter */
        if (got < 0 && errno != EINTR)
            return errno;
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

/* pieces: one checksum for each */
static int sum_pieces(int fd, size_t bytes, size_t n, struct checksum *pieces)
{
    int fault = 0;
#pragma omp parallel if (n > 1)
    {
        char *piece = zf_malloc(bytes < CHECKSUM_PIECE ? bytes : CHECKSUM_PIECE);
#pragma omp for schedule(dynamic, 8)
        for (size_t i = 0; i < n; i++) {
            const size_t at = i * CHECKSUM_PIECE;
            const size_t size = bytes - at < CHECKSUM_PIECE ? bytes - at : CHECKSUM_PIECE;
            const int why = read_piece(fd, piece, size, at);
            if (why == 0)
                pieces[i] = checksum_of(piece, size);
            else
#pragma omp atomic write
                fault = why;
        }
        free(piece);
    }
    return fault;
}

bool checksum_file(const char *path, struct checksum *sum, size_t *bytes, struct zf_error *err)
{
    int fd = file_open(path, bytes, err);
    if (fd < 0)
        return false;
    const size_t n = *bytes == 0 ? 1 : (*bytes + CHECKSUM_PIECE - 1) / CHECKSUM_PIECE;
    struct checksum *pieces = zf_malloc(n * sizeof *pieces);
    const int fault = sum_pieces(fd, *bytes, n, pieces);
    *sum = n == 1 ? pieces[0] : checksum_of(pieces, n * sizeof *pieces);
    free(pieces);
    close(fd);
    return !fault || zf_fail(err, "%s: cannot be read: %s", path, strerror(fault));
}
