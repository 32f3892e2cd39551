/* The host's state in runs that are apart, in place of offload/host/state.c: whole ones in each
 * array lie from its end to its beginning, so nothing that looks past a run, or beside
 * host_adam_state, finds what it looks for. The engine's invariants run over it as over the other
 * (zenflow_*_scattered). */
#include "offload/host/adam.h"

#define RUN ((size_t)37) /* fits no row, no vector and no chunk */

struct host_adam_state host_adam_state(const struct host_adam_matrix *matrix, size_t first,
                                       size_t most)
{
    const size_t elements = matrix->rows * matrix->cols, runs = elements / RUN;
    const size_t run = first / RUN, offset = first % RUN, tail = runs * RUN;
    const size_t at = first < tail ? (runs - 1 - run) * RUN + offset : first;
    const size_t left = (first < tail ? RUN : elements - tail) - offset;
    return (struct host_adam_state){
        .parameters = (char *)matrix->parameters + at * dtype_size(matrix->dtype),
        .remainders = matrix->remainders ? matrix->remainders + at : NULL,
        .m = matrix->m ? matrix->m + at : NULL,
        .v = matrix->v ? matrix->v + at : NULL,
        .n = most < left ? most : left};
}
