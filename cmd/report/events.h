/* TensorBoard's event files, as torch.utils.tensorboard and TensorFlow write them: records of a
 * length, its CRC-32C, an Event message of Protocol Buffers and its CRC-32C. The fields are those
 * of tensorboard/compat/proto (event.proto, summary.proto, tensor.proto).
 *
 * A folder may hold several files, of a run that was resumed: TensorBoard reads them in the order
 * of their names. One may begin with the step from which on what earlier ones hold counts no more,
 * since it is done again. */
#ifndef ZF_CMD_REPORT_EVENTS_H
#define ZF_CMD_REPORT_EVENTS_H

#include "data/error.h"

#include <stdio.h>

struct events {
    FILE *file;
    char *path;
};

/* Begins events.out.tfevents.TIME.HOST.PID.N in folder, which is made if it is not there, with a
 * name behind those that are in it. first_step: the first that is done again; -1: none is. */
bool events_create(struct events *e, const char *folder, long first_step, struct zf_error *err);
/* Nothing where *e is all zero. */
void events_close(struct events *e);

/* Buffered until events_flush, which says whether all has been written. wall_time: seconds since
 * 1970. */
void events_begin(FILE *file, double wall_time, long first_step);
void events_scalar(FILE *file, double wall_time, long step, const char *tag, double value);
/* TensorBoard shows it, as Markdown, among the texts. */
void events_text(FILE *file, double wall_time, long step, const char *tag, const char *text);
bool events_flush(const struct events *e, struct zf_error *err);

/* Seconds since 1970, for wall_time. */
double events_now(void);

#endif
