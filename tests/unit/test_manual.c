/* cmd/manual: what is told once comes out whole in each form, whatever characters it has. */
#include "tests/testing.h"

#include "cmd/manual/manual.h"

#include <stdlib.h>
#include <string.h>

static struct manual *small(void)
{
    struct manual *m = manual_create("zf-small", "does it's best");
    manual_add_text(m, "Description", true, ".first it's\\so\n\n  example -x\n  two\nlast");
    manual_begin_options(m, "Some", NULL);
    manual_add_option(m, "--word", "red|blue", "it's [one]: of\\two");
    manual_add_option(m, "--on", NULL, "no value");
    manual_add_option(m, "--file", "FILE", "what is read");
    manual_add_option(m, "--many", "N", "a number");
    manual_add_text(m, "Exit status", true, "  0  good");
    manual_add_text(m, "Files", false, "none");
    return m;
}

static struct manual *with_commands(void)
{
    struct manual *m = manual_create("zf-many", "has commands");
    manual_begin_options(m, "first", "one");
    manual_add_option(m, "--mine", "a|b", "of one");
    manual_begin_options(m, "more of the first", "one");
    manual_add_option(m, "--more", NULL, "of one too");
    manual_begin_options(m, "second", "two");
    manual_add_option(m, "--other", NULL, "of two");
    return m;
}

/* What the form prints; the caller frees it. */
static char *printed(struct manual *(*manual)(void),
                     void (*print)(const struct manual *m, FILE *out))
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    struct manual *m = manual();
    print(m, out);
    manual_free(m);
    fclose(out);
    return text;
}

static void assert_prints(struct manual *(*manual)(void),
                          void (*print)(const struct manual *m, FILE *out), const char *expected)
{
    char *text = printed(manual, print);
    assert_string_equal(text, expected);
    free(text);
}

static void help_has_what_is_for_it(void **state)
{
    (void)state;
    assert_prints(small, manual_print_help,
                  ".first it's\\so\n\n  example -x\n  two\nlast\n"
                  "\nSome\n"
                  "  --word red|blue                 it's [one]: of\\two\n"
                  "  --on                            no value\n"
                  "  --file FILE                     what is read\n"
                  "  --many N                        a number\n"
                  "\nExit status\n  0  good\n");
}

static void page_is_roff(void **state)
{
    (void)state;
    assert_prints(small, manual_print_page,
                  ".TH ZF-SMALL 1 \"\" \"zf\\-train " ZF_VERSION "\" \"User Commands\"\n"
                  ".SH NAME\nzf\\-small \\- does it\\(aqs best\n"
                  ".SH DESCRIPTION\n\\&.first it\\(aqs\\eso\n.PP\n.EX\n  example \\-x\n  two\n"
                  ".EE\nlast\n"
                  ".SH OPTIONS\n.SS Some\n"
                  ".TP\n\\fB\\-\\-word\\fR red|blue\\fR\nit\\(aqs [one]: of\\etwo\n"
                  ".TP\n\\fB\\-\\-on\\fR\nno value\n"
                  ".TP\n\\fB\\-\\-file\\fR \\fIFILE\\fR\nwhat is read\n"
                  ".TP\n\\fB\\-\\-many\\fR \\fIN\\fR\na number\n"
                  ".SH EXIT STATUS\n.EX\n  0  good\n.EE\n"
                  ".SH FILES\nnone\n");
}

static void zsh_is_quoted(void **state)
{
    (void)state;
    assert_prints(small, manual_print_zsh,
                  "#compdef zf-small\n_arguments \\\n"
                  "    '--word=[it'\\''s \\[one\\]\\: of\\\\two]:value:(red blue)' \\\n"
                  "    '--on[no value]' \\\n"
                  "    '--file=[what is read]:FILE:_files' \\\n"
                  "    '--many=[a number]:N: ' \\\n"
                  "    '*:file:_files'\n");
}

/* What bash completes after these words, of which the last is being typed. */
static void assert_completes(struct manual *(*manual)(void), const char *function,
                             const char *words, const char *expected)
{
    char path[] = "/tmp/zf-test-manual-XXXXXX", command[512], line[256] = "";
    FILE *script = fdopen(mkstemp(path), "w");
    char *text = printed(manual, manual_print_bash);
    fputs(text, script);
    free(text);
    fprintf(script, "COMP_WORDS=(%s) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n%s\n", words, function);
    fprintf(script, "echo \"${COMPREPLY[*]}\"\n");
    fclose(script);
    snprintf(command, sizeof command, "bash %s", path);
    FILE *shell = popen(command, "r");
    assert_non_null(fgets(line, sizeof line, shell));
    assert_int_equal(pclose(shell), 0);
    unlink(path);
    line[strcspn(line, "\n")] = 0;
    assert_string_equal(line, expected);
}

static void bash_completes(void **state)
{
    (void)state;
    assert_completes(small, "_zf_small", "zf-small ''", "--word --on --file --many");
    assert_completes(small, "_zf_small", "zf-small --w", "--word");
    assert_completes(small, "_zf_small", "zf-small --word ''", "red blue");
    assert_completes(small, "_zf_small", "zf-small --word = b", "blue");
    assert_completes(small, "_zf_small", "zf-small --word =", "red blue");
    assert_completes(small, "_zf_small", "zf-small --file --", "");
    assert_completes(with_commands, "_zf_many", "zf-many ''", "one two");
    assert_completes(with_commands, "_zf_many", "zf-many t", "two");
    assert_completes(with_commands, "_zf_many", "zf-many one --m", "--mine --more");
    assert_completes(with_commands, "_zf_many", "zf-many one --mine ''", "a b");
    assert_completes(with_commands, "_zf_many", "zf-many two --", "--other");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_has_what_is_for_it),
        cmocka_unit_test(page_is_roff),
        cmocka_unit_test(zsh_is_quoted),
        cmocka_unit_test(bash_completes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
