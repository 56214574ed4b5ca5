/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kinds of files that hold tensors: their suffixes, their readers, and how they are shown. One
 * table; no threads, no state.
 */
#ifndef FSTFS_FORMAT_CONTAINER_H
#define FSTFS_FORMAT_CONTAINER_H

#include "base/error.h"
#include "format/st_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONTAINER_FIRST_BYTES = 9 };

struct container {
    const char *suffixes[5]; /* in any letter case; the usual one first; NULL after the last */
    const char *shown_suffix; /* of the files in merged/ and shards/; NULL: the source's */
    /* If a stem is `stem`, or begins with it and a dot, `shown_stem` is shown in place of `stem`,
     * because loaders look for that name. `shown_stem` is a suffix of `stem`. NULL: none. */
    const char *stem, *shown_stem;
    /* merged/ and shards/ show safetensors files in place of the source's. Files of other kinds
     * have the same suffixes, so only the content tells whether a file is a checkpoint. A file that
     * is not one, or that cannot be converted as a whole, is shown unchanged. */
    bool is_converted;
    /* shards/ shows the source's files even if they are refused, since other programs may support
     * what fstfs does not; so does merged/ unless it merges them into one file. They are not
     * re-cut, and no index names them. */
    bool is_kept;
    /* Checks that `count` files, in the order of their names, are parts of one model. NULL: there
     * is nothing to check. -EBADMSG with the reason; *file is the index of the file at fault. */
    errint_t (*check_files)(const struct st_table *const *tables, uint32_t count, uint32_t *file,
                            struct reason *reason);
    /* Whether a file of `size` bytes that begins with `first` may have this format. */
    bool (*starts_like)(const unsigned char first[CONTAINER_FIRST_BYTES], uint64_t size);
    /* Reads the header of the open file `fd` of `size` bytes. Errors, with a reason: -EBADMSG
     * (refused), -ENOMSG (is_converted: not a checkpoint), -ENOMEM, -ESTALE (the file changed),
     * errors of pread(2). */
    errint_t (*read)(int fd, uint64_t size, st_admit *admit, void *arg, struct st_table **table,
                     struct reason *reason);
};

extern const struct container container_safetensors, container_torch, container_gguf;

/* All, in the order of precedence; NULL after the last. */
extern const struct container *const container_all[];

/* Finds the container that has the suffix of a name of `length` bytes, and sets *suffix_length
 * unless that is NULL. NULL: the suffix is not that of a container. */
const struct container *container_of_name(const char *name, size_t length, size_t *suffix_length);

/* Compares by precedence: if a stem exists in several containers, the first one is used. */
int container_compare(const struct container *a, const struct container *b);

#endif
