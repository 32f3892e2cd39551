#include "data/bpe.h"

#include "data/alloc.h"
#include "data/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Up to this many bytes, a word's pairs are scanned for the lowest rank; above, they are kept in a
 * heap, so that a text without spaces does not take quadratic time. */
#define SCAN_MAX_BYTES 48

/* The characters that stand for bytes are below this. */
#define BYTE_CHARACTERS 0x144

/* Characters below this have their tokens in a table. */
#define DIRECT_CHARACTERS 0x10000

#define NO_RANK UINT32_MAX

/* Where a token's spelling lies in the pool. */
struct token {
    size_t at;
    uint32_t n;
    int id;
    bool literal;
};

struct merge {
    uint64_t pair; /* left id in the upper half, right id in the lower; EMPTY_PAIR: no entry */
    uint32_t rank;
    int id; /* of what the pair becomes */
};
#define EMPTY_PAIR UINT64_MAX

struct bpe {
    char *pool;
    size_t pool_n, pool_capacity;
    struct token *tokens; /* (n_tokens), by id once indexed */
    int n_tokens;
    size_t tokens_capacity;
    int *slots; /* (slots_mask + 1) open addressing: spelling to id, -1: empty */
    size_t slots_mask;
    struct merge *merges; /* (merges_mask + 1) open addressing */
    size_t merges_mask;
    uint32_t n_merges;
    int byte_id[256]; /* the token that stands for one byte, or -1 */
    bool has_all_bytes;
    int *character_id;      /* (DIRECT_CHARACTERS) their tokens, or -1; NULL: not needed */
    bool cuts_words;        /* no merge joins what comes before a METASPACE with it */
    int unk;                /* the unknown token's id, or -1 */
    struct bpe_rules rules; /* unk_token aside */
    int16_t byte_of[BYTE_CHARACTERS]; /* character to byte, -1: stands for none */
    uint16_t character_of_byte[256];  /* and back */
};

/* GPT-2's alphabet: bytes that are visible in Latin-1 stand for themselves; the others are, in
 * order, the characters from U+0100. */
static void fill_alphabet(struct bpe *b)
{
    int next = 0x100;
    memset(b->byte_of, -1, sizeof b->byte_of);
    for (int byte = 0; byte < 256; byte++) {
        bool visible =
            (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
        int character = visible ? byte : next++;
        b->character_of_byte[byte] = (uint16_t)character;
        b->byte_of[character] = (int16_t)byte;
    }
}

struct bpe *bpe_create(void)
{
    struct bpe *b = zf_calloc(1, sizeof *b);
    fill_alphabet(b);
    return b;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    free(b->pool);
    free(b->tokens);
    free(b->slots);
    free(b->merges);
    free(b->character_id);
    free(b);
}

void bpe_add_token(struct bpe *b, const char *text, size_t n, long id, bool literal)
{
    if (b->pool_n + n > b->pool_capacity) {
        b->pool_capacity = 2 * b->pool_capacity + n + 4096;
        b->pool = zf_realloc(b->pool, b->pool_capacity);
    }
    if ((size_t)b->n_tokens == b->tokens_capacity) {
        b->tokens_capacity = 2 * b->tokens_capacity + 1024;
        b->tokens = zf_realloc(b->tokens, b->tokens_capacity * sizeof *b->tokens);
    }
    memcpy(b->pool + b->pool_n, text, n);
    int bounded = id < INT32_MIN ? INT32_MIN : id > INT32_MAX ? INT32_MAX : (int)id;
    b->tokens[b->n_tokens++] = (struct token){b->pool_n, (uint32_t)n, bounded, literal};
    b->pool_n += n;
}

/* FNV-1a over the two parts of a spelling, so that a merge is looked up without joining them. */
static size_t hash_text(const char *left, size_t n_left, const char *right, size_t n_right)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n_left; i++)
        h = (h ^ (unsigned char)left[i]) * 0x100000001B3u;
    for (size_t i = 0; i < n_right; i++)
        h = (h ^ (unsigned char)right[i]) * 0x100000001B3u;
    return (size_t)(h ^ h >> 32);
}

