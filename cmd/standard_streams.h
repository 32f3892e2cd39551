/* Standard output as a result: a program that could not write it has not done what it was to do. */
#ifndef ZF_CMD_STANDARD_STREAMS_H
#define ZF_CMD_STANDARD_STREAMS_H

#include "data/error.h"

/* Before any file is opened, which would take a closed stream's number. Fails where standard output
 * is closed. From here on a file that grows beyond the limit for files is a fault of writing, and
 * no signal. */
bool standard_streams_begin(struct zf_error *err);
/* Whether all that was printed has been written. */
bool standard_streams_end(struct zf_error *err);

#endif
