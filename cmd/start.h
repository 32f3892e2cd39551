/* How long a run takes to the end of its first step, and for what: a line of the log. */
#ifndef ZF_CMD_START_H
#define ZF_CMD_START_H

/* The program begins. */
void start_begin(void);
/* What the time since start_begin, or since the last part, went to. The name is not copied. Without
 * start_begin, and behind start_tell, nothing is noted. */
void start_part(const char *name);
/* Logs all parts, and what they come to. */
void start_tell(void);

#endif
