/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges the parts of a split GGUF model into one file, like `gguf-split --merge` of llama.cpp: the
 * key-values of the first part, then the tensors of all parts in order, each padded with zero bytes
 * to the alignment of the first part. Other parts may have another alignment, since writers store
 * general.alignment in the first part only. gguf-split sets split.count to 0; this omits the split
 * keys, so that the file equals that of a model that was never split.
 *
 * Nothing is read: the file is described as ranges of the parts. No threads, no state.
 */
#ifndef FSTFS_FORMAT_GGUF_WRITE_H
#define FSTFS_FORMAT_GGUF_WRITE_H

#include "base/buffer.h"
#include "format/gguf.h"

/* The largest alignment of a merged file: no run of zero bytes is longer. */
enum { GGUF_MERGE_ALIGNMENT = 65536 };

/*
 * Checks by the rules of llama.cpp that `tables` are all parts of one model, in order, or one model
 * that is not split. Also checks that keys that a part shares with the first part have the same
 * value in both. Does not check that tensor names are unique. -EBADMSG: the reason is set, and
 * *part to the index of the part at fault.
 */
errint_t gguf_check_parts(const struct st_table *const *tables, uint32_t count, uint32_t *part,
                          struct reason *reason);

enum gguf_run_kind {
    GGUF_RUN_HEADER, /* bytes of the new header */
    GGUF_RUN_PAIRS, /* key-values of the first part */
    GGUF_RUN_TENSOR,
    GGUF_RUN_ZERO, /* padding */
};

/* A run of bytes of the merged file. */
struct gguf_run {
    enum gguf_run_kind kind;
    uint32_t part, tensor; /* GGUF_RUN_TENSOR: index of the part, and in its table */
    uint64_t offset; /* in the new header, or in the file of the part */
    uint64_t length; /* may be 0 only for a tensor */
};

/*
 * Appends the new bytes of the header to `header`, which may be BUFFER_COUNTING, and calls `add`,
 * unless that is NULL, for each run of the file in order. Returns the size of the file. The parts
 * must have been checked. Check buffer_failed(header) afterwards.
 */
uint64_t gguf_merge(const struct st_table *const *tables, uint32_t count, struct buffer *header,
                    void (*add)(void *arg, const struct gguf_run *run), void *arg);

#endif
