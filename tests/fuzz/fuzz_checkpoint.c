/* engine_load on any bytes as an optimizer file: it refuses them, or the engine runs, can be saved
 * and loaded again. The first byte says which engine; inputs that are no file of its become one,
 * which hostile.h then changes where it means something. No checksum stands before it: whoever
 * writes such a file can write that too. */
#include "data/alloc.h"
#include "data/file.h"
#include "tests/property/zenflow/hostile.h"

#include <stdlib.h>
#include <string.h>

#define ENGINES 8

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t capacity, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t capacity);

static struct engine_problem {
    struct problem problem;
    char *file; /* what it has saved */
    size_t bytes;
} engines[ENGINES];
static char folder[64], *path;

static void remove_folder(void)
{
    struct zf_error err;
    file_remove_directory(folder, &err);
}

/* Engines of all kinds, each some steps on its way. */
static void start(void)
{
    struct zf_error err;
    struct comm *comm = comm_create_alone();
    problem_device = device_cpu(1);
    comm_attach(comm, problem_device);
    strcpy(folder, "/tmp/zf-fuzz-checkpoint-XXXXXX");
    if (!mkdtemp(folder))
        abort();
    atexit(remove_folder);
    path = zf_format("%s/optimizer-00001-of-00001.safetensors", folder);
    for (unsigned i = 0; i < ENGINES; i++) {
        struct engine_config c = problem_random_config(i);
        c.topk_ratio = 0.1 + 0.1 * i;
        if (i == ENGINES - 1) {
            c.update_interval = 0;
            c.auto_ratio = 0.5;
        }
        problem_create(&engines[i].problem, i, comm, &c);
        for (int step = 0; step < 3 + (int)i; step++)
            problem_step(&engines[i].problem, step);
        if (!engine_save(engines[i].problem.engine, folder, &err) ||
            !file_read(path, &engines[i].file, &engines[i].bytes, &err))
            abort();
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t capacity, unsigned seed)
{
    if (!path)
        start();
    const struct engine_problem *e = &engines[n ? *bytes % ENGINES : seed % ENGINES];
    if (n < 64 && e->bytes + 1 <= capacity) {
        bytes[0] = (uint8_t)(e - engines);
        memcpy(bytes + 1, e->file, e->bytes);
        n = e->bytes + 1;
    }
    if (seed % 8 == 0)
        return LLVMFuzzerMutate(bytes, n, capacity);
    return 1 + hostile_change(bytes + 1, n - 1, capacity - 1, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct zf_error err;
    if (!path)
        start();
    if (n < 1)
        return 0;
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes + 1, 1, n - 1, file) != n - 1 || fclose(file) != 0)
        abort();
    hostile_load(&engines[*bytes % ENGINES].problem, folder, &err);
    return 0;
}
