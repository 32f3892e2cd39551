#include "data/split.h"

#include "data/alloc.h"
#include "data/bpe.h"
#include "data/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 16

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum kind { PATTERN, PREFIX_SPACE, SPACES };

struct step {
    enum kind kind;
    pcre2_code *code; /* PATTERN */
    char *pattern;    /* its text */
    bool literal, jit;
    enum split_behavior behavior;
    bool invert;
    enum metaspace_prefix prefix; /* SPACES */
    bool cut;
};

struct splitter {
    pcre2_general_context *memory;
    struct step steps[MAX_STEPS];
    int n_steps;
};

/* Unicode's categories, as far as patterns ask for them. */
enum category { LU, LL, LM, LO, MARK, ND, NO, OTHER };

/* Characters that PCRE2 10.42 (Unicode 14) and Unicode 16 put into different categories: letters,
 * marks and numbers that came later, and U+180E, a space to PCRE2. The pattern is shown another
 * character of the right category and the same length in their place. */
static const struct {
    uint32_t first, last;
    enum category category;
} newer[] = {
    {0x897, 0x897, MARK},     {0xCF3, 0xCF3, MARK},     {0xECE, 0xECE, MARK},
    {0x180E, 0x180E, OTHER},  {0x1C89, 0x1C89, LU},     {0x1C8A, 0x1C8A, LL},
    {0xA7CB, 0xA7CC, LU},     {0xA7CD, 0xA7CD, LL},     {0xA7DA, 0xA7DA, LU},
    {0xA7DB, 0xA7DB, LL},     {0xA7DC, 0xA7DC, LU},     {0x105C0, 0x105F3, LO},
    {0x10D40, 0x10D49, ND},   {0x10D4A, 0x10D4D, LO},   {0x10D4E, 0x10D4E, LM},
    {0x10D4F, 0x10D4F, LO},   {0x10D50, 0x10D65, LU},   {0x10D69, 0x10D6D, MARK},
    {0x10D6F, 0x10D6F, LM},   {0x10D70, 0x10D85, LL},   {0x10EC2, 0x10EC4, LO},
    {0x10EFC, 0x10EFF, MARK}, {0x1123F, 0x11240, LO},   {0x11241, 0x11241, MARK},
    {0x11380, 0x11389, LO},   {0x1138B, 0x1138B, LO},   {0x1138E, 0x1138E, LO},
    {0x11390, 0x113B5, LO},   {0x113B7, 0x113B7, LO},   {0x113B8, 0x113C0, MARK},
    {0x113C2, 0x113C2, MARK}, {0x113C5, 0x113C5, MARK}, {0x113C7, 0x113CA, MARK},
    {0x113CC, 0x113D0, MARK}, {0x113D1, 0x113D1, LO},   {0x113D2, 0x113D2, MARK},
    {0x113D3, 0x113D3, LO},   {0x113E1, 0x113E2, MARK}, {0x116D0, 0x116E3, ND},
    {0x11BC0, 0x11BE0, LO},   {0x11BF0, 0x11BF9, ND},   {0x11F00, 0x11F01, MARK},
    {0x11F02, 0x11F02, LO},   {0x11F03, 0x11F03, MARK}, {0x11F04, 0x11F10, LO},
    {0x11F12, 0x11F33, LO},   {0x11F34, 0x11F3A, MARK}, {0x11F3E, 0x11F42, MARK},
    {0x11F50, 0x11F59, ND},   {0x11F5A, 0x11F5A, MARK}, {0x1342F, 0x1342F, LO},
    {0x13440, 0x13440, MARK}, {0x13441, 0x13446, LO},   {0x13447, 0x13455, MARK},
    {0x13460, 0x143FA, LO},   {0x16100, 0x1611D, LO},   {0x1611E, 0x1612F, MARK},
    {0x16130, 0x16139, ND},   {0x16D40, 0x16D42, LM},   {0x16D43, 0x16D6A, LO},
    {0x16D6B, 0x16D6C, LM},   {0x16D70, 0x16D79, ND},   {0x18CFF, 0x18CFF, LO},
    {0x1B132, 0x1B132, LO},   {0x1B155, 0x1B155, LO},   {0x1CCF0, 0x1CCF9, ND},
    {0x1D2C0, 0x1D2D3, NO},   {0x1DF25, 0x1DF2A, LL},   {0x1E030, 0x1E06D, LM},
    {0x1E08F, 0x1E08F, MARK}, {0x1E4D0, 0x1E4EA, LO},   {0x1E4EB, 0x1E4EB, LM},
    {0x1E4EC, 0x1E4EF, MARK}, {0x1E4F0, 0x1E4F9, ND},   {0x1E5D0, 0x1E5ED, LO},
    {0x1E5EE, 0x1E5EF, MARK}, {0x1E5F0, 0x1E5F0, LO},   {0x1E5F1, 0x1E5FA, ND},
    {0x2B739, 0x2B739, LO},   {0x2EBF0, 0x2EE5D, LO},   {0x31350, 0x323AF, LO},
};

