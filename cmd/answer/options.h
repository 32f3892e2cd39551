/* zf-run's command line. */
#ifndef ZF_CMD_ANSWER_OPTIONS_H
#define ZF_CMD_ANSWER_OPTIONS_H

#include "cmd/answer/answer.h"

struct manual;

enum answer_action { ANSWER, ANSWER_HELP, ANSWER_VERSION };

/* Fills *o, defaults included; its texts are the arguments' own. With *action ANSWER_HELP or
 * ANSWER_VERSION nothing else has been looked at. Fails on what is no option, or lacks its value or
 * has one that cannot be, and without a model. */
bool answer_options_read(struct answer_options *o, int argc, char **argv,
                         enum answer_action *action, struct zf_error *err);
/* Fails where an option is given that belongs to the other kind of model, which would be passed
 * over in silence. Settles what depends on the kind. */
bool answer_options_settle(struct answer_options *o, bool lm, struct zf_error *err);

void answer_add_options(struct manual *m);

#endif
