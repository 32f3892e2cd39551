/* NCCL, as far as device.c needs it. It knows nothing of MPI; a fault is a sentence.
 *
 * The library is loaded when the program runs, so that the program starts where it is absent.
 * Communicators are non-blocking: where a peer is gone, calls end with an error and not never.
 *
 * In a build without CUDA all of them fail. */
#ifndef ZF_OFFLOAD_COMM_NCCL_H
#define ZF_OFFLOAD_COMM_NCCL_H

#include "data/error.h"

#include <stddef.h>

struct nccl;
struct stream;

/* What one rank makes and all ranks of a communicator know. */
struct nccl_id {
    char bytes[128];
};

/* Loads NCCL for this thread's current CUDA device. NULL where the build, the machine or the
 * library cannot. */
struct nccl *nccl_open(struct zf_error *err);
/* Ends the communicator, if there is one: collective. */
void nccl_close(struct nccl *n);

/* The bus id of this thread's current CUDA device, which no other device of the machine has. */
bool nccl_device_name(char *name, int size, struct zf_error *err);
bool nccl_make_id(struct nccl *n, struct nccl_id *id, struct zf_error *err);
/* Makes the communicator; collective. */
bool nccl_connect(struct nccl *n, const struct nccl_id *id, int rank, int size,
                  struct zf_error *err);
/* Whether no operation has failed, here or on a peer. Any thread may ask. */
bool nccl_healthy(struct nccl *n, struct zf_error *err);

/* Put operations on a stream. Those between begin and end are one. Reductions are in place: one
 * counts on the root alone, the other on each rank for `count` numbers, of as many of each rank. */
bool nccl_group_begin(struct nccl *n, struct zf_error *err);
bool nccl_group_end(struct nccl *n, struct zf_error *err);
bool nccl_all_reduce(struct nccl *n, struct stream *s, float *data, size_t count,
                     struct zf_error *err);
bool nccl_reduce(struct nccl *n, struct stream *s, float *data, size_t count, int root,
                 struct zf_error *err);
bool nccl_reduce_scatter(struct nccl *n, struct stream *s, float *data, size_t count, int rank,
                         struct zf_error *err);
/* source: what the root sends; data: what all get */
bool nccl_broadcast(struct nccl *n, struct stream *s, const void *source, void *data, size_t bytes,
                    int root, struct zf_error *err);
/* source: this rank's bytes; data: as many of each rank */
bool nccl_all_gather(struct nccl *n, struct stream *s, const void *source, void *data, size_t bytes,
                     struct zf_error *err);

#endif