/* What the pattern is shown for this character of `length` bytes: itself, or a stand-in. */
static uint32_t shown_character(uint32_t c, size_t length)
{
    static const uint32_t stand_in[][2] = {
        /* of 3 and of 4 bytes */
        [LU] = {0x1E00, 0x10400}, [LL] = {0x1E01, 0x10428},   [LM] = {0x1D2C, 0x16F93},
        [LO] = {0x4E00, 0x10000}, [MARK] = {0x1AB0, 0x101FD}, [ND] = {0x0966, 0x104A0},
        [NO] = {0x2150, 0x10107}, [OTHER] = {0x200B, 0x1F600}};
    size_t low = 0, high = sizeof newer / sizeof *newer;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > newer[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == sizeof newer / sizeof *newer || c < newer[low].first)
        return c;
    return stand_in[newer[low].category][length == 4];
}

/* Unicode's Alphabetic, Mark, Decimal_Number, Connector_Punctuation and Join_Control. */
bool split_is_word(uint32_t c)
{
    static const uint32_t symbols[][2] = {
        {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
    uint32_t shown = shown_character(c, c < 0x10000 ? 3 : 4);
    utf8proc_category_t kind = utf8proc_category((utf8proc_int32_t)shown);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (c >= symbols[i][0] && c <= symbols[i][1])
            return true;
    return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) ||
           kind == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D;
}

/* PCRE2's memory is ours: a pattern for which it has none would count as one that never matches. */
static void *take_memory(PCRE2_SIZE bytes, void *unused)
{
    (void)unused;
    return zf_malloc(bytes);
}

static void give_back(void *memory, void *unused)
{
    (void)unused;
    free(memory);
}

struct splitter *splitter_create(void)
{
    struct splitter *s = zf_calloc(1, sizeof *s);
    s->memory = pcre2_general_context_create(take_memory, give_back, NULL);
    return s;
}

static void free_step(struct step *step)
{
    pcre2_code_free(step->code);
    free(step->pattern);
}

void splitter_free(struct splitter *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_steps; i++)
        free_step(&s->steps[i]);
    pcre2_general_context_free(s->memory);
    free(s);
}

static bool add_step(struct splitter *s, struct step step, struct zf_error *err)
{
    if (s->n_steps == MAX_STEPS) {
        free_step(&step);
        return zf_fail(err, "there are more than %d steps", MAX_STEPS);
    }
    s->steps[s->n_steps++] = step;
    return true;
}