/* The slot of the token that is spelled left + right, or the empty one where it belongs. */
static size_t find_slot(const struct bpe *b, const char *left, size_t n_left, const char *right,
                        size_t n_right)
{
    size_t slot = hash_text(left, n_left, right, n_right) & b->slots_mask;
    for (; b->slots[slot] >= 0; slot = (slot + 1) & b->slots_mask) {
        const struct token *t = &b->tokens[b->slots[slot]];
        const char *text = b->pool + t->at;
        if (t->n == n_left + n_right && memcmp(text, left, n_left) == 0 &&
            (n_right == 0 || memcmp(text + n_left, right, n_right) == 0))
            break;
    }
    return slot;
}

int bpe_find(const struct bpe *b, const char *text, size_t n)
{
    return b->slots[find_slot(b, text, n, NULL, 0)];
}

/* Twice the entries or more, a power of two. */
static size_t table_size(size_t entries)
{
    size_t size = 64;
    while (size < 2 * entries)
        size *= 2;
    return size;
}

/* Drops tokens that were added twice under one id; fails where a spelling has two ids. */
static bool index_spellings(struct bpe *b, const char *path, struct zf_error *err)
{
    size_t size = table_size((size_t)b->n_tokens);
    int kept = 0;
    b->slots = zf_malloc(size * sizeof *b->slots);
    b->slots_mask = size - 1;
    memset(b->slots, -1, size * sizeof *b->slots);
    for (int i = 0; i < b->n_tokens; i++) {
        struct token t = b->tokens[i];
        const char *text = b->pool + t.at;
        size_t slot = find_slot(b, text, t.n, NULL, 0);
        if (b->slots[slot] < 0) {
            b->tokens[kept] = t;
            b->slots[slot] = kept++;
        } else if (b->tokens[b->slots[slot]].id != t.id) {
            return zf_fail(err, "%s: the token \"%.*s\" has two ids, %d and %d", path, (int)t.n,
                           text, b->tokens[b->slots[slot]].id, t.id);
        }
    }
    b->n_tokens = kept;
    return true;
}

/* Puts tokens in the order of their ids and the ids into the slots. */
static bool order_by_id(struct bpe *b, const char *path, struct zf_error *err)
{
    struct token *ordered = zf_malloc((size_t)b->n_tokens * sizeof *ordered);
    for (int i = 0; i < b->n_tokens; i++)
        ordered[i].id = -1;
    for (int i = 0; i < b->n_tokens; i++) {
        struct token t = b->tokens[i];
        bool inside = t.id >= 0 && t.id < b->n_tokens;
        if (inside && ordered[t.id].id < 0) {
            ordered[t.id] = t;
            continue;
        }
        if (inside)
            zf_fail(err, "%s: the tokens \"%.*s\" and \"%.*s\" both have the id %d", path,
                    (int)ordered[t.id].n, b->pool + ordered[t.id].at, (int)t.n, b->pool + t.at,
                    t.id);
        else
            zf_fail(err,
                    "%s: the token \"%.*s\" has the id %d, but the ids of %d tokens are 0 to %d, "
                    "without gaps",
                    path, (int)t.n, b->pool + t.at, t.id, b->n_tokens, b->n_tokens - 1);
        free(ordered);
        return false;
    }
    for (size_t slot = 0; slot <= b->slots_mask; slot++)
        if (b->slots[slot] >= 0)
            b->slots[slot] = b->tokens[b->slots[slot]].id;
    free(b->tokens);
    b->tokens = ordered;
    return true;
}

int bpe_find_own(const struct bpe *b, const char *text, size_t n)
{
    int id = bpe_find(b, text, n);
    return id >= 0 && b->tokens[id].literal ? -1 : id;
}

/* The token that is spelled "<0x0A>", or -1. */
static int find_spelled_byte(const struct bpe *b, unsigned char byte)
{
    char spelled[8];
    return bpe_find_own(b, spelled, (size_t)sprintf(spelled, "<0x%02X>", byte));
}

