/* Shared memory of the block that runs, and what moves data into it: cp.async and ldmatrix. */
#include "internal.h"

#include <string.h>
#include <vector>

#define STATIC_LIMIT (48 << 10)
#define ARENA_BYTES  (384 << 10)
#define RED_ZONE     128
#define ALIGNMENT    128

/* Arrays one behind the other with red zones between, in the order in which the block comes to
 * them; all the rest is poisoned. */
alignas(ALIGNMENT) static char arena[ARENA_BYTES];
static size_t used, arrays_bytes, dynamic_bytes;
static char *dynamic;

/* A thread's copies on their way into shared memory. */
struct copy {
    char *to;
    char data[16];
    int group;
};
struct copies {
    std::vector<copy> under_way;
    int n_groups; /* that the thread has committed */
};
static struct copies copies[1024];
static bool copied; /* by any thread since the block began */

void emulator_begin_shared(size_t bytes)
{
    static bool poisoned;
    if (!poisoned)
        ASAN_POISON_MEMORY_REGION(arena, sizeof arena);
    else if (used)
        ASAN_POISON_MEMORY_REGION(arena, used);
    poisoned = true;
    used = arrays_bytes = 0;
    dynamic = NULL;
    dynamic_bytes = bytes;
    for (struct copies &thread : copies) {
        if (!copied)
            break;
        thread.under_way.clear();
        thread.n_groups = 0;
    }
    copied = false;
}

static char *allocate(size_t bytes)
{
    size_t begin = used + RED_ZONE;
    size_t end = (begin + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (end + RED_ZONE > sizeof arena)
        emulator_fault("a block takes more than %d bytes of shared memory", ARENA_BYTES);
    used = end;
    ASAN_UNPOISON_MEMORY_REGION(arena + begin, bytes);
    memset(arena + begin, POISON, bytes);
    return arena + begin;
}

void *emulator_allocate_shared(emulator_shared_array &array, size_t bytes)
{
    arrays_bytes += bytes;
    if (arrays_bytes > STATIC_LIMIT)
        emulator_fault("the shared arrays take %zu bytes, but at most %d are allowed", arrays_bytes,
                       STATIC_LIMIT);
    array.block = emulator_block;
    array.memory = allocate(bytes);
    return array.memory;
}

void *emulator_dynamic_shared()
{
    if (!dynamic)
        dynamic = allocate(dynamic_bytes);
    return dynamic;
}

/* Touches memory, for ASan to see. */
static void read_16(char *data, const void *from)
{
    memcpy(data, from, 16);
}

void emulator_check_shared(const char *what, const void *memory, size_t alignment)
{
    if ((char *)memory < arena || (char *)memory >= arena + sizeof arena)
        emulator_fault("%s: %p is not in shared memory", what, memory);
    if ((uintptr_t)memory % alignment)
        emulator_fault("%s: %p is not aligned to %zu bytes", what, memory, alignment);
}

/* The data lands when the thread waits for it; until then the destination is poisoned: nobody may
 * still be reading what was there, nor read what is not. */
void emulator_copy_async_16(void *shared, const void *global, bool valid)
{
    struct copies &mine = copies[emulator_thread()];
    emulator_check_shared("an asynchronous copy", shared, 16);
    struct copy one = {(char *)shared, {}, mine.n_groups};
    if (valid && (uintptr_t)global % 16)
        emulator_fault("an asynchronous copy: its source %p is not aligned to 16 bytes", global);
    if (valid)
        read_16(one.data, global);
    memset(shared, POISON, 16);
    mine.under_way.push_back(one);
    copied = true;
}

void emulator_copy_async_commit()
{
    copies[emulator_thread()].n_groups++;
    copied = true;
}

void emulator_copy_async_wait(int pending)
{
    struct copies &mine = copies[emulator_thread()];
    size_t kept = 0;
    for (const struct copy &one : mine.under_way)
        if (one.group < mine.n_groups - pending)
            memcpy(one.to, one.data, 16);
        else
            mine.under_way[kept++] = one;
    mine.under_way.resize(kept);
}

/* Each lane reads its row when it comes, which others may not have written yet. */
struct rows {
    char row[16];
    uint32_t r[4];
    bool transposed;
};

static void complete_ldmatrix(unsigned, void *const (&operands)[EMULATOR_WARP])
{
    for (int lane = 0; lane < EMULATOR_WARP; lane++) {
        struct rows *mine = (struct rows *)operands[lane];
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            uint16_t pair[2];
            for (int j = 0; j < 2; j++) {
                int row = mine->transposed ? 2 * t + j : g,
                    column = mine->transposed ? g : 2 * t + j;
                memcpy(&pair[j], ((struct rows *)operands[8 * i + row])->row + 2 * column, 2);
            }
            mine->r[i] = pair[0] | (uint32_t)pair[1] << 16;
        }
    }
}

void emulator_ldmatrix_x4(uint32_t (&r)[4], const void *row, bool transposed)
{
    static const emulator_collective plain = {"ldmatrix", complete_ldmatrix};
    static const emulator_collective turned = {"ldmatrix.trans", complete_ldmatrix};
    emulator_check_shared("ldmatrix", row, 16);
    struct rows operand = {{}, {}, transposed};
    read_16(operand.row, row);
    emulator_meet(transposed ? turned : plain, 0xffffffffu, &operand);
    memcpy(r, operand.r, sizeof r);
}

struct fragments {
    float (*d)[4];
    const uint32_t (*a)[4];
    const uint32_t (*b)[2];
};

static inline void unpack(float *low, float *high, uint32_t pair)
{
    uint32_t bits[2] = {pair << 16, pair & 0xffff0000u};
    memcpy(low, &bits[0], 4);
    memcpy(high, &bits[1], 4);
}

/* The last lane that comes multiplies for the whole warp. It reads only the lanes' fragments, so a
 * sanitizer has nothing to see here. */
__attribute__((optimize("O3"), no_sanitize("address", "undefined"))) static void
complete_mma(unsigned, void *const (&operands)[EMULATOR_WARP])
{
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < EMULATOR_WARP; lane++) {
        const struct fragments *f = (const struct fragments *)operands[lane];
        int g = lane / 4, t = 2 * (lane % 4);
        for (int i = 0; i < 4; i++) {
            int row = g + 8 * (i & 1), column = t + 8 * (i >> 1);
            unpack(&a[row][column], &a[row][column + 1], (*f->a)[i]);
        }
        for (int i = 0; i < 2; i++)
            unpack(&b[t + 8 * i][g], &b[t + 8 * i + 1][g], (*f->b)[i]);
        for (int i = 0; i < 4; i++)
            d[g + 8 * (i >> 1)][t + (i & 1)] = (*f->d)[i];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                d[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < EMULATOR_WARP; lane++) {
        const struct fragments *f = (const struct fragments *)operands[lane];
        for (int i = 0; i < 4; i++)
            (*f->d)[i] = d[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)];
    }
}

void emulator_mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    static const emulator_collective collective = {"mma", complete_mma};
    struct fragments operand = {&d, &a, &b};
    emulator_meet(collective, 0xffffffffu, &operand);
}
