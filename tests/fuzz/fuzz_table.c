/* libFuzzer: any bytes as a person's own examples. The first byte picks the format. */
#include "data/file.h"
#include "data/own.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* As run_data.c does, with the columns that are found. */
static void use(struct table *t)
{
    struct own_columns columns = {0};
    struct own_labels labels = {0};
    struct glue_data data;
    struct zf_error err;
    int row;
    bool scores;
    if (own_find_columns(&columns, t, true, &err) &&
        own_labels_add(&labels, t, columns.label, &row, &err) &&
        own_tell_scores(t, columns.label, &scores, &err)) {
        if (own_examples(&data, t, &columns, scores ? NULL : &labels, &err)) {
            for (int i = 0; i < data.n_examples; i++)
                if (strlen(data.examples[i].sentence[0]) == SIZE_MAX)
                    abort();
            glue_free(&data);
        }
    }
    own_labels_free(&labels);
}

static char folder[] = "/dev/shm/zf-fuzz-table-XXXXXX";

static void remove_folder(void)
{
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const endings[] = {"csv", "tsv", "jsonl", "json"};
    static bool made;
    char path[64];
    struct table t;
    struct zf_error err;
    if (n == 0)
        return 0;
    if (!made && (!mkdtemp(folder) || atexit(remove_folder) != 0))
        abort();
    made = true;
    snprintf(path, sizeof path, "%s/a.%s", folder, endings[bytes[0] % 4]);
    if (!file_write(path, bytes + 1, n - 1, &err))
        abort();
    if (table_read(&t, path, &err)) {
        use(&t);
        table_free(&t);
    }
    unlink(path);
    return 0;
}
