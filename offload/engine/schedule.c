#include "offload/engine/schedule.h"

#include <math.h>

/* Products such as 0.29 * 100 fall just below the whole number that is meant. */
#define RATIO_SLACK 1e-9
/* What keeps up has a tenth of its time to spare. */
#define SPARE 1.1

int schedule_part(int rows, int ranks)
{
    return (rows + ranks - 1) / ranks;
}

struct range schedule_owned(int matrix, int rows, int ranks, int rank)
{
    const int part = schedule_part(rows, ranks), first = rank * part;
    if (rows == 1)
        return (struct range){0, schedule_owner(matrix, rows, ranks, 0) == rank};
    if (first >= rows)
        return (struct range){0, 0};
    return (struct range){first, first + part < rows ? first + part : rows};
}

int schedule_owner(int matrix, int rows, int ranks, int row)
{
    return rows == 1 ? ranks - 1 - matrix % ranks : row / schedule_part(rows, ranks);
}

bool schedule_closes(int group, int elapsed, int interval, bool stagger)
{
    return elapsed % interval == (stagger ? group : interval - 1);
}

int schedule_important(double ratio, int channels)
{
    int k = (int)(ratio * channels + RATIO_SLACK);
    return ratio > 0 && k < 1 ? 1 : k;
}

int schedule_room(int important, int owned, int channels)
{
    const double share = (double)important * owned / channels;
    const int room = (int)ceil(share + 4 * sqrt(share)),
              most = owned < important ? owned : important;
    return room < most ? room : most;
}

int schedule_least_interval(double seconds, double each, double step_seconds, int longest)
{
    const double least = (SPARE - 1) * each, rest = step_seconds - SPARE * each;
    const double work = SPARE * seconds, room = rest > least ? rest : least;
    if (work > room * longest)
        return longest;
    return work > room ? (int)ceil(work / room) : 1;
}
