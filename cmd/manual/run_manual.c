#include "cmd/answer/options.h"
#include "cmd/manual/manual.h"

struct manual *manual_of_run(void)
{
    struct manual *m =
        manual_create("zf-run", "answers with a trained model: classifies sentences, "
                                "completes texts, talks");
    manual_add_text(m, "Synopsis", true, "  zf-run MODEL [options] [TEXT ...]");
    manual_add_text(
        m, "Description", true,
        "MODEL is a folder that zf-train or Transformers wrote.\n"
        "\n"
        "A classifier answers each TEXT, each row of --file, or without either each line of "
        "standard\n"
        "input, with a line: its label and how probable that is, with a tab between; a model of "
        "scores\n"
        "with the score. A language model goes on with each TEXT, or with standard input; with "
        "--chat\n"
        "it answers each TEXT, or each line, in one conversation.");
    answer_add_options(m);
    manual_add_text(m, "Exit status", true,
                    "  0   all is answered\n"
                    "  1   it failed, and says why in a sentence\n"
                    "  2   the command line is wrong, and it says what");
    manual_add_text(m, "Examples", false,
                    "  zf-run output/intents \"I lost my card\"\n"
                    "  zf-run output/intents --file questions.csv --text_column question\n"
                    "  zf-run output/chat --chat \"What is the capital of Peru?\"\n"
                    "  zf-run output/texts --temperature 0.8 --seed 1 \"The capital of Peru is\"");
    manual_add_text(m, "See also", false, "zf-train(1)");
    return m;
}