/* Whether byte_fallback has tokens for all of a character's bytes. */
static bool has_fallback(const struct bpe *b, const char *character, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (find_spelled_byte(b, (unsigned char)character[i]) < 0)
            return false;
    return true;
}

static void index_bytes(struct bpe *b)
{
    char character[4];
    bool falls_back = b->rules.characters;
    b->has_all_bytes = true;
    for (int byte = 0; byte < 256; byte++) {
        size_t n = utf8_encode(b->character_of_byte[byte], character);
        b->byte_id[byte] = b->rules.characters ? find_spelled_byte(b, (unsigned char)byte)
                                               : bpe_find_own(b, character, n);
        const bool known = b->byte_id[byte] >= 0;
        b->has_all_bytes = b->has_all_bytes && known;
        falls_back = falls_back || (!known && has_fallback(b, character, n));
    }
    b->rules.byte_fallback = b->rules.byte_fallback && falls_back;
}

bool bpe_falls_back_from_bytes(const struct bpe *b)
{
    return b->rules.byte_fallback && !b->rules.characters;
}

static void index_characters(struct bpe *b)
{
    char text[4];
    b->character_id = zf_malloc(DIRECT_CHARACTERS * sizeof *b->character_id);
    for (uint32_t c = 0; c < DIRECT_CHARACTERS; c++)
        b->character_id[c] = bpe_find_own(b, text, utf8_encode(c, text));
    b->cuts_words = bpe_find_own(b, METASPACE, sizeof METASPACE - 1) >= 0;
}

/* Whether nothing is unknown. */
static bool knows_all(const struct bpe *b)
{
    return b->has_all_bytes && (!b->rules.characters || b->rules.byte_fallback);
}

bool bpe_has_same_rules(const struct bpe *a, const struct bpe *b)
{
    return a->rules.characters == b->rules.characters &&
           a->rules.byte_fallback == b->rules.byte_fallback &&
           a->rules.ignore_merges == b->rules.ignore_merges &&
           (knows_all(a) || (a->rules.fuse_unk == b->rules.fuse_unk && a->unk == b->unk));
}

bool bpe_index(struct bpe *b, const struct bpe_rules *rules, const char *path, struct zf_error *err)
{
    b->rules = *rules;
    b->rules.unk_token = NULL;
    if (!index_spellings(b, path, err) || !order_by_id(b, path, err))
        return false;
    b->unk = rules->unk_token ? bpe_find_own(b, rules->unk_token, strlen(rules->unk_token)) : -1;
    index_bytes(b);
    if (rules->unk_token && b->unk < 0 && !knows_all(b))
        return zf_fail(err, "%s: the unknown token \"%.200s\" is not in the vocabulary", path,
                       rules->unk_token);
    if (rules->characters)
        index_characters(b);
    b->merges_mask = table_size((size_t)b->n_tokens) - 1;
    b->merges = zf_malloc((b->merges_mask + 1) * sizeof *b->merges);
    memset(b->merges, 0xFF, (b->merges_mask + 1) * sizeof *b->merges);
    return true;
}

static uint64_t pair_of(int left, int right)
{
    return (uint64_t)left << 32 | (uint32_t)right;
}

/* The entry of a pair, or the empty one where it belongs. */
static struct merge *find_merge(const struct bpe *b, int left, int right)
{
    uint64_t pair = pair_of(left, right);
    size_t slot = (size_t)(pair * 0x9E3779B97F4A7C15u >> 32) & b->merges_mask;
    while (b->merges[slot].pair != pair && b->merges[slot].pair != EMPTY_PAIR)
        slot = (slot + 1) & b->merges_mask;
    return &b->merges[slot];
}

static void grow_merges(struct bpe *b)
{
    struct merge *old = b->merges;
    size_t n_old = b->merges_mask + 1;
    b->merges = zf_malloc(2 * n_old * sizeof *b->merges);
    b->merges_mask = 2 * n_old - 1;
    memset(b->merges, 0xFF, 2 * n_old * sizeof *b->merges);
    for (size_t i = 0; i < n_old; i++)
        if (old[i].pair != EMPTY_PAIR)
            *find_merge(b, (int)(old[i].pair >> 32), (int)(uint32_t)old[i].pair) = old[i];
    free(old);
}

