/* libFuzzer: any bytes as the file of any task and split. The first byte picks which. */
#include "data/file.h"
#include "data/glue.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Reads all that the examples point at, so that a sanitizer sees a bad pointer. */
static void touch(const struct glue_data *data, const struct glue_task *task)
{
    size_t length = 0;
    for (int i = 0; i < data->n_examples; i++) {
        for (int k = 0; k < (task->pair ? 2 : 1); k++)
            length += strlen(data->examples[i].sentence[k]);
    }
    if (length == SIZE_MAX)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static int file = -1;
    char path[64];
    struct glue_data data;
    struct zf_error err;
    if (n == 0)
        return 0;
    if (file < 0)
        file = memfd_create("glue.tsv", 0);
    if (ftruncate(file, 0) != 0 || pwrite(file, bytes + 1, n - 1, 0) != (ssize_t)(n - 1))
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    const struct glue_task *task = glue_task_at(bytes[0] % 9);
    enum glue_split split = (enum glue_split)(bytes[0] / 9 % 5);
    if (glue_read_file(&data, task, path, split, &err)) {
        touch(&data, task);
        glue_free(&data);
    }
    return 0;
}
