/* What crosses the link, what ranks sum, and what lies in host memory, to the byte. */
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/shared.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "offload/engine/internal.h"

#include <mpi.h>

/* Bytes of the exchange with this many groups, one of which is in flight, by counting rows: each
 * matrix has room for its largest group, and begins at a multiple of 8 elements. */
static size_t ring_bytes(const struct problem *p, int interval, size_t element)
{
    size_t bytes = 0;
    for (int k = 0; k < p->table.n_params; k++) {
        const struct param *q = &p->table.params[k];
        const struct matrix_part part = {k, 0, q->rows, q->cols};
        const struct row_groups groups = row_groups_of(&part, interval);
        int rows[ENGINE_MAX_INTERVAL] = {0}, most = 0;
        for (int row = 0; row < q->rows && q->kind == PARAM_MATRIX; row++) {
            int *mine = &rows[row_groups_group(&groups, row)];
            most = ++*mine > most ? *mine : most;
        }
        bytes += element * (size_t)((most * q->cols + 7) / 8 * 8);
    }
    return bytes;
}

/* Staged gradients, each matrix's at a multiple of 8 elements. */
static size_t staged_bytes(const struct problem *p, size_t element)
{
    size_t bytes = 0;
    for (int k = 0; k < p->table.n_params; k++)
        if (p->table.params[k].kind == PARAM_MATRIX)
            bytes += element * ((p->table.params[k].n_elements + 7) / 8 * 8);
    return bytes;
}

/* Link bytes are what the formula says: with windows on the device 1 / S of the model each way and
 * step, or (1 - k) / S without copies, in the staggered schedule nearly the same in each; at S = 4
 * at most 0.6 model sizes. */
void I8(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(10); seed++) {
        struct engine_config c = problem_zenflow_config();
        struct problem p;
        bool on_host = seed % 2;
        c.bf16 = true;
        c.accumulate = on_host ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
        c.zero_copy = seed / 2 % 2;
        problem_create(&p, seed, alone, &c);
        size_t important = 0, model = 2 * p.table.n_parameters, traffic = 0;
        struct engine_memory memory = engine_memory(p.engine);
        size_t all = 2 * memory.host_elements, channels = 0;
        for (int k = 0; k < p.table.n_params; k++)
            channels += (size_t)p.table.params[k].rows;
        /* parameter, remainder, m, v and the bf16 exchange; with host windows, those and staged
         * gradients */
        assert_int_equal(memory.host,
                         (on_host ? 16 : 12) * memory.host_elements + ring_bytes(&p, 4, 2) +
                             (on_host ? staged_bytes(&p, 2) : 0) + sizeof(uint32_t) * channels);
        const struct engine_host_use *use = &memory.host_use;
        assert_int_equal(use->optimizer, 12 * memory.host_elements + sizeof(uint32_t) * channels);
        assert_int_equal(use->parameters, 0);
        assert_int_equal(use->windows, on_host ? 4 * memory.host_elements : 0);
        assert_int_equal(use->staged, on_host ? staged_bytes(&p, 2) : 0);
        assert_int_equal(use->exchange, ring_bytes(&p, 4, 2));
        for (int k = 0; k < p.table.n_params; k++) {
            const struct param *q = &p.table.params[k];
            int rows = q->kind == PARAM_MATRIX ? (int)(0.1 * q->rows + 1e-9) : 0;
            if (q->kind == PARAM_MATRIX)
                important += 2 * (size_t)(rows < 1 ? 1 : rows) * (size_t)q->cols;
        }
        if (!c.zero_copy && !p.device->unified)
            important = 0; /* their places are copied with the others' */
        run(&p, 0, 8);
        for (int step = 8; step < 8 + 40; step++) {
            struct step_report r = problem_step(&p, step);
            traffic += r.bytes_down + r.bytes_up;
        }
        /* Each deferred channel goes down and up once in four steps; on the host,
         * down every step. */
        size_t expected =
            on_host ? 40 * (all - important) + 10 * (all - important) : 20 * (all - important);
        assert_int_equal(traffic, expected);
        if (!on_host)
            assert_true((double)traffic / 40 <= 0.6 * (double)model);
        problem_destroy(&p);
    }
}

