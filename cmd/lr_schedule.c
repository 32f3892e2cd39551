#include "cmd/lr_schedule.h"

#include <math.h>

static double share(double part, double whole)
{
    return part / (whole > 1 ? whole : 1);
}

/* transformers/optimization.py: the factor of the base rate. */
static double transformers_factor(const struct config *c, int step)
{
    double after = share(step - c->warmup_steps, c->total_steps - c->warmup_steps);
    if (c->lr_scheduler_type == LR_CONSTANT)
        return 1;
    if (step < c->warmup_steps)
        return share(step, c->warmup_steps);
    switch (c->lr_scheduler_type) {
    case LR_LINEAR:
        return fmax(0, share(c->total_steps - step, c->total_steps - c->warmup_steps));
    case LR_COSINE:
        return fmax(0, 0.5 * (1 + cos(M_PI * after)));
    default:
        return 1;
    }
}

/* deepspeed/runtime/lr_schedules.py: how far warm-up has come at its iteration i, from 0 to 1. */
static double warmup_share(const struct scheduler_config *s, int i)
{
    int steps = s->warmup_num_steps > 2 ? s->warmup_num_steps : 2;
    return s->warmup_type == WARMUP_LINEAR ? (double)i / steps : log(i + 1) / log(steps);
}

static double deepspeed_cosine(const struct scheduler_config *s, int i, int warmup)
{
    if (i < 0)
        return 0;
    if (i < warmup)
        return s->warmup_min_ratio + warmup_share(s, i) * (1 - s->warmup_min_ratio);
    double progress = fmin(1, share(i - warmup + 1, s->total_num_steps - warmup));
    return s->cos_min_ratio + (1 - s->cos_min_ratio) * (1 + cos(M_PI * progress)) / 2;
}

/* DeepSpeed advances its scheduler after each step, from iteration -1: step 0 runs at the start
 * value, step s at iteration s - 1. */
static double deepspeed_rate(const struct config *c, int step)
{
    const struct scheduler_config *s = &c->scheduler;
    int i = step - 1, warmup = s->warmup_num_steps > 2 ? s->warmup_num_steps : 2;
    double gamma = 1;
    if (s->type == DS_WARMUP_COSINE_LR)
        return c->learning_rate * deepspeed_cosine(s, i, warmup);
    if (i < 0)
        gamma = 0;
    else if (i < warmup)
        gamma = warmup_share(s, i);
    else if (s->type == DS_WARMUP_DECAY_LR)
        gamma = fmax(0, share(s->total_num_steps - i, s->total_num_steps - warmup));
    return s->warmup_min_lr + (s->warmup_max_lr - s->warmup_min_lr) * gamma;
}

float lr_at_step(const struct config *config, int step)
{
    return (float)(config->scheduler.type == DS_SCHEDULER_NONE
                       ? config->learning_rate * transformers_factor(config, step)
                       : deepspeed_rate(config, step));
}