static bool starts_with_space(const char *text, size_t n)
{
    size_t n_space = sizeof METASPACE - 1;
    return n >= n_space && memcmp(text, METASPACE, n_space) == 0;
}

static bool ends_with_space(const char *text, size_t n)
{
    size_t n_space = sizeof METASPACE - 1;
    return n >= n_space && memcmp(text + n - n_space, METASPACE, n_space) == 0;
}

bool bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right,
                   size_t n_right, struct zf_error *err)
{
    int left_id = bpe_find_own(b, left, n_left), right_id = bpe_find_own(b, right, n_right);
    if (left_id < 0 || right_id < 0)
        return zf_fail(err, "a merge needs \"%.*s\", which is not in the vocabulary",
                       (int)(left_id < 0 ? n_left : n_right), left_id < 0 ? left : right);
    int id = b->slots[find_slot(b, left, n_left, right, n_right)];
    if (id < 0 || b->tokens[id].literal)
        return zf_fail(err, "a merge makes \"%.*s%.*s\", which is not in the vocabulary",
                       (int)n_left, left, (int)n_right, right);
    if (2 * (size_t)b->n_merges > b->merges_mask)
        grow_merges(b);
    struct merge *m = find_merge(b, left_id, right_id);
    if (m->pair != EMPTY_PAIR)
        return zf_fail(err, "the merge of \"%.*s\" and \"%.*s\" is there already", (int)n_left,
                       left, (int)n_right, right);
    *m = (struct merge){pair_of(left_id, right_id), b->n_merges++, id};
    if (starts_with_space(right, n_right) && !ends_with_space(left, n_left))
        b->cuts_words = false;
    return true;
}

int bpe_n_tokens(const struct bpe *b)
{
    return b->n_tokens;
}

/* ids: (n), n <= SCAN_MAX_BYTES, merged in place. */
static size_t merge_by_scan(const struct bpe *b, int *ids, size_t n)
{
    uint32_t rank[SCAN_MAX_BYTES]; /* of the pair (i, i + 1) */
    int merged[SCAN_MAX_BYTES];    /* what it becomes */
    for (size_t i = 0; i + 1 < n; i++) {
        const struct merge *m = find_merge(b, ids[i], ids[i + 1]);
        rank[i] = m->rank; /* an empty entry's is NO_RANK */
        merged[i] = m->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        if (rank[best] == NO_RANK)
            break;
        ids[best] = merged[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            rank[i - 1] = rank[i];
            merged[i - 1] = merged[i];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct merge *m = find_merge(b, ids[i], ids[i + 1]);
            rank[i] = m->rank;
            merged[i] = m->id;
        }
    }
    return n;
}

/* A pair that could be merged, as it was when it was seen. */
struct candidate {
    uint32_t rank;
    int id;
    size_t at;
    uint64_t pair;
};

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

struct heap {
    struct candidate *items;
    size_t n;
};

static void heap_push(struct heap *h, struct candidate c)
{
    size_t i = h->n++;
    for (; i > 0 && comes_before(&c, &h->items[(i - 1) / 2]); i = (i - 1) / 2)
        h->items[i] = h->items[(i - 1) / 2];
    h->items[i] = c;
}

