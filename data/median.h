#ifndef ZF_DATA_MEDIAN_H
#define ZF_DATA_MEDIAN_H

/* Of n > 0 values, in any order; the mean of the middle two where n is even. */
double median_of(const double *values, int n);

#endif
