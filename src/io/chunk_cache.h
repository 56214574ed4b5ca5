/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk cache: the bytes of backing files that the engine holds in memory.
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
 * One lock guards the cache, its chunks and files, and the requests. It is never held during I/O,
 * while memory is mapped or unmapped, or while a request is answered. Functions are called with it
 * held, unless stated otherwise.
 */
#ifndef FSTFS_IO_CHUNK_CACHE_H
#define FSTFS_IO_CHUNK_CACHE_H

#include "base/fifo.h"
#include "base/list.h"
#include "io/lanes.h"
#include "io/memory.h"
#include "io/prefetch.h"
#include "io/storage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Size of prefetched chunks. Larger reads were not faster on any storage. */
#define CHUNK_BYTES (1024 * 1024ull)
/* A smaller prefetched chunk may be a gap between bytes that readers request. */
#define SMALL_GAP_BYTES (64 * 1024)

struct cached_file;
struct pin;

/*
 * The memory of requests for one file system, or for one combination of them. A chunk that cannot
 * be evicted is charged to one lane: that of the request or prefetch that created it, or that of
 * the first request that pinned it when it was idle. `users`: charged chunks, and requests.
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
    bool is_charged; /* to the budget; the buffer is mapped before the read */
    struct memory_lane *lane; /* NULL: not charged to a lane */
    errint_t result; /* FAILED: a negative errno */
    unsigned pins; /* by requests */
    struct pin *waiters; /* the pins whose request waits for the chunk */
    uint64_t delivered; /* bytes in answers */
    bool is_prefetched;
    struct prefetch_plan plan; /* is_prefetched: the plan that it was read for */
    uint64_t idle_since; /* tick */
    struct list node; /* in an idle list, or in a batch to be submitted */
};

static inline uint64_t
chunk_end(const struct chunk *chunk)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): pins have their chunks */
    return chunk->read.offset + chunk->read.length;
}

#define DELIVERED_RANGES 32 /* remembered for each file */

struct byte_range {
    uint64_t start, end;
};

struct cached_file {
    struct chunk_cache *cache;
    struct backing *backing; /* without a reference: this struct is attached to it */
    struct chunk **chunks; /* sorted by offset */
    uint32_t count;
    struct prefetch prefetch;
    /* Bytes that the page cache held when a prefetch of them was canceled. */
    struct byte_range resident;
    uint64_t resident_tick; /* of that moment */
    /* Bytes that were delivered and evicted. They are not prefetched again: where several threads
     * share a file, each reads up to the bytes that the next one has read. */
    struct byte_range delivered[DELIVERED_RANGES];
    unsigned delivered_count, oldest_delivered;
    uint64_t delivered_again; /* bytes of these ranges that were requested again */
};

struct idle_list {
    struct list chunks; /* the one idle longest first */
    uint64_t bytes;
};

struct chunk_cache {
    pthread_mutex_t lock; /* guards all below except the counters */
    struct storage *storage;
    /* Called by the storage, without the lock, when the read of a chunk has ended. */
    void (*read_done)(struct storage_read *read, errint_t result);
    void *owner; /* of read_done */
    struct memory memory;
    struct list lanes; /* of struct memory_lane */
    uint64_t held; /* bytes of chunks charged to lanes */
    unsigned reading; /* charged chunks whose read has not ended */
    struct idle_list delivered; /* idle chunks that were delivered, except a block at each end */
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

/* Evicts idle chunks until `cost` more bytes fit into `budget`: delivered ones first, then, if
 * `undelivered` is set, others. Returns whether they fit. */
bool chunk_cache_make_room(struct chunk_cache *cache, uint64_t cost, uint64_t budget,
                           bool undelivered);

/* Advances the clock by one tick, and evicts chunks that have been idle for `ticks`. */
void chunk_cache_expire(struct chunk_cache *cache, uint64_t ticks);

/* A new indexed chunk of the blocks [start, end), READING, without a buffer. NULL: out of memory.
 */
struct chunk *chunk_new(struct cached_file *file, uint64_t start, uint64_t end, bool urgent);
/* Frees a chunk that is not charged. */
void chunk_discard(struct chunk *chunk);

/* The lane of a key: st_dev, or a hash of several. NULL: out of memory. */
struct memory_lane *chunk_cache_lane(struct chunk_cache *cache, uint64_t key);

/* Whether `cost` more bytes may be charged to a lane: it may have three quarters of the budget that
 * other lanes leave. */
bool memory_lane_allows(const struct chunk_cache *cache, const struct memory_lane *lane,
                        uint64_t cost);

/* Charges a chunk to the budget and to a lane, whose limits the caller has checked, and adds it to
 * a batch. */
void chunk_charge(struct chunk *chunk, struct memory_lane *lane, struct list *batch);
/* Maps missing buffers of a batch and submits its reads in the order in which the chunks were
 * added. The batch is empty afterwards. A chunk whose buffer cannot be mapped fails with -ENOMEM.
 * Without the lock. */
void chunk_cache_submit_batch(struct chunk_cache *cache, struct list *batch);

/* Charges the chunk to the lane if it was idle. */
void chunk_pin(struct chunk *chunk, struct memory_lane *lane);
/* `delivered`: bytes of the chunk in the answer of the request. May free the chunk. */
void chunk_unpin(struct chunk *chunk, uint64_t delivered);

/* Ends the read of a chunk; `result` is 0 or a negative errno. May free a chunk without pins. */
void chunk_end_read(struct chunk *chunk, errint_t result);

/* Index of the first chunk that ends after `offset`; file->count: there is none. */
uint32_t cached_file_find(const struct cached_file *file, uint64_t offset);

/* A request needs bytes [start, end), which are not cached. Forgets the delivered ranges once much
 * of them was requested again: the file is being read a second time. */
void cached_file_note_request(struct cached_file *file, uint64_t start, uint64_t end);

/* The end of the delivered range around `offset`, else `offset`. Lowers *end to the start of the
 * next delivered range. The blocks at the ends of a range are not part of it: they may be delivered
 * only in part. */
uint64_t cached_file_skip_delivered(const struct cached_file *file, uint64_t offset, uint64_t *end);

/* The end of the bytes around `offset` that the page cache held at this tick, else `offset`. */
uint64_t cached_file_skip_resident(const struct cached_file *file, uint64_t offset);

#endif
