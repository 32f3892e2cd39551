#include "offload/engine/schedule.h"

#include <math.h>

/* Products such as 0.29 * 100 fall just below the whole number that is meant. */
#define RATIO_SLACK 1e-9
/* What keeps up has a tenth of its time to spare. */
#define SPARE 1.1

struct range schedule_owned(int matrix, int rows, int ranks, int rank)
{
    int r = rows < ranks ? (rank + matrix) % ranks : rank;
    return (struct range){(int)((long)rows * r / ranks), (int)((long)rows * (r + 1) / ranks)};
}

int schedule_owner(int matrix, int rows, int ranks, int row)
{
    int r = (int)((long)row * ranks / rows);
    while ((long)rows * (r + 1) / ranks <= row)
        r++;
    return rows < ranks ? (r + ranks - matrix % ranks) % ranks : r;
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

int schedule_least_interval(double seconds, double step_seconds, int longest)
{
    const double work = SPARE * seconds;
    if (work > step_seconds * longest)
        return longest;
    return work > step_seconds ? (int)ceil(work / step_seconds) : 1;
}
