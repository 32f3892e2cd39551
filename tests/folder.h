/* A folder that is empty when a test program, or each of its tests, begins: for cmocka's set-up and
 * teardown. */
#ifndef ZF_TESTS_FOLDER_H
#define ZF_TESTS_FOLDER_H

#include "tests/testing.h"

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

#endif
