/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of src/catalog share and nobody else sees.
 */
#ifndef FSTFS_CATALOG_PRIVATE_H
#define FSTFS_CATALOG_PRIVATE_H

#include "catalog/catalog.h"
#include "catalog/header_budget.h"
#include "catalog/table_cache.h"
#include "format/index.h"

#include <pthread.h>

enum { DIRECTORY_BUCKETS = 4096 };

struct catalog {
    int root_fd; /* the source, open; every path is relative to it. Always this number */
    atomic_bool root_checking; /* a thread looks whether it is still the source */
    atomic_ullong root_checked; /* when one did last */
    char *source;
    void (*derived_free)(void *derived);
    struct problems *problems;
    pthread_mutex_t lock; /* guards the table of directories and their counts, and: */
    struct st_index *kept_index; /* the index parsed last, if nobody took it; or NULL */
    struct file_identity kept_identity; /* the file it was read of */
    struct source_dir *directories[DIRECTORY_BUCKETS];
    size_t reclaim_bucket; /* guarded by lock: where to look next for an idle checkpoint */
    struct header_budget budget;
    struct table_cache tables;
    atomic_ullong serial; /* the last one given to a checkpoint */
    atomic_ullong listings, headers, header_bytes, tensors, checkpoints;
};

struct source_dir {
    struct catalog *catalog;
    struct source_dir *next; /* in its bucket */
    unsigned references; /* guarded by catalog->lock */
    atomic_ullong device; /* see source_dir_device() */
    pthread_mutex_t lock; /* guards listing; held while it is made, which only those
                           * wait for who want it */
    struct listing *listing;
    atomic_ullong expired; /* monotonic_ms() of the last source_dir_expire() */
    atomic_ullong listing_expired; /* and of the last source_dir_expire_listing() */
    char path[];
};

/* The version of a checkpoint now known, shared by the listings that agree on
 * its members. */
struct group_state {
    atomic_uint references;
    pthread_mutex_t lock; /* guards the rest; held while headers are read, which only
                           * those wait for who want them, but not while files are looked at */
    pthread_cond_t looked; /* looking has become false */
    bool looking; /* a thread looks whether the files of the checkpoint are what they were */
    struct checkpoint *checkpoint;
    struct problem_set *problems; /* of the checkpoint that was dropped; or NULL */
    uint64_t checked;
};

struct group_state *group_state_new(void); /* NULL: out of memory */
struct group_state *group_state_ref(struct group_state *state);
void group_state_unref(struct group_state *state); /* NULL is allowed */
/* The state's reference to its checkpoint if nobody else has one and its tables take memory;
 * it is loaded again when it is asked for. Does not wait: NULL where the state is in use. */
struct checkpoint *group_state_take_idle(struct group_state *state);

/* Whether what was checked at this time has to be checked again. */
bool source_dir_check_is_due(const struct source_dir *dir, uint64_t checked);
/* Whether what is being checked again, and was at this time, must be waited for. */
bool source_dir_check_is_overdue(const struct source_dir *dir, uint64_t checked);
/* When a check that began at `began` and ends now was made: source_dir_expire() meanwhile asks for
 * another. */
uint64_t source_dir_checked(const struct source_dir *dir, uint64_t began);

bool file_identity_equal(const struct file_identity *a, const struct file_identity *b);

/* Opens a file of the directory for reading; a descriptor or a negative errno. */
int source_dir_open(struct source_dir *dir, const char *name);

/* Keeps a parsed index (taken over) for the next source_dir_index() of the same
 * file: a listing parses it for the names of the shards, and who listed a
 * directory mostly wants the checkpoint next. One is kept, the last, until the budget
 * needs its memory. */
void catalog_keep_index(struct catalog *catalog, struct st_index *index,
                        const struct file_identity *identity);

/* Frees the kept index; false: there is none. */
bool catalog_drop_index(struct catalog *catalog);

/* Frees what source_dir_index() gave. NULL is allowed. */
void catalog_free_index(struct catalog *catalog, struct st_index *index);

/* Reads and parses an index file. `identity` (all zero when it could not be
 * read, so that it is read again at the next look) and `reason` are filled in any case of failure
 * too. */
errint_t source_dir_index(struct source_dir *dir, const char *name, struct st_index **index,
                          struct file_identity *identity, struct reason *reason);

#endif
