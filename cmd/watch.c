#include "cmd/watch.h"

#include <math.h>

bool watch_is_better(double a, double b, bool greater_is_better)
{
    return greater_is_better ? a > b : a < b;
}

void watch_take(struct watch *w, double value, bool greater_is_better, double threshold)
{
    const bool better = !w->any || watch_is_better(value, w->best, greater_is_better);
    const bool enough = !w->any || (better && fabs(value - w->best) > threshold);
    w->waited = enough ? 0 : w->waited + 1;
    w->best = better ? value : w->best;
    w->any = true;
}
