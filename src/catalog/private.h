/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of src/catalog; no other folder includes it. Each file calls only those above
 * it in this list, except source_dir_unref() in catalog.c, which frees the directory's listing:
 *
 *   problems.c, group_names.c, group.c, header_budget.c, query_pool.c
 *   source.c          stats and opens files by their path in the source
 *   index_file.c      reads index files
 *   table_cache.c     one parsed header for each version of a file
 *   shard.c           one shard: its file, its version and its table
 *   checkpoint.c      assembles a checkpoint from its shards
 *   freshness.c       the current version of a checkpoint
 *   group_query.c     loads checkpoints whose files are on file systems that may hang
 *   name_query.c      looks up names that are links to other file systems
 *   scan.c            reads a directory
 *   listing.c         the names of a directory
 *   candidates.c      the checkpoint of a directory, for programs that are given only the directory
 *   catalog.c         the table of directories
 */
#ifndef FSTFS_CATALOG_PRIVATE_H
#define FSTFS_CATALOG_PRIVATE_H

#include "catalog/catalog.h"
#include "catalog/header_budget.h"
#include "catalog/query_pool.h"
#include "catalog/table_cache.h"
#include "format/index.h"

#include <pthread.h>

enum { DIRECTORY_BUCKETS = 4096 };

struct catalog {
    int root_fd; /* the source, to which all paths are relative; its number never changes */
    atomic_bool root_checking; /* a thread checks whether it is still the source */
    atomic_ullong root_checked; /* monotonic_ms() of the last check */
    bool has_reported_root; /* that its renewal is refused; guarded by root_checking */
    struct renewal_path source;
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
    struct query_pool *queries; /* NULL: without catalog_options.skip_hung */
    atomic_ullong serial; /* of the last checkpoint */
    atomic_ullong listings, headers, header_bytes, tensors, checkpoints;
};

struct source_dir {
    struct catalog *catalog;
    struct source_dir *next; /* in its bucket */
    unsigned references; /* guarded by catalog->lock */
    atomic_ullong device; /* see source_dir_device() */
    pthread_mutex_t lock; /* held while a listing is made */
    /* NULL: not read yet, or the last attempt failed. Replaced with `lock` and catalog->lock held;
     * read with either. */
    struct listing *listing;
    errint_t list_error; /* of the last attempt to read it; guarded by catalog->lock */
    struct problem_set *list_problem; /* reports list_error; or NULL; guarded by catalog->lock */
    atomic_ullong expired; /* monotonic_ms() of the last source_dir_expire() */
    atomic_ullong listing_expired; /* and of the last source_dir_expire_listing() */
    atomic_bool has_late_answer; /* to a query; the listing must be made again */
    char path[];
};

/* ---- source.c ---- */

/* Whether at least `ms` have passed since a check at `checked` (monotonic_ms()), or the directory
 * was expired since. */
bool source_dir_is_older(const struct source_dir *dir, uint64_t checked, uint64_t ms);

/* The time to record for a check that began at `began` and ends now. It is `began` if the directory
 * was expired in between, so that the check is repeated. */
uint64_t source_dir_checked(const struct source_dir *dir, uint64_t began);

/* Whether both have the same content, mode, owner and group. */
bool file_identity_equal(const struct file_identity *a, const struct file_identity *b);

/* Opens a directory of the source, or a file in it; a descriptor or a negative errno. */
int source_dir_open_self(struct source_dir *dir);
int source_dir_open_path(struct source_dir *dir); /* with O_PATH */
int source_dir_open(struct source_dir *dir, const char *name);

/* ---- index_file.c ---- */

/*
 * Reads and parses an index file. On failure `reason` is set. `identity` is always set: to all zero
 * if the error may be temporary, so that the next check reads the file again.
 */
errint_t source_dir_index(struct source_dir *dir, const char *name, struct st_index **index,
                          struct file_identity *identity, struct reason *reason);
/* Frees what source_dir_index() returned. NULL is allowed. */
void catalog_free_index(struct catalog *catalog, struct st_index *index);

/* Takes ownership of the index and keeps it for the next source_dir_index() of the same file: a
 * listing parses it for the names of the shards, and usually the checkpoint is loaded next. Only
 * the last index is kept, until the budget needs its memory. */
void catalog_keep_index(struct catalog *catalog, struct st_index *index,
                        const struct file_identity *identity);
/* Frees the kept index. Returns false if there is none. */
bool catalog_drop_index(struct catalog *catalog);

/* ---- shard.c ---- */

#define UNFINISHED_TEXT                                                                            \
    "its download by aria2 is not finished: FILE" ARIA2_CONTROL_SUFFIX " is beside it"

/* Reads the header of a member of the group. NULL: out of memory. Any other error is recorded as
 * the shard's refusal. */
struct shard *shard_load(struct source_dir *dir, const struct group *group, const char *name,
                         struct family *family);
/* Whether the file is unchanged since the shard was loaded and its version has not ended. A stale
 * backing stays stale; reopening after recovery needs a new one. Waits for storage. */
bool shard_is_current(struct source_dir *dir, const struct shard *shard);
void shard_unref(struct catalog *catalog, struct shard *shard); /* NULL is allowed */

/* ---- checkpoint.c ---- */

/* Reads a group's headers, at most `threads` of them in parallel, and assembles its checkpoint.
 * Shards whose file is unchanged are shared with `before`, the previous version or NULL. */
errint_t checkpoint_load(struct source_dir *dir, const struct group *group,
                         const struct checkpoint *before, unsigned threads,
                         struct checkpoint **checkpoint);
/* Whether the header of any of its shards is in memory. */
bool checkpoint_has_table(const struct checkpoint *checkpoint);

/* ---- freshness.c ---- */

/* The current version of one checkpoint. Listings that agree on its members share it. */
struct group_state {
    atomic_uint references;
    pthread_mutex_t lock; /* guards the rest; held while headers are read, but not during a check */
    pthread_cond_t check_ended; /* is_checking has become false */
    bool is_checking; /* a thread checks the files of the checkpoint */
    struct checkpoint *checkpoint; /* NULL: not loaded, or reclaimed */
    struct problem_set *problems; /* of the reclaimed checkpoint; NULL: none */
    uint64_t checked; /* monotonic_ms() */

    /* Taken after `lock` and catalog->lock; neither is taken, and nothing is waited for, while it
     * is held. Guards `query`, and is also held while `checkpoint` or `problems` is replaced. */
    pthread_mutex_t known_lock;
    struct query *query; /* that loads or checks the checkpoint; a reference; NULL: none */
};

struct group_state *group_state_new(void); /* NULL: out of memory */
struct group_state *group_state_ref(struct group_state *state);
void group_state_unref(struct group_state *state); /* NULL is allowed */
/* Whether there is a checkpoint that need not be checked yet. False if another thread loads it.
 * Does not wait. */
bool group_state_is_fresh(struct source_dir *dir, struct group_state *state);
/* Removes and returns the checkpoint if it uses memory and has no other references; it is loaded
 * again on demand. NULL: there is none, or the state is locked. Does not wait. */
struct checkpoint *group_state_take_idle(struct group_state *state);
/* The problems of the current version; a reference. NULL: it was never loaded. Does not wait. */
struct problem_set *group_state_problems(struct group_state *state);

/* The current version, or the last known one if the storage of its lane does not answer. */
errint_t group_current_or_known(struct source_dir *dir, const struct group *group,
                                struct checkpoint **checkpoint);

#endif
