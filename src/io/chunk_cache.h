/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk cache: what the engine holds of backing files in memory.
 *
 * A chunk is a run of whole blocks of one backing file. A cached_file is the sorted index of the
 * chunks of one backing, which never overlap. Requests pin the chunks they read from. Chunks that
 * no request pins are idle, and are evicted when memory is needed or when they have not been read
 * for some seconds.
 *
 *   state    indexed  charged        pins  in an idle list    next
 *   READING  yes      no at first    any   no                 READY, FAILED; freed if there is no
 *                                                             memory for its request
 *   READY    yes      yes            > 0   no                 READY with fewer pins
 *   READY    yes      yes            0     yes                pinned again, or evicted: freed
 *   FAILED   no       yes            > 0   no                 freed with the last pin
 *
 * One lock guards the cache, its chunks and files, and what the engine's other modules keep beside
 * them. It is held for bookkeeping only: never during I/O, while memory is mapped or unmapped, or
 * while a reader is answered.
 * Functions are called with it held, except those that say otherwise.
 */
#ifndef FSTFS_IO_CHUNK_CACHE_H
#define FSTFS_IO_CHUNK_CACHE_H

#include "base/fifo.h"
#include "io/lanes.h"
#include "io/memory.h"
#include "io/prefetch.h"
#include "io/storage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CHUNK_BYTES                                                                                \
    (1024 * 1024ull) /* of a prefetch; larger reads are not faster on any storage                  \
                      */
/* A prefetched chunk smaller than this may be a gap between what readers want. */
#define SMALL_GAP_BYTES (64 * 1024)

struct cached_file;
struct pin;

/*
 * The memory of requests for one file system, or for the same several file systems. A chunk that
 * cannot be evicted is charged to one lane: that of the request or the prefetch which made it, or
 * which pinned it first. `users`: chunks charged, and requests.
 */
struct memory_lane {
    struct lane lane;
    uint64_t bytes; /* of the chunks charged */
    unsigned active; /* requests that hold pins */
    struct fifo queued; /* requests that wait for memory */
};

enum chunk_state { CHUNK_READING, CHUNK_READY, CHUNK_FAILED };

struct chunk {
    struct storage_read read; /* offset, length and buffer; in use by the storage while READING */
    struct cached_file *file;
    enum chunk_state state;
    bool is_charged; /* its buffer is; the buffer itself may be mapped later, before the read */
    struct memory_lane *lane; /* NULL: it is not charged to one */
    errint_t result; /* FAILED: a negative errno */
    unsigned pins; /* by requests */
    struct pin *waiters; /* of these, those whose request waits for the chunk */
    uint64_t delivered; /* bytes given to readers */
    bool is_prefetched;
    struct prefetch_plan plan; /* is_prefetched: the prefetch decision that it was read for */
    uint64_t idle_since; /* tick */
    struct chunk *previous, *next; /* in an idle list */
    struct chunk *next_in_batch; /* the chunk to be submitted after this one */
};

static inline uint64_t
chunk_end(const struct chunk *chunk)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): pins have their chunks */
    return chunk->read.offset + chunk->read.length;
}

#define DELIVERED_SPANS 32 /* remembered for each file */

struct span {
    uint64_t start, end;
};

struct cached_file {
    struct chunk_cache *cache;
    struct backing *backing; /* not counted: the file is attached to it */
    struct chunk **chunks; /* sorted by offset */
    uint32_t count;
    struct prefetch prefetch;
    /* Bytes that the page cache was found to hold when they were to be prefetched. */
    struct span resident;
    uint64_t resident_tick; /* when that was found */
    /* Bytes that were delivered and evicted. They are not prefetched again: a thread that shares
     * a file with others reaches what the next one has read. */
    struct span delivered[DELIVERED_SPANS];
    unsigned delivered_count, oldest_delivered;
    uint64_t delivered_again; /* bytes of these spans that were requested again */
};

struct idle_list {
    struct chunk *first, *last; /* first: idle longest */
    uint64_t bytes;
};

void idle_list_add(struct idle_list *list, struct chunk *chunk);
void idle_list_remove(struct idle_list *list, struct chunk *chunk);

