#include "tests/property/zenflow/shared.h"

#include "tests/seed.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"

#include <math.h>

bool on_cuda(void)
{
    return problem_device->dtype == DTYPE_BF16;
}

unsigned cases(unsigned on_cpu)
{
    if (in_long_ring())
        return on_cuda() && on_cpu < 50 ? 50 : on_cpu;
    return test_repeats(3 * (on_cuda() && on_cpu > 4 ? 4 : on_cpu));
}

int steps(int on_cpu)
{
    return on_cuda() && on_cpu > 40 ? 40 : on_cpu;
}

double near(double exact)
{
    return on_cuda() ? 2e-3 : exact;
}

double distance(const float *a, const float *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

void assert_same_bits(const struct problem *a, const struct problem *b, const char *what)
{
    if (memcmp(a->params, b->params, sizeof(float) * a->table.n_elements) != 0)
        fail_msg("parameters differ in their bits: %s", what);
}

void run(struct problem *p, int first, int last)
{
    for (int step = first; step < last; step++)
        problem_step(p, step);
}

char *shared_folder(void)
{
    char folder[64] = "/tmp/zf-test-engine-XXXXXX";
    if (comm_rank(world) == 0 && !mkdtemp(folder))
        fail_msg("no temporary folder");
    comm_broadcast(world, folder, sizeof folder, 0);
    return zf_strdup(folder);
}

void remove_shared(char *folder)
{
    struct zf_error err;
    comm_barrier(world);
    if (comm_rank(world) == 0)
        assert_works(file_remove_directory(folder, &err), err);
    free(folder);
}

void resume_at(struct problem *p, struct problem *resumed, const char *folder)
{
    struct zf_error err;
    assert_works(engine_save(p->engine, folder, &err), err);
    problem_read_params(p);
    problem_copy_params(resumed, p);
    assert_works(engine_load(resumed->engine, folder, &err), err);
}