bool splitter_add_pattern(struct splitter *s, const struct split_pattern *pattern,
                          struct zf_error *err)
{
    int fault;
    size_t where;
    uint32_t options = PCRE2_UTF | (pattern->literal ? PCRE2_LITERAL : PCRE2_UCP);
    pcre2_compile_context *context = pcre2_compile_context_create(s->memory);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern->text, PCRE2_ZERO_TERMINATED, options,
                                     &fault, &where, context);
    pcre2_compile_context_free(context);
    if (!code) {
        char text[256];
        pcre2_get_error_message(fault, (PCRE2_UCHAR *)text, sizeof text);
        return zf_fail(err, "the pattern \"%.300s\" is not valid at character %zu: %s",
                       pattern->text, where, text);
    }
    const struct step step = {.kind = PATTERN,
                              .code = code,
                              .pattern = zf_strdup(pattern->text),
                              .literal = pattern->literal,
                              .jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0,
                              .behavior = pattern->behavior,
                              .invert = pattern->invert};
    return add_step(s, step, err);
}

bool splitter_add_gpt2_pattern(struct splitter *s, struct zf_error *err)
{
    return splitter_add_pattern(s, &(struct split_pattern){.text = gpt2_pattern}, err);
}

bool splitter_add_prefix_space(struct splitter *s, struct zf_error *err)
{
    return add_step(s, (struct step){.kind = PREFIX_SPACE}, err);
}

bool splitter_add_metaspace(struct splitter *s, enum metaspace_prefix prefix, bool cut,
                            struct zf_error *err)
{
    return add_step(s, (struct step){.kind = SPACES, .prefix = prefix, .cut = cut}, err);
}

static bool is_same_step(const struct step *a, const struct step *b)
{
    return a->kind == b->kind && a->literal == b->literal && a->behavior == b->behavior &&
           a->invert == b->invert && a->prefix == b->prefix && a->cut == b->cut &&
           (a->kind != PATTERN || strcmp(a->pattern, b->pattern) == 0);
}

bool splitter_is_same(const struct splitter *a, const struct splitter *b)
{
    bool same = a->n_steps == b->n_steps;
    for (int i = 0; same && i < a->n_steps; i++)
        same = is_same_step(&a->steps[i], &b->steps[i]);
    return same;
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
    bool first; /* it begins where the whole text does */
};

static struct piece piece_part(struct piece p, size_t start, size_t end)
{
    return (struct piece){p.text + start, p.shown + start, end - start, p.first && start == 0};
}

/* Where the next match from `start` begins and ends; false where there is none. A pattern that
 * needs more memory than PCRE2 allows itself counts as one that does not match. */
static bool next_match(const struct split *run, const struct step *step, struct piece p,
                       size_t start, size_t *from, size_t *to)
{
    const uint32_t options = PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT;
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (step->jit)
        found = pcre2_jit_match(step->code, (PCRE2_SPTR)p.shown, p.n, start, PCRE2_NOTEMPTY,
                                run->match, NULL);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(step->code, (PCRE2_SPTR)p.shown, p.n, start, options, run->match, NULL);
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
    struct piece longer = {copy, copy + p.n + 1, p.n + 1, p.first};
    copy[0] = copy[p.n + 1] = ' ';
    memcpy(copy + 1, p.text, p.n);
    memcpy(copy + p.n + 2, p.shown, p.n);
    run_step(run, step, longer);
    free(copy);
}

static bool starts_with_metaspace(const char *text, size_t n)
{
    return n >= sizeof METASPACE - 1 && memcmp(text, METASPACE, sizeof METASPACE - 1) == 0;
}

/* Writes n bytes with METASPACEs for spaces, after one if `prefix`, and returns how many. */
static size_t put_metaspaces(char *to, const char *from, size_t n, bool prefix)
{
    char *end = to;
    if (prefix)
        end = mempcpy(end, METASPACE, sizeof METASPACE - 1);
    for (size_t i = 0; i < n; i++) {
        if (from[i] == ' ')
            end = mempcpy(end, METASPACE, sizeof METASPACE - 1);
        else
            *end++ = from[i];
    }
    return (size_t)(end - to);
}

/* The next one from `start`, or n. */
static size_t find_metaspace(const char *text, size_t start, size_t n)
{
    const char *found =
        start < n ? memmem(text + start, n - start, METASPACE, sizeof METASPACE - 1) : NULL;
    return found ? (size_t)(found - text) : n;
}

