extern "C" {
#include "data/spm.h"
#include "data/alloc.h"
}

#include <sentencepiece_processor.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

struct spm {
    sentencepiece::SentencePieceProcessor processor;
};

/* noexcept: what is thrown here is lack of memory, which ends the program. */
static std::vector<int> encode(const struct spm *m, absl::string_view text) noexcept
{
    std::vector<int> ids;
    if (!m->processor.Encode(text, &ids).ok())
        ids.clear();
    return ids;
}

static std::string decode(const struct spm *m, const int *ids, size_t n) noexcept
{
    std::vector<int> known;
    std::string text;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < m->processor.GetPieceSize())
            known.push_back(ids[i]);
    if (!m->processor.Decode(known, &text).ok())
        text.clear();
    return text;
}

extern "C" {

struct spm *spm_create(const char *bytes, size_t n, const char *path, struct zf_error *err)
{
    spm *m = nullptr;
    try {
        m = new spm;
        sentencepiece::util::Status status =
            m->processor.LoadFromSerializedProto(absl::string_view(bytes, n));
        if (status.ok() && m->processor.GetPieceSize() > 0) {
            std::set_new_handler(zf_out_of_memory); /* as of now, what asks for memory is ours */
            return m;
        }
        zf_fail(err, "%s: this is not a SentencePiece model: %s", path,
                status.ok() ? "it has no pieces" : status.ToString().c_str());
    } catch (const std::exception &fault) {
        zf_fail(err, "%s: this is not a SentencePiece model: %s", path, fault.what());
    }
    delete m;
    return nullptr;
}

void spm_free(struct spm *m)
{
    delete m;
}

size_t spm_encode(const struct spm *m, const char *text, size_t n, int *ids, size_t capacity)
{
    const std::vector<int> all = encode(m, absl::string_view(text, n));
    for (size_t i = 0; i < all.size() && i < capacity; i++)
        ids[i] = all[i];
    return all.size();
}

char *spm_decode(const struct spm *m, const int *ids, size_t n, size_t *bytes)
{
    const std::string text = decode(m, ids, n);
    *bytes = text.size();
    char *copy = static_cast<char *>(zf_malloc(text.size() + 1));
    std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

int spm_vocab_size(const struct spm *m)
{
    return m->processor.GetPieceSize();
}

int spm_special_id(const struct spm *m, enum spm_special special)
{
    switch (special) {
    case SPM_UNKNOWN:
        return m->processor.unk_id();
    case SPM_BEGIN:
        return m->processor.bos_id();
    case SPM_END:
        return m->processor.eos_id();
    case SPM_PAD:
        return m->processor.pad_id();
    }
    return -1;
}

const char *spm_token(const struct spm *m, int id)
{
    return m->processor.IdToPiece(id).c_str();
}
}
