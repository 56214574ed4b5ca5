/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent lists: what every file of the mount is.
 *
 * A file is a list of runs of bytes that lie in memory or in a backing file at
 * an offset. A list is immutable once made, counted, and shared by threads; the
 * view makes lists, src/io reads them, and neither knows more of the other.
 */
#ifndef FSTFS_BASE_EXTENT_H
#define FSTFS_BASE_EXTENT_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* Which bytes a path meant when it was looked at. */
struct file_identity {
    uint64_t device;
    uint64_t inode;
    uint64_t size;
    struct timespec modified;
    struct timespec changed;
    uint32_t mode;
    uint32_t owner;
    uint32_t group;
    uint32_t links;
};

void file_identity_from_stat(struct file_identity *identity, const struct stat *st);

/* The same of an open file, without asking for what its identity does not have:
 * FUSE and network file systems go to their server for a time of access. */
errint_t file_identity_from_fd(struct file_identity *identity, int fd);

/*
 * Whether `now` is still the same content as `then`: same device, inode, size
 * and modification time; and the change time either the same too or explained
 * by a new mode, owner, group or link count (chmod, chown, `cp -l`, a rename
 * over an open file), which leave the bytes alone.
 */
bool file_identity_same_content(const struct file_identity *then, const struct file_identity *now);

/* A number for the version of the file's content, that another process on this
 * machine makes of the same file; `seed` is that of the files before it, or 0. */
uint64_t file_identity_hash(const struct file_identity *identity, uint64_t seed);

/*
 * Where the pieces of a file lie that a reader takes one by one (tensors in a
 * shard or in a file of the mount), so that reading ahead can stop where the reader would, and go
 * on where it will. Immutable. Bytes between pieces belong to none.
 */
struct piece {
    uint64_t start, end; /* sorted, no overlaps, none empty */
    uint32_t next; /* which piece follows in the order of names; count: none */
};

struct layout {
    uint32_t count;
    struct piece pieces[];
};

/* The last piece that starts at or before `offset`; UINT32_MAX: none does. */
uint32_t layout_find(const struct layout *layout, uint64_t offset); /* NULL is allowed */

/*
 * Files that are read as one, as the shards of a checkpoint are: how the readers of
 * one go about it holds for the others. Counted.
 */
struct family {
    atomic_uint references;
    /* src/io's own, which guards it; malloc'ed, owned; NULL until it needs them. */
    void *habits;
};

struct family *family_new(void); /* NULL when out of memory */
struct family *family_ref(struct family *family); /* NULL is allowed */
void family_unref(struct family *family); /* NULL is allowed */

/*
 * One version of one file of the source. Counted; immutable but for the marked
 * fields. Made by src/catalog (or by a test), read by src/io.
 */
struct backing {
    atomic_uint references;
    /* Set once, by whoever first finds that the file behind the path is no
     * longer this version: from then on every read of it fails with ESTALE. */
    atomic_bool stale;
    /* Open files that have runs in it, each counted at least once: whoever has a
     * file open is to read this version on when the path means another. */
    atomic_uint readers;
    struct file_identity identity;
    /* Its pieces, at their offsets in it; NULL: not known. malloc'ed, owned; whoever makes the
     * backing sets it before the first read, or never. */
    struct layout *layout;
    /* Which it belongs to; NULL: none. Counted, set like the layout. */
    struct family *family;
    /* src/io's own state for this file (a cached descriptor); NULL until it
     * needs one. src/io guards it; `io_detach` is called on the last unref if
     * it is set, and must free the state. */
    void *io_state;
    void (*io_detach)(struct backing *backing);
    /* Where to open it: `path` relative to `directory` (an open directory that
     * outlives every backing), or absolute. */
    int directory;
    char path[];
};

struct backing *backing_new(int directory, const char *path, const struct file_identity *identity);
struct backing *backing_ref(struct backing *backing);
void backing_unref(struct backing *backing); /* NULL is allowed */

/* Immutable bytes in memory, counted: a header, an index, a status page. */
struct blob {
    atomic_uint references;
    size_t length;
    char *data; /* malloc'ed, owned */
};

/* Takes over `data` (malloc'ed). NULL when out of memory: `data` is freed. */
struct blob *blob_new(char *data, size_t length);
struct blob *blob_ref(struct blob *blob);
void blob_unref(struct blob *blob); /* NULL is allowed */

struct extent {
    uint64_t start; /* of this run in the file of the mount */
    uint64_t length; /* bytes, never 0 */
    uint64_t offset; /* of the run in the backing or the blob */
    struct backing *backing; /* where it lies; NULL: in `blob` */
    struct blob *blob;
};

/* Sorted by start, no holes, no overlaps: extents[0].start is 0 and each starts
 * where the one before it ends; the last ends at size. */
struct extent_list {
    atomic_uint references;
    uint32_t count;
    uint64_t size; /* bytes of the whole file */
    /* The pieces of the whole file, at their offsets in it; NULL: not known, or it has
     * but one. malloc'ed, owned; whoever makes the list sets it before it is shared. */
    struct layout *layout;
    struct extent extents[];
};

struct extent_list *extent_list_ref(struct extent_list *list);
void extent_list_unref(struct extent_list *list); /* NULL is allowed */

/* A file that is this list was opened, or closed: counts in each backing. */
void extent_list_opened(const struct extent_list *list);
void extent_list_closed(const struct extent_list *list);

/* Index of the extent that holds byte `offset`, which must be < size. */
uint32_t extent_list_find(const struct extent_list *list, uint64_t offset);

/* Builds a list by appending; runs that go on where the last one ended in the
 * same backing or blob are joined, empty runs are dropped. */
struct extent_builder {
    struct extent_list *list;
    uint32_t capacity;
    bool failed; /* out of memory or over 2^63 bytes */
};

#define EXTENT_BUILDER_INIT                                                                        \
    {                                                                                              \
        NULL, 0, false                                                                             \
    }

void extent_builder_add_backing(struct extent_builder *builder, struct backing *backing,
                                uint64_t offset, uint64_t length);
void extent_builder_add_blob(struct extent_builder *builder, struct blob *blob, uint64_t offset,
                             uint64_t length);
/* The list with one reference, or NULL when something failed; empties the builder. */
struct extent_list *extent_builder_finish(struct extent_builder *builder);

#endif