struct chunk_cache {
    pthread_mutex_t lock; /* guards all below but the counters */
    struct storage *storage;
    /* Called by the storage, without the lock, when the read of a chunk has ended. */
    void (*read_done)(struct storage_read *read, errint_t result);
    void *owner; /* of read_done */
    struct memory memory;
    struct lane *lanes; /* struct memory_lane; the one whose request was started last */
    uint64_t held; /* bytes of chunks charged to lanes: those that cannot be evicted */
    unsigned reading; /* chunks that are READING and charged */
    struct idle_list delivered; /* idle chunks of which nearly every byte was delivered */
    struct idle_list undelivered; /* other idle chunks */
    uint64_t ticks;
    atomic_uint_fast64_t prefetched, prefetched_used, prefetched_wasted, expired; /* bytes */
};

/* `budget`: bytes of all buffers. Without the lock. */
void chunk_cache_init(struct chunk_cache *cache, uint64_t budget);
/* Frees the memory. No chunk may be left: storage_free() drops them with their files. */
void chunk_cache_destroy(struct chunk_cache *cache);

/* Unlocks cache->lock, and then unmaps buffers that were freed with it held. */
void chunk_cache_unlock(struct chunk_cache *cache);

/* Gives the backing a cached_file, if it has none. False: out of memory. Without the lock. */
bool chunk_cache_attach(struct chunk_cache *cache, struct backing *backing);
/* The cached_file of a backing that has one, else NULL. With or without the lock. */
struct cached_file *chunk_cache_file(struct chunk_cache *cache, struct backing *backing);

/* Evicts idle chunks until `cost` more bytes fit into `budget`: delivered ones, then, with
 * `undelivered`, prefetched ones. Returns whether they fit. */
bool chunk_cache_make_room(struct chunk_cache *cache, uint64_t cost, uint64_t budget,
                           bool undelivered);

/* Advances the clock by one tick, and evicts chunks that have been idle for `ticks`. */
void chunk_cache_expire(struct chunk_cache *cache, uint64_t ticks);

/* A new indexed chunk of the blocks [start, end), READING, without a buffer. NULL: out of memory.
 */
struct chunk *chunk_new(struct cached_file *file, uint64_t start, uint64_t end, bool urgent);
/* Frees a chunk that is not charged. */
void chunk_discard(struct chunk *chunk);

/* The lane of a key, which is the st_dev of its file system. NULL: out of memory. */
struct memory_lane *chunk_cache_lane(struct chunk_cache *cache, uint64_t key);

/* Whether a lane may have `cost` more bytes of chunks that cannot be evicted: in all three quarters
 * of what the others leave. */
bool memory_lane_allows(const struct chunk_cache *cache, const struct memory_lane *lane,
                        uint64_t cost);

/* Charges the buffer of a chunk to the budget and to a lane, and adds the chunk to a batch. The
 * caller has checked both. */
void chunk_charge(struct chunk *chunk, struct memory_lane *lane, struct chunk **batch);
/* Maps the missing buffers of a batch and submits it to the storage, in the order in which chunks
 * were added. A chunk for which the system has no memory fails with -ENOMEM. Without the lock. */
void chunk_cache_submit_batch(struct chunk_cache *cache, struct chunk *batch);

/* An idle chunk is charged to the lane. */
void chunk_pin(struct chunk *chunk, struct memory_lane *lane);
/* `delivered`: bytes of the chunk that the owner of the pin gave to its reader. */
void chunk_unpin(struct chunk *chunk, uint64_t delivered);

/* The storage has read the chunk, or failed to (`result` < 0). May free it if nothing pins it. */
void chunk_end_read(struct chunk *chunk, errint_t result);

/* Index of the first chunk that ends after `offset`; file->count: there is none. */
uint32_t cached_file_find(const struct cached_file *file, uint64_t offset);

/* A request needs bytes [start, end). Forgets the delivered spans once a good part of them was
 * requested again: somebody reads the file a second time. */
void cached_file_note_request(struct cached_file *file, uint64_t start, uint64_t end);

/* The end of the delivered span around `offset`, else `offset`. *end is lowered to the start of
 * the next delivered span. Blocks at the ends of spans are left out: neighbours may want them. */
uint64_t cached_file_skip_delivered(const struct cached_file *file, uint64_t offset, uint64_t *end);

/* The end of the bytes around `offset` that the page cache held at this tick, else `offset`. */
uint64_t cached_file_skip_resident(const struct cached_file *file, uint64_t offset);

#endif
