/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine has in memory of the backing files: chunks, and for each
 * backing the sorted index of its chunks. Guarded by the engine's lock.
 */
#ifndef FSTFS_IO_CHUNKS_H
#define FSTFS_IO_CHUNKS_H

#include "io/prefetch.h"
#include "io/storage.h"

#include <stdbool.h>
#include <stdint.h>

struct io;
struct pin;
struct cached_file;

enum chunk_state {
    CHUNK_READING, /* the storage has it, or is about to */
    CHUNK_READY, /* the bytes are there and are of the version the backing names */
    CHUNK_FAILED /* no longer in the index; lives on while pinned */
};

/* A run of blocks of a backing. Chunks of one backing never overlap. */
struct chunk {
    struct storage_read read; /* where it lies, its buffer; alive while READING */
    struct cached_file *file;
    enum chunk_state state;
    errint_t result; /* of a failed one */
    unsigned pins; /* requests that have it */
    struct pin *waiters; /* those of them that wait for it */
    uint64_t served; /* bytes handed out */
    bool is_ahead; /* fetched before anybody asked */
    struct ahead ahead; /* what the stream intended for which it was */
    uint64_t touched; /* when, in ticks */
    struct chunk *previous, *next; /* in a list of idle ones, READY and not pinned */
    struct chunk *fresh; /* the next of those yet to be given to the storage */
};

static inline uint64_t
chunk_end(const struct chunk *chunk)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): pins have their chunks */
    return chunk->read.offset + chunk->read.length;
}

/* So many runs of a backing are remembered as handed out. */
#define MOST_TAKEN 32

struct span {
    uint64_t start, end;
};

/* What the engine knows of one backing. */
struct cached_file {
    struct io *io;
    struct backing *backing; /* not counted: the file hangs on it */
    struct chunk **chunks; /* sorted by offset */
    uint32_t count, capacity;
    struct prefetch prefetch;
    /* What was found in the page cache of the file when it was to be read ahead. */
    uint64_t resident_start, resident_end;
    uint64_t resident_at; /* the tick when that was so */
    /* What was handed out and let go. It is not read ahead again: threads that share a
     * file come to where another began. */
    struct span taken[MOST_TAKEN];
    unsigned taken_count, oldest_taken;
    uint64_t taken_again; /* bytes of it that were asked for once more */
};

/* The first chunk that ends after `offset`; count when there is none. */
uint32_t cached_file_find(const struct cached_file *file, uint64_t offset);

/* Adds a chunk in its place; false when out of memory. */
bool cached_file_insert(struct cached_file *file, struct chunk *chunk);
void cached_file_remove(struct cached_file *file, struct chunk *chunk);

/* Remembers that the run was handed out. */
void cached_file_took(struct cached_file *file, uint64_t start, uint64_t end);

/* Bytes [start, end) are to be read for a request. Forgets what was handed out when
 * a good part of it is asked for again: somebody reads it all once more. */
void cached_file_asked(struct cached_file *file, uint64_t start, uint64_t end);

/* The end of what was handed out around `offset`, or `offset`; `end` becomes the
 * start of the next that was, where that comes first. But for the blocks at the
 * ends, which the neighbours may want. */
uint64_t cached_file_taken(const struct cached_file *file, uint64_t offset, uint64_t *end);

/* A list of idle chunks: the one idle longest first. */
struct idle_list {
    struct chunk *first, *last;
    uint64_t bytes;
};

void idle_add(struct idle_list *list, struct chunk *chunk);
void idle_remove(struct idle_list *list, struct chunk *chunk);

#endif