static void run_metaspaces(const struct split *run, int step, struct piece p)
{
    const struct step *s = &run->s->steps[step];
    size_t room = (p.n + 1) * (sizeof METASPACE - 1);
    bool prefix = (s->prefix == METASPACE_ALWAYS || (s->prefix == METASPACE_FIRST && p.first)) &&
                  p.text[0] != ' ' && !starts_with_metaspace(p.text, p.n);
    char *copy = zf_malloc(p.shown == p.text ? room : 2 * room), *shown = copy;
    size_t n = put_metaspaces(copy, p.text, p.n, prefix);
    if (p.shown != p.text)
        put_metaspaces(shown = copy + room, p.shown, p.n, prefix);
    const struct piece all = {copy, shown, n, p.first};
    for (size_t start = 0, end; start < n; start = end) {
        end = s->cut ? find_metaspace(copy, start + 1, n) : n;
        run_step(run, step + 1, piece_part(all, start, end));
    }
    free(copy);
}

/* Whether a part of a piece, a match or not, belongs to the part before it. */
static bool joins(enum split_behavior behavior, bool match, bool match_before)
{
    return (behavior == SPLIT_MERGED_WITH_PREVIOUS && match && !match_before) ||
           (behavior == SPLIT_MERGED_WITH_NEXT && !match && match_before) ||
           (behavior == SPLIT_CONTIGUOUS && match == match_before);
}

/* A piece's parts in order, on their way to the next step: what is open may still be joined by the
 * part that comes next. */
struct parts {
    const struct split *run;
    int step;
    struct piece whole;
    size_t start, end; /* of what is open */
    bool match;        /* whether the last part was one */
};

static void close_part(const struct parts *parts)
{
    run_step(parts->run, parts->step + 1, piece_part(parts->whole, parts->start, parts->end));
}

static void put_part(struct parts *parts, size_t end, bool found)
{
    const struct step *s = &parts->run->s->steps[parts->step];
    bool match = found != s->invert;
    if (end == parts->end)
        return;
    if (parts->end > 0 && joins(s->behavior, match, parts->match)) {
        parts->end = end;
    } else {
        close_part(parts);
        parts->start = parts->end;
        parts->end = end;
    }
    parts->match = match;
    if (s->behavior == SPLIT_REMOVED && match)
        parts->start = end;
}

static void run_pattern(const struct split *run, int step, struct piece p)
{
    const struct step *s = &run->s->steps[step];
    struct parts parts = {.run = run, .step = step, .whole = p};
    size_t start = 0, from, to;
    for (; start < p.n && next_match(run, s, p, start, &from, &to); start = to) {
        if (s->behavior == SPLIT_ISOLATED) { /* no part joins another one */
            run_step(run, step + 1, piece_part(p, start, from));
            run_step(run, step + 1, piece_part(p, from, to));
            continue;
        }
        put_part(&parts, from, false);
        put_part(&parts, to, true);
    }
    if (s->behavior == SPLIT_ISOLATED)
        parts.start = parts.end = start;
    put_part(&parts, p.n, false);
    close_part(&parts);
}

static void run_step(const struct split *run, int step, struct piece p)
{
    if (p.n == 0)
        return;
    if (step == run->s->n_steps) {
        run->emit(run->context, p.text, p.n);
        return;
    }
    switch (run->s->steps[step].kind) {
    case PATTERN:
        run_pattern(run, step, p);
        return;
    case PREFIX_SPACE:
        if (p.text[0] == ' ')
            run_step(run, step + 1, p);
        else
            put_space_in_front(run, step + 1, p);
        return;
    case SPACES:
        run_metaspaces(run, step, p);
        return;
    }
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

void splitter_run(const struct splitter *s, const char *text, size_t n, bool first,
                  splitter_emit *emit, void *context)
{
    struct split run = {s, pcre2_match_data_create(1, s->memory), emit, context};
    char *copy = show(text, n);
    run_step(&run, 0, (struct piece){text, copy ? copy : text, n, first});
    free(copy);
    pcre2_match_data_free(run.match);
}
