/* Where the host's state of a matrix lies: in its arrays, element behind element. By itself in this
 * file, so that a tier behind them, or a test, can put another in its place. */
#include "offload/host/adam.h"

struct host_adam_state host_adam_state(const struct host_adam_matrix *matrix, size_t first,
                                       size_t most)
{
    return (struct host_adam_state){
        .parameters = (char *)matrix->parameters + first * dtype_size(matrix->dtype),
        .remainders = matrix->remainders ? matrix->remainders + first : NULL,
        .m = matrix->m ? matrix->m + first : NULL,
        .v = matrix->v ? matrix->v + first : NULL,
        .n = most};
}
