/* A folder that is empty when a test program, or each of its tests, begins: for cmocka's set-up and
 * teardown. */
#ifndef ZF_TESTS_FOLDER_H
#define ZF_TESTS_FOLDER_H

#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/zf-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    struct zf_error err;
    return file_remove_directory(folder, &err) ? 0 : -1;
}

/* A file at this path, which begins with a slash, below the folder, as below a root. */
static inline void folder_write(const char *path, const char *text)
{
    struct zf_error err;
    char *file = zf_format("%s%s", folder, path), *above = zf_strdup(file);
    *strrchr(above, '/') = 0;
    assert_works(file_make_directory(above, &err), err);
    assert_works(file_write(file, text, strlen(text), &err), err);
    free(above);
    free(file);
}

#endif
