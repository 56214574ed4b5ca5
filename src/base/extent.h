/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent lists: the content of every file of the mount.
 *
 * An extent is a run of bytes in memory (a blob) or at an offset of a file of the source (a
 * backing). A list is immutable and reference-counted. src/view makes lists and src/io reads them;
 * neither depends on the other.
 */
#ifndef FSTFS_BASE_EXTENT_H
#define FSTFS_BASE_EXTENT_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/hash.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* Identifies the content that a path referred to at one time. */
struct file_identity {
    /* ID of the mount through which the file was reached. A file system that is mounted in place of
     * another may have the same device, inodes and times. Never reused since Linux 6.8; 0 before
     * 5.8. */
    uint64_t mount;
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

/* The identity of an open file, also with O_PATH. Uses statx(2) without the access time, for which
 * FUSE and network file systems would ask their server. */
errint_t file_identity_from_fd(struct file_identity *identity, int fd);
/* The same for a path relative to `directory`. Follows links. */
errint_t file_identity_at(struct file_identity *identity, int directory, const char *path);

/*
 * Whether both have the same mount, device, inode, size, modification time and change time. A new
 * change time counts as new content although chmod, chown, link and rename set it too: a write may
 * have happened together with them.
 */
bool file_identity_same_content(const struct file_identity *then, const struct file_identity *now);

/* Opens a file for reading and checks that it has the content of `identity`
 * (file_identity_same_content()). Returns a descriptor or a negative errno; -ESTALE: it has other
 * content. */
int file_identity_open(const struct file_identity *identity, int directory, const char *path);

/* A hash of the identity without the mount, equal in all processes and mount namespaces on this
 * machine. `seed`: the hash of the files before it, or 0. */
uint64_t file_identity_hash(const struct file_identity *identity, uint64_t seed);

/* A byte range that programs read as a unit: a tensor, for the prefetcher. */
struct piece {
    uint64_t start, end; /* start < end */
    uint32_t next; /* index of the next piece by name; layout->count: there is none */
};

/* Memory that is charged to a budget until it is freed. All zero: not charged. */
struct charge {
    void (*give)(void *arg, uint64_t bytes); /* returns it to the budget */
    void *arg;
    uint64_t bytes;
};

/* The pieces of a file, sorted, without overlaps; there may be bytes between them. Immutable and
 * reference-counted: the backings of a file share one. */
struct layout {
    atomic_uint references;
    struct charge charge; /* set before it is shared */
    uint32_t count;
    struct piece pieces[];
};

struct layout *layout_new(uint32_t count); /* uninitialized, not charged; NULL: out of memory */
struct layout *layout_ref(struct layout *layout); /* NULL is allowed */
void layout_unref(struct layout *layout); /* NULL is allowed */

/* Index of the last piece that starts at or before `offset`; UINT32_MAX: there is none. */
uint32_t layout_find(const struct layout *layout, uint64_t offset); /* NULL is allowed */

/* What src/io counts for each family (see below), in bytes. */
enum family_counter {
    FAMILY_STORAGE, /* read from the files */
    FAMILY_PAGE_CACHE, /* of these: from the page cache */
    FAMILY_PREFETCHED, /* read before they were requested */
    FAMILY_PREFETCHED_USED, /* of these: requested since */
    FAMILY_PREFETCHED_WASTED, /* of these: evicted without a request */
    FAMILY_COUNTERS,
};

/*
 * The files of a checkpoint, which programs read in the same way: what the prefetcher learns from
 * one applies to the others. Reference-counted.
 */
struct family {
    atomic_uint references;
    /* struct access_history of src/io, which guards it; malloc'ed, owned; NULL until needed. */
    void *history;
    atomic_uint_fast64_t counters[FAMILY_COUNTERS]; /* since the start */
    char name[]; /* DIRECTORY/STEM, relative to the source */
};

struct family *family_new(const char *directory, const char *stem); /* NULL: out of memory */
struct family *family_ref(struct family *family); /* NULL is allowed */
void family_unref(struct family *family); /* NULL is allowed */

/* NULL is allowed. */
static inline void
family_count(struct family *family, enum family_counter counter, uint64_t bytes)
{
    if (family)
        atomic_fetch_add_explicit(&family->counters[counter], bytes, memory_order_relaxed);
}

/*
 * One version of one file of the source. Reference-counted; immutable except for atomic fields and
 * those whose comment names a guard. Made by src/catalog and src/client, read by src/io.
 */
struct backing {
    atomic_uint references;
    /* Set once when the file is found to be another version. From then on every read fails with
     * ESTALE. */
    atomic_bool stale;
    /* Not 0 while a file of the mount with extents in this backing is open. Each open adds the
     * number of runs of consecutive extents in it. These files continue to read this version after
     * the path refers to another. */
    atomic_uint readers;
    struct file_identity identity;
    /* State of base/version.c. */
    _Atomic(unsigned) traits; /* of its file system and its writers */
    atomic_bool settled; /* the file had no writer, and every later change will be detected */
    /* ID of a mount that the path leads through, which is neither the file's nor the source's, and
     * may hang; 0: none. */
    atomic_uint_fast64_t crossed_mount;
    atomic_uint_fast64_t replace_at; /* monotonic_ms() when a new version is due; 0: never */
    struct file_identity accepted; /* the identity after harmless changes; guarded by version.c */
    /* State of base/lease.c, which guards it. */
    struct lease *lease; /* NULL: none */
    unsigned lease_users;
    void (*lease_detach)(struct backing *backing); /* unless NULL: called by the last unref */
    /* The creator of the backing sets both before the first read, or leaves them NULL. The backing
     * holds a reference to each. */
    struct layout *layout; /* NULL: not known */
    struct family *family; /* NULL: none */
    /* State of src/io, which guards it; NULL until the first read. */
    void *io_state;
    atomic_bool hides_pages; /* the kernel does not reveal which pages of the file are cached */
    void (*io_detach)(
        struct backing *backing); /* unless NULL: called by the last unref; frees it */
    /* The file is opened at `path`: absolute, or relative to `directory`, a descriptor that
     * outlives every backing. */
    int directory;
    char path[];
};

/* The key of the lane (io/lanes.h) for requests that may wait for this file. */
static inline uint64_t
backing_lane(const struct backing *backing)
{
    uint64_t crossed = atomic_load(&backing->crossed_mount), key = backing->identity.device;

    return crossed ? hash64(&crossed, sizeof(crossed), key) : key;
}

struct backing *backing_new(int directory, const char *path, const struct file_identity *identity);
struct backing *backing_ref(struct backing *backing);
void backing_unref(struct backing *backing); /* NULL is allowed */

/* Immutable, reference-counted bytes in memory: a header, an index, a status page. */
struct blob {
    atomic_uint references;
    size_t length;
    char *data; /* malloc'ed, owned */
};

/* Takes the bytes of a buffer, which is empty afterwards. NULL: out of memory, or the buffer has
 * failed. */
struct blob *blob_new(struct buffer *buffer);
void blob_unref(struct blob *blob); /* NULL is allowed */

struct extent {
    uint64_t start; /* offset in the list */
    uint64_t length; /* bytes, never 0 */
    uint64_t offset; /* in the backing or blob */
    struct backing *backing; /* NULL: the bytes are in `blob` */
    struct blob *blob;
};

/* Extents without gaps or overlaps: the first starts at 0, each other one starts where its
 * predecessor ends, and the last ends at `size`. */
struct extent_list {
    atomic_uint references;
    uint32_t count;
    uint64_t size; /* bytes */
    /* The kernel's readahead for this file, in bytes; 0: that of the mount. */
    atomic_uint_fast64_t readahead;
    /* Both are set by the creator of the list before it is shared. */
    struct charge charge; /* for the list, its layout and its blobs */
    struct layout *layout; /* of the whole list; counted; NULL: not known, or one piece */
    struct extent extents[];
};

struct extent_list *extent_list_ref(struct extent_list *list);
void extent_list_unref(struct extent_list *list); /* NULL is allowed */

/* Updates `readers` of each backing when a file with this content was opened or closed. */
void extent_list_opened(const struct extent_list *list);
void extent_list_closed(const struct extent_list *list);

/* Index of the extent that contains byte `offset` (< size). */
uint32_t extent_list_find(const struct extent_list *list, uint64_t offset);

/* The key of the lane of a read of bytes [offset, offset + length). A read of several file systems
 * has a lane of its own. */
uint64_t extent_list_lane(const struct extent_list *list, uint64_t offset, size_t length);

/* Builds a list by appending. A run that continues the previous one in the same backing or blob is
 * joined with it; empty runs are dropped. */
struct extent_builder {
    struct extent *extents;
    uint32_t count;
    uint64_t size; /* bytes */
    bool failed; /* out of memory or over 2^63 bytes */
};

#define EXTENT_BUILDER_INIT                                                                        \
    {                                                                                              \
        NULL, 0, 0, false                                                                          \
    }

void extent_builder_add_backing(struct extent_builder *builder, struct backing *backing,
                                uint64_t offset, uint64_t length);
void extent_builder_add_blob(struct extent_builder *builder, struct blob *blob, uint64_t offset,
                             uint64_t length);
/* Adds the bytes of a buffer, which is empty afterwards. */
void extent_builder_add_buffer(struct extent_builder *builder, struct buffer *buffer);
/* The list, with one reference; NULL: the builder has failed. Empties the builder. */
struct extent_list *extent_builder_finish(struct extent_builder *builder);

#endif
