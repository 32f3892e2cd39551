#include "model/rope.h"

#include <math.h>

#define TURN 6.283185307179586

/* Waves that are shorter than original_positions / high_freq_factor stay, those longer than
 * original_positions / low_freq_factor are divided by factor; between them, something between. */
static double llama3(const struct rope *r, double frequency)
{
    const double waves = r->original_positions * frequency / TURN; /* that fit */
    if (waves > r->high_freq_factor)
        return frequency;
    if (waves < r->low_freq_factor)
        return frequency / r->factor;
    const double share = (waves - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - share) * frequency / r->factor + share * frequency;
}

/* The pair (a fraction) that turns so often within original_positions. */
static double yarn_pair(const struct rope *r, double turns, int head_dim)
{
    return head_dim * log(r->original_positions / (turns * TURN)) / (2 * log(r->theta));
}

static double yarn(const struct rope *r, double frequency, int pair, int head_dim)
{
    double low = yarn_pair(r, r->beta_fast, head_dim), high = yarn_pair(r, r->beta_slow, head_dim);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, head_dim - 1);
    if (high == low)
        high += 0.001;
    const double share = fmin(fmax((pair - low) / (high - low), 0), 1);
    return share * frequency / r->factor + (1 - share) * frequency;
}

static double yarn_scale(const struct rope *r)
{
    if (r->attention_factor > 0)
        return r->attention_factor;
    return r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1;
}

static double frequency_of(const struct rope *r, int pair, int head_dim)
{
    const double frequency = pow(r->theta, -2.0 * pair / head_dim);
    switch (r->type) {
    case ROPE_DEFAULT:
        break;
    case ROPE_LINEAR:
        return frequency / r->factor;
    case ROPE_LLAMA3:
        return llama3(r, frequency);
    case ROPE_YARN:
        return yarn(r, frequency, pair, head_dim);
    }
    return frequency;
}

void rope_frequencies(float *frequency, float *scale, const struct rope *rope, int head_dim)
{
    for (int i = 0; i < head_dim / 2; i++)
        frequency[i] = (float)frequency_of(rope, i, head_dim);
    *scale = rope->type == ROPE_YARN ? (float)yarn_scale(rope) : 1;
}