static struct candidate heap_pop(struct heap *h)
{
    struct candidate top = h->items[0], last = h->items[--h->n];
    size_t i = 0;
    for (size_t child = 1; child < h->n; child = 2 * i + 1) {
        child += child + 1 < h->n && comes_before(&h->items[child + 1], &h->items[child]);
        if (!comes_before(&h->items[child], &last))
            break;
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return top;
}

/* The symbols of a long word as a list: ids[i] is -1 once merged into the one before. */
struct symbols {
    int *ids;
    size_t n;
    size_t *next, *previous; /* (n); next of the last is n */
};

static void push_pair(const struct bpe *b, const struct symbols *s, size_t at, struct heap *h)
{
    size_t next = s->next[at];
    if (next == s->n)
        return;
    const struct merge *m = find_merge(b, s->ids[at], s->ids[next]);
    if (m->pair != EMPTY_PAIR)
        heap_push(h, (struct candidate){m->rank, m->id, at, m->pair});
}

static void merge_candidates(const struct bpe *b, struct symbols *s, struct heap *h)
{
    while (h->n) {
        struct candidate c = heap_pop(h);
        size_t next = s->next[c.at];
        if (s->ids[c.at] < 0 || next == s->n || pair_of(s->ids[c.at], s->ids[next]) != c.pair)
            continue;
        s->ids[c.at] = c.id;
        s->ids[next] = -1;
        s->next[c.at] = s->next[next];
        if (s->next[c.at] < s->n)
            s->previous[s->next[c.at]] = c.at;
        push_pair(b, s, c.at, h);
        if (c.at > 0)
            push_pair(b, s, s->previous[c.at], h);
    }
}

static size_t merge_by_heap(const struct bpe *b, int *ids, size_t n)
{
    struct symbols s = {ids, n, zf_malloc(n * sizeof(size_t)), zf_malloc(n * sizeof(size_t))};
    /* n - 1 pairs at first, and two more for each of at most n - 1 merges. */
    struct heap h = {zf_malloc(3 * n * sizeof *h.items), 0};
    for (size_t i = 0; i < n; i++) {
        s.next[i] = i + 1;
        s.previous[i] = i ? i - 1 : 0;
    }
    for (size_t i = 0; i + 1 < n; i++)
        push_pair(b, &s, i, &h);
    merge_candidates(b, &s, &h);
    size_t kept = 0;
    for (size_t i = 0; i < n; i = s.next[i])
        ids[kept++] = ids[i];
    free(s.next);
    free(s.previous);
    free(h.items);
    return kept;
}

/* The token whose bytes are this word, or -1. */
static int find_bytes(const struct bpe *b, const char *word, size_t n)
{
    char few[64] = "", *text = n <= sizeof few / 2 ? few : zf_malloc(2 * n);
    size_t length = 0;
    for (size_t i = 0; i < n; i++)
        length += utf8_encode(b->character_of_byte[(unsigned char)word[i]], text + length);
    int id = bpe_find_own(b, text, length);
    if (text != few)
        free(text);
    return id;
}

/* A word's first tokens as they are found. An unknown one waits until the next known one, since
 * others may join it; bytes that stand for a character go past it. */
struct first_tokens {
    int *ids;
    size_t n;
    bool unknown;
};

static void put_unknown(const struct bpe *b, struct first_tokens *f)
{
    if (f->unknown)
        f->ids[f->n++] = b->unk;
    f->unknown = false;
}

static void put_character(const struct bpe *b, struct first_tokens *f, int id)
{
    if (id < 0 && b->unk < 0)
        return;
    if (id >= 0 || !b->rules.fuse_unk)
        put_unknown(b, f);
    if (id >= 0)
        f->ids[f->n++] = id;
    else
        f->unknown = true;
}

static bool put_fallback(const struct bpe *b, struct first_tokens *f, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(unsigned char)bytes[i]] < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        f->ids[f->n++] = b->byte_id[(unsigned char)bytes[i]];
    return true;
}

static size_t first_bytes(const struct bpe *b, const char *word, size_t n, int *ids)
{
    struct first_tokens f = {.ids = ids};
    if (b->has_all_bytes) {
        for (size_t i = 0; i < n; i++)
            ids[i] = b->byte_id[(unsigned char)word[i]];
        return n;
    }
    for (size_t i = 0; i < n; i++)
        put_character(b, &f, b->byte_id[(unsigned char)word[i]]);
    put_unknown(b, &f);
    return f.n;
}

/* A byte that is not UTF-8 counts as a character that has no token. */
static size_t first_characters(const struct bpe *b, const char *word, size_t n, int *ids)
{
    struct first_tokens f = {.ids = ids};
    for (size_t i = 0, length; i < n; i += length) {
        uint32_t c = 0;
        length = utf8_decode(word + i, n - i, &c);
        int id = !length                 ? -1
                 : c < DIRECT_CHARACTERS ? b->character_id[c]
                                         : bpe_find_own(b, word + i, length);
        length += !length;
        if (id >= 0 || !b->rules.byte_fallback || !put_fallback(b, &f, word + i, length))
            put_character(b, &f, id);
    }
    put_unknown(b, &f);
    return f.n;
}

