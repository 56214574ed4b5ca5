/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the pickle and the storages in a file written by torch.save(): a zip archive, or the older
 * format, in which the storages follow the pickles. Used only by torch.c; see torch.h.
 */
#ifndef FSTFS_FORMAT_TORCH_SOURCE_H
#define FSTFS_FORMAT_TORCH_SOURCE_H

#include "format/pickle.h"
#include "format/st_table.h"
#include "format/torch_imports.h"
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

/* The versions of archives that PyTorch reads (caffe2/serialize/versions.h). */
enum { TORCH_VERSION_LEAST = 1, TORCH_VERSION_MOST = 10 };

enum { TORCH_KEY_MAX = 256 }; /* bytes of a storage's key; torch writes decimal numbers */

/* A storage of the older format, or a view of one. */
struct torch_storage {
    pickle_value key;
    pickle_value view_of; /* key of the storage; OPAQUE: it is no view */
    unsigned dtype; /* see struct torch_element */
    uint32_t element; /* bytes of an element */
    uint64_t start; /* of a view: its first element in the storage */
    uint64_t elements;
    uint64_t offset; /* of its data in the file; 0: not found yet, or a view */
};

struct torch_source {
    int fd; /* borrowed */
    uint64_t file_size;
    st_admit *admit;
    void *admit_arg;
    struct torch_imports *imports; /* of the pickles that were read; borrowed; or NULL */
    bool is_zip;
    char *text; /* the pickles; malloc'ed */
    size_t text_length;
    struct pickle pickle; /* the pickle with the tensors; refers to `text` */
    struct zip zip;
    size_t prefix_length; /* of the common prefix of member names, "archive/" */
    char prefix[256];
    struct torch_storage *storages; /* and views; sorted by key, which is unique; malloc'ed */
    uint32_t storage_count;
};

/* Errors are those of torch_read(). `imports`, unless NULL, receives the imports of all pickles
 * that torch.load() would execute, also on errors. Exceptions: tar files; archives whose directory
 * or member data.pkl is refused; pickles without a PROTO instruction that are refused before their
 * first call. */
errint_t torch_source_open(int fd, uint64_t file_size, st_admit *admit, void *arg,
                           struct torch_imports *imports, struct torch_source *source,
                           struct reason *reason);
void torch_source_close(struct torch_source *source);

/* Sets `fault`, which is all zero, if torch.load() refuses the version of the archive. Errors, with
 * a reason: -ESTALE, errors of pread(2). */
errint_t torch_source_check_version(const struct torch_source *source, struct reason *fault,
                                    struct reason *reason);

/* Whether a persistent ID is that of a storage. torch refuses files with IDs of other
 * kinds, except "module", which has no tensors. */
bool torch_is_storage_id(const struct pickle *pickle, pickle_value id);

/* Finds the storage `key`: its offset in the file and its length in bytes. With a reason: -EBADMSG
 * (missing or malformed), -ESTALE, errors of pread(2). */
errint_t torch_source_find(struct torch_source *source, const char *key, size_t key_length,
                           uint64_t *offset, uint64_t *bytes, struct reason *reason);

#endif
