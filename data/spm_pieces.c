#include "data/spm_pieces.h"

#include <stdint.h>

/* Protocol buffers' wire format: a field is a number with its type, and a value. */
enum wire { VARINT, FIXED64, BYTES, FIXED32 = 5 };

struct field {
    uint64_t number, value; /* value: of a VARINT; else the length in bytes */
    enum wire wire;
    const char *bytes; /* BYTES */
};

static bool read_varint(const char *bytes, size_t n, size_t *at, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && *at < n; shift += 7) {
        unsigned char byte = (unsigned char)bytes[(*at)++];
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_field(const char *bytes, size_t n, size_t *at, struct field *f)
{
    uint64_t tag;
    if (!read_varint(bytes, n, at, &tag))
        return false;
    f->number = tag >> 3;
    f->wire = (enum wire)(tag & 7);
    f->value = f->wire == FIXED64 ? 8 : 4;
    if ((f->wire == VARINT || f->wire == BYTES) && !read_varint(bytes, n, at, &f->value))
        return false;
    if (f->wire == VARINT)
        return true;
    if ((f->wire != FIXED64 && f->wire != BYTES && f->wire != FIXED32) || f->value > n - *at)
        return false;
    f->bytes = bytes + *at;
    *at += f->value;
    return true;
}

/* ModelProto.SentencePiece: 1 piece, 2 score, 3 type. */
static bool read_piece(const struct field *message, struct spm_piece *piece)
{
    struct field f;
    *piece = (struct spm_piece){.text = "", .type = SPM_TYPE_NORMAL};
    for (size_t at = 0; at < message->value;) {
        if (!read_field(message->bytes, message->value, &at, &f))
            return false;
        if (f.number == 1 && f.wire == BYTES) {
            piece->text = f.bytes;
            piece->n = f.value;
        } else if (f.number == 3 && f.wire == VARINT) {
            piece->type = (enum spm_type)f.value;
        }
    }
    return true;
}

/* ModelProto: 1 pieces. */
bool spm_next_piece(const char *bytes, size_t n_bytes, size_t *at, struct spm_piece *piece,
                    bool *broken)
{
    struct field f;
    *broken = false;
    while (*at < n_bytes) {
        *broken = !read_field(bytes, n_bytes, at, &f);
        if (!*broken && f.number == 1 && f.wire == BYTES)
            *broken = !read_piece(&f, piece);
        else if (!*broken)
            continue;
        return !*broken;
    }
    return false;
}
