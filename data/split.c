#include "data/split.h"

#include "data/alloc.h"
#include "data/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 16

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct splitter {
    pcre2_code *steps[MAX_STEPS];
    int n_steps;
    int prefix_step; /* the space is put in front before this step; -1: never */
};

/* Characters whose kind PCRE2 10.42 (Unicode 14) and Unicode 16 see differently: letters and
 * numbers that came later, and U+180E, a space to PCRE2. The pattern is shown another character of
 * the right kind and the same length in their place. */
static const struct {
    uint32_t first, last;
    char kind;
} newer[] = {
    {0x180E, 0x180E, 'O'},   {0x1C89, 0x1C8A, 'L'},   {0xA7CB, 0xA7CD, 'L'},
    {0xA7DA, 0xA7DC, 'L'},   {0x105C0, 0x105F3, 'L'}, {0x10D40, 0x10D49, 'N'},
    {0x10D4A, 0x10D65, 'L'}, {0x10D6F, 0x10D85, 'L'}, {0x10EC2, 0x10EC4, 'L'},
    {0x1123F, 0x11240, 'L'}, {0x11380, 0x11389, 'L'}, {0x1138B, 0x1138B, 'L'},
    {0x1138E, 0x1138E, 'L'}, {0x11390, 0x113B5, 'L'}, {0x113B7, 0x113B7, 'L'},
    {0x113D1, 0x113D1, 'L'}, {0x113D3, 0x113D3, 'L'}, {0x116D0, 0x116E3, 'N'},
    {0x11BC0, 0x11BE0, 'L'}, {0x11BF0, 0x11BF9, 'N'}, {0x11F02, 0x11F02, 'L'},
    {0x11F04, 0x11F10, 'L'}, {0x11F12, 0x11F33, 'L'}, {0x11F50, 0x11F59, 'N'},
    {0x1342F, 0x1342F, 'L'}, {0x13441, 0x13446, 'L'}, {0x13460, 0x143FA, 'L'},
    {0x16100, 0x1611D, 'L'}, {0x16130, 0x16139, 'N'}, {0x16D40, 0x16D6C, 'L'},
    {0x16D70, 0x16D79, 'N'}, {0x18CFF, 0x18CFF, 'L'}, {0x1B132, 0x1B132, 'L'},
    {0x1B155, 0x1B155, 'L'}, {0x1CCF0, 0x1CCF9, 'N'}, {0x1D2C0, 0x1D2D3, 'N'},
    {0x1DF25, 0x1DF2A, 'L'}, {0x1E030, 0x1E06D, 'L'}, {0x1E4D0, 0x1E4EB, 'L'},
    {0x1E4F0, 0x1E4F9, 'N'}, {0x1E5D0, 0x1E5ED, 'L'}, {0x1E5F0, 0x1E5F0, 'L'},
    {0x1E5F1, 0x1E5FA, 'N'}, {0x2B739, 0x2B739, 'L'}, {0x2EBF0, 0x2EE5D, 'L'},
    {0x31350, 0x323AF, 'L'},
};

