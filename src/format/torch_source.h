/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the pickle and the storages in a file of torch.save(): a zip archive, or the older format,
 * in which they follow each other. See torch.h, the only user.
 */
#ifndef FSTFS_FORMAT_TORCH_SOURCE_H
#define FSTFS_FORMAT_TORCH_SOURCE_H

#include "format/pickle.h"
#include "format/zip.h"

#include <stdbool.h>

#define TORCH_MAX_PICKLE (UINT64_C(64) << 20) /* longest pickle of a file, in bytes */

/* Reading a pickle of N bytes takes at most TORCH_PARSE_FACTOR * N + TORCH_PARSE_LEAST bytes of
 * memory, and reading a zip directory ZIP_FACTOR times its size. */
#define TORCH_PARSE_FACTOR UINT64_C(14) /* 1 for the text, and the two below */
#define TORCH_PARSE_LEAST UINT64_C(262144)
#define TORCH_PICKLE_FACTOR UINT64_C(8) /* for struct pickle */
#define TORCH_TABLE_FACTOR UINT64_C(5) /* for struct st_table, and the keys of storages */
#define TORCH_SLACK UINT64_C(65536) /* added to each, for small files */

typedef errint_t torch_admit(void *arg, uint64_t bytes, struct reason *reason);

/* A storage of the older format. */
struct torch_storage {
    pickle_value key;
    uint32_t element; /* bytes */
    uint64_t elements;
    uint64_t offset; /* of its data in the file; 0: not found yet */
};

struct torch_source {
    int fd; /* borrowed */
    uint64_t file_size;
    torch_admit *admit;
    void *admit_arg;
    bool is_zip;
    char *text; /* the bytes of the pickles; malloc'ed */
    size_t text_length;
    struct pickle pickle; /* the pickle with the tensors; refers to `text` */
    struct zip zip;
    size_t prefix_length; /* of the common prefix of member names, "archive/" */
    char prefix[256];
    struct torch_storage *storages; /* sorted by key; malloc'ed */
    uint32_t storage_count;
};

/* Errors are those of torch_read(). */
errint_t torch_source_open(int fd, uint64_t file_size, torch_admit *admit, void *arg,
                           struct torch_source *source, struct reason *reason);
void torch_source_close(struct torch_source *source);

/* Finds the storage `key`: its offset in the file and its length in bytes. With a reason: -EBADMSG
 * (missing or malformed), -ESTALE, errors of pread(2). */
errint_t torch_source_find(struct torch_source *source, const char *key, size_t key_length,
                           uint64_t *offset, uint64_t *bytes, struct reason *reason);

#endif