/* Where the words end that no merge joins with the next one: before a METASPACE that follows
 * something else. A whole sentence is one word to tokenizers that have these. */
static size_t cut_word(const char *word, size_t n)
{
    const size_t n_space = sizeof METASPACE - 1;
    size_t i = 0;
    while (starts_with_space(word + i, n - i))
        i += n_space;
    while (i < n) {
        const char *next = memchr(word + i, *METASPACE, n - i);
        if (!next)
            return n;
        i = (size_t)(next - word);
        if (starts_with_space(next, n - i))
            return i;
        i++;
    }
    return n;
}

static size_t encode_part(const struct bpe *b, const char *word, size_t n, int *ids)
{
    size_t n_ids =
        b->rules.characters ? first_characters(b, word, n, ids) : first_bytes(b, word, n, ids);
    return n_ids <= SCAN_MAX_BYTES ? merge_by_scan(b, ids, n_ids) : merge_by_heap(b, ids, n_ids);
}

/* One word after the other, as they are cut. */
static size_t encode_cut(const struct bpe *b, const char *word, size_t n, int *ids)
{
    size_t n_ids = 0;
    for (size_t start = 0, length; start < n; start += length) {
        length = cut_word(word + start, n - start);
        n_ids += encode_part(b, word + start, length, ids + n_ids);
    }
    return n_ids;
}

size_t bpe_encode_word(const struct bpe *b, const char *word, size_t n, int *ids)
{
    if (b->rules.ignore_merges) {
        int whole = b->rules.characters ? bpe_find_own(b, word, n) : find_bytes(b, word, n);
        if (whole >= 0) {
            ids[0] = whole;
            return 1;
        }
    }
    return b->cuts_words ? encode_cut(b, word, n, ids) : encode_part(b, word, n, ids);
}

/* A token's bytes where files spell a byte as a character: false where the token holds a character
 * that stands for none. */
static bool bytes_of(const struct bpe *b, const struct token *t, char *out, size_t *n)
{
    const char *text = b->pool + t->at;
    *n = 0;
    for (size_t i = 0, length; i < t->n; i += length) {
        uint32_t c;
        length = utf8_decode(text + i, t->n - i, &c);
        if (!length || c >= BYTE_CHARACTERS || b->byte_of[c] < 0)
            return false;
        if (out)
            out[*n] = (char)b->byte_of[c];
        ++*n;
    }
    return true;
}

/* The byte that "<0x0A>" stands for, or -1. */
static int spelled_byte(const char *text, size_t n)
{
    char copy[7] = "";
    unsigned byte;
    if (n != sizeof copy - 1)
        return -1;
    memcpy(copy, text, n);
    return sscanf(copy, "<0x%2X>", &byte) == 1 ? (int)byte : -1;
}

/* The same where they spell a space as METASPACE, and a byte as "<0x0A>". */
static size_t characters_of(const struct bpe *b, const struct token *t, int id, char *out)
{
    const char *text = b->pool + t->at;
    size_t n = 0;
    int byte = b->rules.byte_fallback ? spelled_byte(text, t->n) : -1;
    if (byte >= 0 && b->byte_id[byte] == id) {
        if (out)
            *out = (char)byte;
        return 1;
    }
    for (size_t i = 0; i < t->n; n++) {
        bool space = starts_with_space(text + i, t->n - i);
        if (out)
            out[n] = space ? ' ' : text[i];
        i += space ? sizeof METASPACE - 1 : 1;
    }
    return n;
}

size_t bpe_token_text(const struct bpe *b, int id, char *out)
{
    const struct token *t = &b->tokens[id];
    size_t n;
    if (!t->literal && b->rules.characters)
        return characters_of(b, t, id, out);
    if (!t->literal && bytes_of(b, t, out, &n))
        return n;
    if (out)
        memcpy(out, b->pool + t->at, t->n);
    return t->n;
}
