/* The pieces of a SentencePiece model as its file lists them, for those who make BPE of them. */
#ifndef ZF_DATA_SPM_PIECES_H
#define ZF_DATA_SPM_PIECES_H

#include "data/error.h"

#include <stddef.h>

/* As sentencepiece_model.proto numbers them. */
enum spm_type {
    SPM_TYPE_NORMAL = 1,
    SPM_TYPE_UNKNOWN,
    SPM_TYPE_CONTROL,
    SPM_TYPE_USER_DEFINED,
    SPM_TYPE_UNUSED,
    SPM_TYPE_BYTE
};

/* n bytes within the model's. */
struct spm_piece {
    const char *text;
    size_t n;
    enum spm_type type;
};

/* The next piece from *at on, which is 0 at first and moves past it; false where there is none, or,
 * with *broken set, where the bytes are no such model. */
bool spm_next_piece(const char *bytes, size_t n_bytes, size_t *at, struct spm_piece *piece,
                    bool *broken);

#endif
