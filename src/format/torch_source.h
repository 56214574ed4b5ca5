/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a file of torch.save() has its pickle and its storages: in a zip archive, or one behind the
 * other. See torch.h, the only user.
 */
#ifndef FSTFS_FORMAT_TORCH_SOURCE_H
#define FSTFS_FORMAT_TORCH_SOURCE_H

#include "format/pickle.h"
#include "format/zip.h"

#include <stdbool.h>

#define TORCH_MAX_PICKLE (UINT64_C(64) << 20) /* bytes of pickle that are read of one file */

/* Reading N bytes of pickle takes at most this many times N of memory, and TORCH_PARSE_LEAST more;
 * reading a zip directory takes ZIP_FACTOR times its size. */
#define TORCH_PARSE_FACTOR UINT64_C(14) /* 1 for the text, and: */
#define TORCH_PARSE_LEAST UINT64_C(262144)
#define TORCH_PICKLE_FACTOR UINT64_C(8) /* for struct pickle */
#define TORCH_TABLE_FACTOR UINT64_C(5) /* for struct st_table, and the keys of storages */
#define TORCH_SLACK UINT64_C(65536) /* more of each, for small files */

typedef errint_t torch_admit(void *arg, uint64_t bytes, struct reason *reason);

/* A storage of the older format. */
struct torch_storage {
    pickle_value key;
    uint32_t element; /* bytes */
    uint64_t elements;
    uint64_t offset; /* of its data in the file; 0: not seen */
};

struct torch_source {
    int fd; /* borrowed */
    uint64_t file_size;
    torch_admit *admit;
    void *admit_arg;
    bool is_zip;
    char *text; /* of the pickles; malloc'ed */
    size_t text_length;
    struct pickle pickle; /* the one with the tensors */
    struct zip zip;
    size_t prefix_length; /* of the names of its members: "archive/" */
    char prefix[256];
    struct torch_storage *storages; /* sorted by key; malloc'ed */
    uint32_t storage_count;
};

/* Errors as of torch_read(). */
errint_t torch_source_open(int fd, uint64_t file_size, torch_admit *admit, void *arg,
                           struct torch_source *source, struct reason *reason);
void torch_source_close(struct torch_source *source);

/* Where the storage `key` is in the file. -EBADMSG with a reason: it is missing or malformed. */
errint_t torch_source_find(struct torch_source *source, const char *key, size_t key_length,
                           uint64_t *offset, uint64_t *bytes, struct reason *reason);

#endif
