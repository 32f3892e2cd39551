/* zf-run: answers with a trained model: classifies sentences, completes texts, talks. One process,
 * no MPI. */
#include "cmd/about.h"
#include "cmd/answer/options.h"
#include "cmd/live.h"
#include "cmd/manual/manual.h"
#include "cmd/openmp_spin.h"
#include "cmd/standard_streams.h"
#include "data/address_space.h"
#include "data/terminal.h"

#include <unistd.h>

static bool answer(struct answer_options *options, struct zf_error *err)
{
    struct answerer a;
    address_space_start_threads();
    live_begin(terminal_is_at(STDERR_FILENO));
    live_stage("loading the model", 0);
    bool ok = answerer_open(&a, options, err);
    live_end();
    const bool lm = ok && a.config.head == GPT_HEAD_LM;
    ok = ok && answer_options_settle(options, lm, err) &&
         (lm ? answer_generate(&a, options, err) : answer_classify(&a, options, err));
    answerer_close(&a);
    return ok;
}

static bool act(struct answer_options *options, enum answer_action action, struct zf_error *err)
{
    struct manual *m = NULL;
    switch (action) {
    case ANSWER_HELP:
        manual_print_help(m = manual_of_run(), stdout);
        manual_free(m);
        return true;
    case ANSWER_VERSION:
        about_print_version("zf-run");
        return true;
    case ANSWER:
        break;
    }
    return answer(options, err);
}

int main(int argc, char **argv)
{
    openmp_spin_briefly(argv);
    address_space_begin();
    struct zf_error err = {0};
    struct answer_options options;
    enum answer_action action;
    const bool ok = standard_streams_begin(&err) &&
                    answer_options_read(&options, argc, argv, &action, &err) &&
                    act(&options, action, &err) && standard_streams_end(&err);
    if (!ok)
        fprintf(stderr, "zf-run: %s\n", err.text);
    return ok ? 0 : about_status(&err);
}
