/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of src/catalog share. No other folder includes it. Each of them calls only those
 * above it:
 *
 *   group.c, problems.c, header_budget.c
 *   source.c          looks at and opens files by their path in the source
 *   index_file.c      reads index files
 *   table_cache.c     one parsed header for each version of a file
 *   shard.c           one shard: its file, its version and its table
 *   checkpoint.c      puts shards together
 *   freshness.c       the current version of a checkpoint
 *   listing.c         the names of a directory
 *   catalog.c         the table of directories
 */
#ifndef FSTFS_CATALOG_PRIVATE_H
#define FSTFS_CATALOG_PRIVATE_H

#include "catalog/catalog.h"
#include "catalog/header_budget.h"
#include "catalog/table_cache.h"
#include "format/index.h"

#include <pthread.h>

enum { DIRECTORY_BUCKETS = 4096 };

/* Headers and files that one checkpoint reads and looks at in parallel: enough to hide the latency
 * of network storage. */
enum { CHECKPOINT_THREADS = 16 };

struct catalog {
    int root_fd; /* the source; all paths are relative to it. Its number never changes */
    atomic_bool root_checking; /* a thread checks whether it is still the source */
    atomic_ullong root_checked; /* monotonic_ms() of the last check */
    char *source;
    void (*derived_free)(void *derived);
    struct problems *problems;
    pthread_mutex_t
        lock; /* guards the members up to reclaim_bucket, and references of directories */
    struct st_index *kept_index; /* see catalog_keep_index(); NULL: none */
    struct file_identity kept_identity; /* of its file */
    struct source_dir *directories[DIRECTORY_BUCKETS];
    size_t reclaim_bucket; /* where the next search for an idle checkpoint begins */
    struct header_budget budget;
    struct table_cache tables;
    atomic_ullong serial; /* of the last checkpoint */
    atomic_ullong listings, headers, header_bytes, tensors, checkpoints;
};

struct source_dir {
    struct catalog *catalog;
    struct source_dir *next; /* in its bucket */
    unsigned references; /* guarded by catalog->lock */
    atomic_ullong device; /* see source_dir_device() */
    pthread_mutex_t lock; /* guards `listing`; held while it is made */
    struct listing *listing;
    atomic_ullong expired; /* monotonic_ms() of the last source_dir_expire() */
    atomic_ullong listing_expired; /* and of the last source_dir_expire_listing() */
    char path[];
};

/* ---- source.c ---- */

/* Whether a check at `checked` (monotonic_ms()) is so old that `ms` have passed since, or the
 * directory was expired. */
bool source_dir_is_older(const struct source_dir *dir, uint64_t checked, uint64_t ms);

/* The time of a check that began at `began` and ends now: `began`, if the directory was expired
 * meanwhile, so that the check is repeated. */
uint64_t source_dir_checked(const struct source_dir *dir, uint64_t began);

/* Whether both have the same content, mode and owner. */
bool file_identity_equal(const struct file_identity *a, const struct file_identity *b);

/* Opens a directory of the source, or a file in it; a descriptor or a negative errno. */
int source_dir_open_self(struct source_dir *dir);
int source_dir_open(struct source_dir *dir, const char *name);

/* ---- index_file.c ---- */

/*
 * Reads and parses an index file. On failure `reason` is set. `identity` is set in any case; it is
 * all zero, so that the next check reads the file again, if the error may be temporary.
 */
errint_t source_dir_index(struct source_dir *dir, const char *name, struct st_index **index,
                          struct file_identity *identity, struct reason *reason);
/* Frees what source_dir_index() returned. NULL is allowed. */
void catalog_free_index(struct catalog *catalog, struct st_index *index);

/* Keeps the index, which it takes over, for the next source_dir_index() of the same file: a listing
 * parses it for the names of the shards, and the checkpoint is mostly read next. One is kept, until
 * the budget needs its memory. */
void catalog_keep_index(struct catalog *catalog, struct st_index *index,
                        const struct file_identity *identity);
/* Frees the kept index. Returns false if there is none. */
bool catalog_drop_index(struct catalog *catalog);

/* ---- shard.c ---- */

/* Reads a shard's header. NULL: out of memory. Anything else that is wrong is its refusal. */
struct shard *shard_load(struct source_dir *dir, const char *name, struct family *family);
/* Whether the file is unchanged since the shard was loaded, and its version has not ended: a stale
 * backing stays stale, and reopening after recovery needs another. Waits for storage. */
bool shard_is_current(struct source_dir *dir, const struct shard *shard);
void shard_unref(struct catalog *catalog, struct shard *shard); /* NULL is allowed */

/* ---- checkpoint.c ---- */

/* Reads a group's headers and puts them together. Shards of `before` (the version before, or NULL)
 * whose file is unchanged are shared with it. */
errint_t checkpoint_load(struct source_dir *dir, const struct group *group,
                         const struct checkpoint *before, struct checkpoint **checkpoint);

/* ---- freshness.c ---- */

/* The current version of one checkpoint. Listings that agree on its members share it. */
struct group_state *group_state_new(void); /* NULL: out of memory */
struct group_state *group_state_ref(struct group_state *state);
void group_state_unref(struct group_state *state); /* NULL is allowed */
/* Takes the checkpoint out if it uses memory and nothing else refers to it; it is loaded again when
 * it is needed. NULL: there is none, or the state is locked. Does not wait. */
struct checkpoint *group_state_take_idle(struct group_state *state);

#endif
