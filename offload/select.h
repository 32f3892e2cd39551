/* Which channels of a matrix are important: those with the greatest gradient norms (ZenFlow,
 * arXiv 2505.12242, section 3.2). */
#ifndef ZF_OFFLOAD_SELECT_H
#define ZF_OFFLOAD_SELECT_H

/* floor(ratio * channels), but at least 1 where ratio > 0. */
int select_count(double ratio, int channels);

/* important[i] = 1 for the k greatest of squared_norms[0..n), ties to the lower index; else 0. */
void select_top(const float *squared_norms, int n, int k, unsigned char *important);

#endif
