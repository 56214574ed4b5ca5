/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source tree: which directories, checkpoints and other files there are,
 * kept true while it changes.
 *
 * Nothing is looked at before it is asked for: a directory is listed when its
 * listing is asked for, headers are read when a checkpoint is. What was found is
 * held in immutable, counted objects (listing, checkpoint, shard); when a check
 * finds that the source has changed, a new object takes the old one's place, and
 * whoever holds the old one keeps it. Checks happen when somebody asks, at most
 * once in CATALOG_CHECK_MS for each object.
 *
 * Any thread may call anything here. Calls wait on storage.
 */
#ifndef FSTFS_CATALOG_CATALOG_H
#define FSTFS_CATALOG_CATALOG_H

#include "base/error.h"
#include "base/extent.h"
#include "catalog/permission.h"
#include "catalog/problems.h"
#include "format/safetensors.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/statvfs.h>

enum { CATALOG_CHECK_MS = 400 };

/* Milliseconds of a clock that only goes forward. */
uint64_t now_ms(void);

struct catalog;
struct source_dir;
struct listing;
struct checkpoint;

/* A regular file of the source as it was last looked at. */
struct source_file {
    struct file_identity identity;
    struct access access; /* as the mount shows it */
};

/* How the shards of a checkpoint were found, strongest claim first. */
enum group_kind {
    GROUP_INDEX, /* an index names them */
    GROUP_NUMBERED, /* STEM-NNNNN-of-MMMMM.safetensors */
    GROUP_SINGLE, /* STEM.safetensors */
};

/* One checkpoint of a listing, headers not read. Strings belong to the listing. */
struct group {
    const char *stem;
    const char *index; /* the index's file name, or NULL */
    const char *const *members; /* shards that are there, sorted by name */
    uint32_t member_count;
    uint32_t missing_count; /* shards that should be there and are not */
    enum group_kind kind;
    bool shadowed; /* a stronger group of the listing has the same stem */
    struct group_state *state; /* the catalog's own: the version now known */
};

/* What is in one directory, in the order of names (strcmp). Immutable. */
struct listing {
    atomic_uint references;
    uint32_t directory_count, file_count, group_count;
    const char *const *directories; /* links to directories among them */
    const char *const *files; /* all that is neither shard nor index */
    const struct group *groups; /* sorted by stem, the strongest of a stem first */
    struct problem_set *problems; /* the view may add to it */
    struct listing_private *private;
};

/* One shard, its header read. Immutable, counted, shared by versions. */
struct shard {
    atomic_uint references;
    const char *name; /* file name */
    struct source_file file;
    struct backing *backing; /* NULL when the file could not be opened */
    struct st_table *table; /* NULL when the shard is refused */
    char *refusal; /* why, one line; NULL when sound */
};

struct tensor_ref {
    uint32_t shard; /* index into checkpoint->shards */
    uint32_t tensor; /* index into its table->tensors */
};

/*
 * One version of a checkpoint. Immutable but for `derived`.
 */
struct checkpoint {
    atomic_uint references;
    uint64_t serial; /* never used twice in one process */
    const char *directory; /* of the source, for messages */
    const char *stem;
    uint32_t shard_count;
    uint32_t tensor_count;
    struct shard **shards; /* sorted by file name */
    const struct tensor_ref *tensors; /* by name; those that stand in one shard only */
    struct access access; /* that of all its shards together */
    struct timespec modified; /* the newest shard's */
    bool has_total_size; /* its index says a metadata.total_size */
    uint64_t total_size;
    /* Why no whole can be made of it (merged/, re-cut); NULL when one can. */
    const char *unsound;
    struct problem_set *problems; /* the view may add to it */
    /* The view's: what it worked out for this version. Set once (compare and
     * swap from NULL), freed by the function given to catalog_new(). */
    _Atomic(void *) derived;
    struct catalog *catalog;
    struct checkpoint_private *private;
};

static inline const struct st_tensor *
checkpoint_tensor(const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    return &checkpoint->shards[ref.shard]->table->tensors[ref.tensor];
}

struct catalog_options {
    const char *source; /* path of an existing directory */
    bool shared; /* others than the mounting user may enter: links narrow modes */
    void (*derived_free)(void *derived);
    struct problem_watch problems; /* all zero: the log is told */
};

errint_t catalog_new(const struct catalog_options *options, struct catalog **catalog);
/* Everything handed out must have been let go. */
void catalog_free(struct catalog *catalog);

const char *catalog_source(const struct catalog *catalog); /* absolute, real */
bool catalog_shared(const struct catalog *catalog); /* as in the options */
int catalog_source_fd(const struct catalog *catalog); /* it, open; the catalog's own */
struct problems *catalog_problems(struct catalog *catalog);
errint_t catalog_statvfs(struct catalog *catalog, struct statvfs *out);

/* What the catalog did since its start, for metrics. */
struct catalog_counters {
    uint64_t listings, headers, header_bytes;
    uint64_t tensors, checkpoints, table_bytes; /* held now */
};
void catalog_counters(struct catalog *catalog, struct catalog_counters *counters);

/* The source's own directory; a new reference. */
struct source_dir *catalog_root(struct catalog *catalog);
/* The object for a directory inside `dir`; it need not exist. NULL: no memory. */
struct source_dir *source_dir_child(struct source_dir *dir, const char *name);
struct source_dir *source_dir_ref(struct source_dir *dir);
void source_dir_unref(struct source_dir *dir);
const char *source_dir_path(const struct source_dir *dir); /* relative to the source; "" the root */

/* stat of the directory itself. -ENOENT, -ENOTDIR, ... */
errint_t source_dir_stat(struct source_dir *dir, struct stat *st, struct access *access);

/* The directory's listing as it is now; unref it. */
errint_t source_dir_listing(struct source_dir *dir, struct listing **listing);
void listing_unref(struct listing *listing);

/* Looks at the regular file `name` of the directory, through links. */
errint_t source_dir_file(struct source_dir *dir, const char *name, struct source_file *file);
/* A backing for that version of that file. NULL: out of memory. */
struct backing *source_dir_backing(struct source_dir *dir, const char *name,
                                   const struct source_file *file);

/* The checkpoint of a group as it is now, headers read; unref it. Fails only for
 * want of memory: whatever is wrong with the shards is in the checkpoint. */
errint_t group_checkpoint(struct source_dir *dir, const struct group *group,
                          struct checkpoint **checkpoint);
/* A number for the versions of all its shards, see file_identity_hash(). */
uint64_t checkpoint_version(const struct checkpoint *checkpoint);
struct checkpoint *checkpoint_ref(struct checkpoint *checkpoint);
void checkpoint_unref(struct checkpoint *checkpoint);

#endif
