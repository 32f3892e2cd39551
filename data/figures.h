/* Numbers as people write them. */
#ifndef ZF_DATA_FIGURES_H
#define ZF_DATA_FIGURES_H

struct figure {
    char text[40];
};

/* "24,960": rounded to a whole number. */
struct figure figure_count(double n);
/* 0.973 is "97.3%". */
struct figure figure_share(double share);
/* "0:04", "2:13", "5:12:44", "2 d 5 h". */
struct figure figure_time(double seconds);

#endif
