/* The groups of the staggered schedule: which rows (channels) of a matrix close their windows in
 * the same step. The one rule, for the engine, host AdamW and the devices' operators.
 *
 * A matrix is cut into blocks of adjacent rows; block b of matrix p is in group (b + p) mod S. A
 * block is long, so that whoever visits a group goes through long runs of memory: 64 KiB of fp32 or
 * more, if the matrix then still has BLOCKS_EVEN * S blocks; a smaller one has as many as that,
 * shorter, or one for each row. Each group has as many blocks of a matrix as the others, and
 * lengths differ by one row at most, the longer blocks first: so groups have the same number of
 * rows, to one. Ranks own contiguous rows, and so have nearly as many of one group as of the
 * others; exactly so where BLOCKS_EVEN is a multiple of their number and blocks have one length.
 * The rule does not ask how many ranks there are.
 *
 * A checkpoint holds open windows by group: another rule is another format
 * (offload/engine/checkpoint.c). */
#ifndef ZF_MODEL_DEVICE_ROW_GROUPS_H
#define ZF_MODEL_DEVICE_ROW_GROUPS_H

#define BLOCK_ELEMENTS 16384
/* Blocks that a group has of a matrix: a multiple of this, where they are long. */
#define BLOCKS_EVEN 4

#ifdef __CUDACC__
#define ROW_GROUPS_INLINE __host__ __device__ static inline
#else
#define ROW_GROUPS_INLINE static inline
#endif

/* Adjacent rows of a matrix: row i of the part is row first + i of matrix `index`, which has `rows`
 * rows of `cols` columns. */
struct matrix_part {
    int index, first, rows, cols;
};

/* How a part's rows are dealt to n_groups. Rows are the part's own,
 * and may go on behind its end. */
struct row_groups {
    int index, first, n_groups;
    int length, n_longer; /* of a block; the first n_longer have one row more */
};

ROW_GROUPS_INLINE struct row_groups row_groups_of(const struct matrix_part *part, int n_groups)
{
    const int least = (BLOCK_ELEMENTS + part->cols - 1) / part->cols;
    int blocks = part->rows / (BLOCKS_EVEN * n_groups * least) * BLOCKS_EVEN * n_groups;
    if (blocks == 0) {
        const int most = part->rows / n_groups;
        blocks = n_groups * (most < BLOCKS_EVEN ? most : BLOCKS_EVEN);
    }
    struct row_groups g = {part->index, part->first, n_groups, 1, 0};
    if (blocks > 0) {
        g.length = part->rows / blocks;
        g.n_longer = part->rows % blocks;
    }
    return g;
}

/* The block that a row is in. */
ROW_GROUPS_INLINE int row_groups_block(const struct row_groups *g, int row)
{
    const int behind = row + g->first - g->n_longer * (g->length + 1);
    return behind < 0 ? (row + g->first) / (g->length + 1) : g->n_longer + behind / g->length;
}

/* The first row of a block. */
ROW_GROUPS_INLINE int row_groups_begin(const struct row_groups *g, int block)
{
    return block * g->length + (block < g->n_longer ? block : g->n_longer) - g->first;
}

/* The group that a row is in. */
ROW_GROUPS_INLINE int row_groups_group(const struct row_groups *g, int row)
{
    return (int)((unsigned)(row_groups_block(g, row) + g->index) % (unsigned)g->n_groups);
}

/* The first row of a group that is not before row `from`. */
ROW_GROUPS_INLINE int row_groups_next(const struct row_groups *g, int group, int from)
{
    const int block = row_groups_block(g, from);
    const int ahead = (group + g->n_groups - (block + g->index) % g->n_groups) % g->n_groups;
    return ahead == 0 ? from : row_groups_begin(g, block + ahead);
}

/* Where the run of adjacent rows of its group ends that a row is in. */
ROW_GROUPS_INLINE int row_groups_end(const struct row_groups *g, int row)
{
    return row_groups_begin(g, row_groups_block(g, row) + 1);
}

/* Blocks of a group, the first of which is `first`, among blocks [0, end). */
ROW_GROUPS_INLINE int row_groups_blocks(const struct row_groups *g, int first, int end)
{
    return end > first ? (end - first + g->n_groups - 1) / g->n_groups : 0;
}

/* Rows of a group before a row, from the matrix's first. */
ROW_GROUPS_INLINE int row_groups_before(const struct row_groups *g, int group, int row)
{
    const int first = (group + g->n_groups - g->index % g->n_groups) % g->n_groups;
    const int block = row_groups_block(g, row);
    const int longer = block < g->n_longer ? block : g->n_longer;
    const int begun =
        (block + g->index) % g->n_groups == group ? row - row_groups_begin(g, block) : 0;
    return row_groups_blocks(g, first, block) * g->length + row_groups_blocks(g, first, longer) +
           begun;
}

/* Rows of a group among the part's first n. Of a row of that group it is the position: its place
 * where the part's rows of the group lie packed, one behind the other. */
ROW_GROUPS_INLINE int row_groups_count(const struct row_groups *g, int group, int n)
{
    return row_groups_before(g, group, n) - row_groups_before(g, group, 0);
}

#endif