/* Notes that an array lies in the host's state, where no other does. */
static size_t mark(const struct engine *e, unsigned char *taken, const void *array, size_t bytes)
{
    const size_t at = (size_t)((const char *)array - e->host.state);
    assert_true(at + bytes <= e->host.state_bytes);
    for (size_t i = at; i < at + bytes; i++)
        assert_false(taken[i]++);
    return bytes;
}

/* The host's state takes 12 bytes an element of the memory that was allocated for it, the
 * parameter's copy among them, and all of the memory is used: bf16 and 16 bits more, or fp32. */
void host_state(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 8; seed++) {
        struct engine_config c = problem_zenflow_config();
        struct problem p;
        c.bf16 = seed % 2;
        c.accumulate = seed & 2 ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
        problem_create(&p, seed, alone, &c);
        const struct engine *e = p.engine;
        const size_t each = e->config.bf16 ? 2 : 4, window = seed & 2 ? 4 : 0;
        unsigned char *taken = zf_calloc(e->host.state_bytes, 1);
        size_t used = 0;
        for (int k = 0; k < e->n_matrices; k++) {
            const struct matrix *m = &e->matrices[k];
            const size_t n = m->selectable ? owned_elements(m) : 0;
            used += n ? mark(e, taken, m->host.parameters, each * n) : 0;
            used += n && each == 2 ? mark(e, taken, m->host.remainders, 2 * n) : 0;
            used += n ? mark(e, taken, m->host.m, 4 * n) + mark(e, taken, m->host.v, 4 * n) : 0;
            used += n && window ? mark(e, taken, m->host.window, 4 * n) : 0;
            if (k > 0 && n && m[-1].selectable)
                assert_ptr_equal(m->host.parameters,
                                 (char *)m[-1].host.parameters + each * owned_elements(m - 1));
        }
        assert_int_equal(used, (12 + window) * e->host.elements);
        assert_int_equal(used, e->host.state_bytes);
        free(taken);
        problem_destroy(&p);
    }
}

/* What MPI is given to sum: floats for all ranks to have, and for one. The emulator has such a
 * function of its own, and this test none there. */
static size_t given_to_all, given_to_one;

__attribute__((weak)) int MPI_Allreduce(const void *from, void *to, int n, MPI_Datatype type,
                                        MPI_Op op, MPI_Comm ranks)
{
    given_to_all += type == MPI_FLOAT ? sizeof(float) * (size_t)n : 0;
    return PMPI_Allreduce(from, to, n, type, op, ranks);
}

int MPI_Ireduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, int root,
                MPI_Comm ranks, MPI_Request *request)
{
    given_to_one += type == MPI_FLOAT ? sizeof(float) * (size_t)n : 0;
    return PMPI_Ireduce(from, to, n, type, op, root, ranks, request);
}

/* Ranks choose by a norm for each channel: what they sum is what MPI is given, a float for each of
 * the model's channels beside one for each parameter; and one rank sums nothing. */
void summed_bytes(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(8); seed++) {
        struct engine_config c = problem_random_config(seed);
        struct problem p;
        const bool several = comm_size(world) > 1;
        size_t channels = 0;
        problem_create(&p, seed, world, &c);
        for (int k = 0; k < p.table.n_params; k++)
            channels += (size_t)p.table.params[k].rows;
        for (int step = 0; step < 6; step++) {
            given_to_all = given_to_one = 0;
            const struct step_report r = problem_step_unseen(&p, step);
            assert_int_equal(r.bytes_norms, several ? sizeof(float) * channels : 0);
            assert_int_equal(r.bytes_norms, given_to_all);
            assert_int_equal(r.bytes_gradients, several ? sizeof(float) * p.table.n_parameters : 0);
            assert_int_equal(r.bytes_gradients, given_to_one);
            problem_read_params(&p);
        }
        problem_destroy(&p);
    }
}