/* What the pattern is shown for this character of `length` bytes: itself, or a stand-in. */
static uint32_t shown_character(uint32_t c, size_t length)
{
    int low = 0, high = (int)(sizeof newer / sizeof *newer);
    while (low < high) {
        int middle = (low + high) / 2;
        if (c > newer[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == (int)(sizeof newer / sizeof *newer) || c < newer[low].first)
        return c;
    if (newer[low].kind == 'O')
        return 0x200B;
    if (newer[low].kind == 'L')
        return length == 3 ? 0x4E00 : 0x10000;
    return 0x10107;
}

struct splitter *splitter_create(void)
{
    struct splitter *s = zf_calloc(1, sizeof *s);
    s->prefix_step = -1;
    return s;
}

void splitter_free(struct splitter *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_steps; i++)
        pcre2_code_free(s->steps[i]);
    free(s);
}

bool splitter_add_pattern(struct splitter *s, const char *pattern, struct zf_error *err)
{
    int fault;
    size_t where;
    if (s->n_steps == MAX_STEPS)
        return zf_fail(err, "there are more than %d patterns", MAX_STEPS);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &fault, &where, NULL);
    if (!code) {
        char text[256];
        pcre2_get_error_message(fault, (PCRE2_UCHAR *)text, sizeof text);
        return zf_fail(err, "the pattern \"%.300s\" is not valid at character %zu: %s", pattern,
                       where, text);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where there is no JIT, PCRE2 interprets */
    s->steps[s->n_steps++] = code;
    return true;
}

bool splitter_add_gpt2_pattern(struct splitter *s, struct zf_error *err)
{
    return splitter_add_pattern(s, gpt2_pattern, err);
}

void splitter_add_prefix_space(struct splitter *s)
{
    s->prefix_step = s->n_steps;
}

/* One call's state. */
struct split {
    const struct splitter *s;
    pcre2_match_data *match;
    splitter_emit *emit;
    void *context;
};

/* n bytes of text, and as the pattern is to see them; often the same memory. */
struct piece {
    const char *text, *shown;
    size_t n;
};

static struct piece piece_part(struct piece p, size_t start, size_t end)
{
    return (struct piece){p.text + start, p.shown + start, end - start};
}

/* Where the next match from `start` begins and ends; false where there is none. A pattern that
 * needs more memory than PCRE2 allows itself counts as one that does not match. */
static bool next_match(const struct split *run, const pcre2_code *code, struct piece p,
                       size_t start, size_t *from, size_t *to)
{
    const uint32_t options = PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(code, (PCRE2_SPTR)p.shown, p.n, start, options, run->match, NULL);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(code, (PCRE2_SPTR)p.shown, p.n, start, options | PCRE2_NO_JIT,
                            run->match, NULL);
    if (found < 0)
        return false;
    const size_t *offsets = pcre2_get_ovector_pointer(run->match);
    *from = offsets[0];
    *to = offsets[1];
    return *to > *from;
}

static void run_step(const struct split *run, int step, struct piece p);

static void put_space_in_front(const struct split *run, int step, struct piece p)
{
    char *copy = zf_malloc(2 * (p.n + 1));
    struct piece longer = {copy, copy + p.n + 1, p.n + 1};
    copy[0] = copy[p.n + 1] = ' ';
    memcpy(copy + 1, p.text, p.n);
    memcpy(copy + p.n + 2, p.shown, p.n);
    run_step(run, step, longer);
    free(copy);
}

static void run_step(const struct split *run, int step, struct piece p)
{
    if (p.n == 0)
        return;
    if (step == run->s->prefix_step && p.text[0] != ' ') {
        put_space_in_front(run, step, p);
        return;
    }
    if (step == run->s->n_steps) {
        run->emit(run->context, p.text, p.n);
        return;
    }
    size_t start = 0, from, to;
    while (start < p.n && next_match(run, run->s->steps[step], p, start, &from, &to)) {
        run_step(run, step + 1, piece_part(p, start, from));
        run_step(run, step + 1, piece_part(p, from, to));
        start = to;
    }
    run_step(run, step + 1, piece_part(p, start, p.n));
}

/* The first byte from `start` that is not plain ASCII, or n. */
static size_t skip_ascii(const char *text, size_t start, size_t n)
{
    uint64_t word;
    size_t i = start;
    for (; i + sizeof word <= n; i += sizeof word) {
        memcpy(&word, text + i, sizeof word);
        if (word & 0x8080808080808080u)
            break;
    }
    while (i < n && (unsigned char)text[i] < 0x80)
        i++;
    return i;
}

/* The text as the pattern is to see it, valid UTF-8 of the same length: itself, or a copy. */
static char *show(const char *text, size_t n)
{
    char *copy = NULL;
    for (size_t i = skip_ascii(text, 0, n); i < n; i = skip_ascii(text, i, n)) {
        uint32_t c = 0;
        size_t length = utf8_decode(text + i, n - i, &c);
        uint32_t shown = length ? shown_character(c, length) : 1;
        if (!length || shown != c) {
            if (!copy)
                copy = memcpy(zf_malloc(n), text, n);
            utf8_encode(shown, copy + i);
        }
        i += length ? length : 1;
    }
    return copy;
}

void splitter_run(const struct splitter *s, const char *text, size_t n, splitter_emit *emit,
                  void *context)
{
    struct split run = {s, pcre2_match_data_create(1, NULL), emit, context};
    char *copy = show(text, n);
    run_step(&run, 0, (struct piece){text, copy ? copy : text, n});
    free(copy);
    pcre2_match_data_free(run.match);
}
