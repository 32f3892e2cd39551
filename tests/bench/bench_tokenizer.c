/* How long a tokenizer takes to load, and how fast it encodes on one thread: a text as a whole and
 * line by line.
 *
 * usage: bench_tokenizer FOLDER TEXT... */
#include "data/alloc.h"
#include "data/file.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPEATS 9

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times)
{
    qsort(times, REPEATS, sizeof *times, ascending);
    return times[REPEATS / 2];
}

static void fail(const struct zf_error *err)
{
    fprintf(stderr, "bench_tokenizer: %s\n", err->text);
    exit(1);
}

static struct tokenizer *bench_load(const char *directory)
{
    double times[REPEATS];
    struct tokenizer *t = NULL;
    struct zf_error err;
    for (int i = 0; i < REPEATS; i++) {
        tokenizer_free(t);
        double start = now_ms();
        t = tokenizer_load(directory, &err);
        times[i] = now_ms() - start;
        if (!t)
            fail(&err);
    }
    printf("load %s: %.1f ms\n", directory, median(times));
    return t;
}

static size_t encode_lines(const struct tokenizer *t, const char *text, size_t n, int *ids)
{
    size_t total = 0;
    for (const char *line = text, *end = text + n; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((stop ? stop : end) - line);
        total += tokenizer_encode(t, line, length, ids, n + 1);
        line += length + 1;
    }
    return total;
}

static void bench_encode(const struct tokenizer *t, const char *path)
{
    double whole[REPEATS], lines[REPEATS];
    char *text;
    size_t n, n_ids = 0;
    struct zf_error err;
    if (!file_read(path, &text, &n, &err))
        fail(&err);
    int *ids = zf_malloc((n + 1) * sizeof *ids);
    for (int i = 0; i < REPEATS; i++) {
        double start = now_ms();
        n_ids = tokenizer_encode(t, text, n, ids, n + 1);
        double middle = now_ms();
        encode_lines(t, text, n, ids);
        whole[i] = middle - start;
        lines[i] = now_ms() - middle;
    }
    printf("%s: %zu bytes, %zu tokens; whole %.1f MB/s, line by line %.1f MB/s\n", path, n, n_ids,
           1e-3 * (double)n / median(whole), 1e-3 * (double)n / median(lines));
    free(ids);
    free(text);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_tokenizer FOLDER TEXT...\n");
        return 1;
    }
    struct tokenizer *t = bench_load(argv[1]);
    for (int i = 2; i < argc; i++)
        bench_encode(t, argv[i]);
    tokenizer_free(t);
    return 0;
}
