/* Seconds of a clock that never goes back: the system's, or another that stands in for it, such as
 * that of a run which is only planned. */
#ifndef ZF_DATA_CLOCK_H
#define ZF_DATA_CLOCK_H

double clock_seconds(void);

/* From now on clock_seconds() is now(argument); NULL: the system's clock again. To be called while
 * no other thread asks for the time. */
void clock_replace(double (*now)(void *), void *argument);

#endif
