/* report.html: one file with all that it shows, for a browser without a network. What a run has to
 * tell is JSON within it, which the page's own script draws; so a page can be read back, and runs
 * of several pages put on one. */
#ifndef ZF_CMD_REPORT_PAGE_H
#define ZF_CMD_REPORT_PAGE_H

#include "data/error.h"

#include <jansson.h>

/* runs: an array. The page takes the place of what was there. */
bool page_write(const char *path, const json_t *runs, struct zf_error *err);
/* The runs of a page; the caller releases them. NULL and a sentence where it is none. */
json_t *page_read(const char *path, struct zf_error *err);

#endif
