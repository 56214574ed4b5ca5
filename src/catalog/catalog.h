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
 * once in CATALOG_CHECK_MS for each object, and by one thread.
 *
 * Any thread may call anything here. Calls wait on storage.
 */
#ifndef FSTFS_CATALOG_CATALOG_H
#define FSTFS_CATALOG_CATALOG_H

#include "base/error.h"
#include "base/extent.h"
#include "catalog/header_budget.h"
#include "catalog/ownership.h"
#include "catalog/problems.h"
#include "format/safetensors.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/statvfs.h>

enum { CATALOG_CHECK_MS = 400 };
/* For so much longer a checkpoint is given out as it was, while a thread looks at its files. */
enum { CATALOG_LOOKING_MS = 100 };

struct catalog;
struct source_dir;
struct listing;
struct checkpoint;

/* A regular file of the source as it was last looked at. */
struct source_file {
    struct file_identity identity;
    struct ownership ownership; /* as the mount shows it */
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
    const char *suffix; /* of its files, or the one in its index's name: ".safetensors", ".sft" */
    const char *index; /* the index's file name, or NULL */
    const char *const *members; /* shards that are there, sorted by name */
    uint32_t member_count;
    uint32_t missing_count; /* shards that should be there and are not */
    enum group_kind kind;
    bool second; /* a group before it in the listing has the same stem */
    bool shadowed; /* and the same suffix: that one is stronger */
    struct group_state *state; /* the catalog's own: the version now known */
};

/* What is in one directory, in the order of names (strcmp). Immutable. */
struct listing {
    atomic_uint references;
    uint32_t directory_count, file_count, group_count;
    const char *const *directories; /* links to directories among them */
    const char *const *files; /* all that is neither shard nor index */
    const struct group *groups; /* sorted by stem and suffix, the strongest first */
    struct problem_set *problems; /* the view may add to it */
    struct listing_private *private;
};

/* One shard, its header read. Immutable, counted, shared by versions. */
struct shard {
    atomic_uint references;
    const char *name; /* file name */
    struct source_file file;
    struct backing *backing; /* of a sound one set */
    struct st_table *table; /* NULL when the shard is refused; shared by links to the file */
    struct kept_table *kept; /* the catalog's own: what `table` is of */
    char *refusal; /* why, one line; NULL when sound */
    errint_t error; /* of the refusal; 0 when sound */
    bool temporary; /* refused for what may be otherwise at the next look */
};

struct tensor_ref {
    uint32_t shard; /* index into checkpoint->shards */
    uint32_t tensor; /* index into its table->tensors */
};

/*
 * One version of a checkpoint. Immutable but for `derived` and `no_room_reported`.
 */
struct checkpoint {
    atomic_uint references;
    uint64_t serial; /* never used twice in one process */
    const char *directory; /* of the source, for messages */
    const char *stem, *suffix; /* see struct group */
    uint32_t shard_count;
    uint32_t tensor_count;
    struct shard **shards; /* sorted by file name */
    const struct tensor_ref *tensors; /* by name; those that stand in one shard only */
    struct ownership ownership; /* of all its shards combined */
    struct timespec modified; /* the newest shard's */
    bool has_total_size; /* its index says a metadata.total_size */
    uint64_t total_size;
    const char *index_metadata; /* its index's, a JSON object, checked; NULL: none */
    size_t index_metadata_length;
    /* Why no whole can be made of it (merged/, re-cut); NULL when one can. */
    const char *unsound;
    bool busy; /* a shard is left out since another process has it open for writing */
    struct problem_set *problems; /* the view may add to it */
    atomic_bool no_room_reported; /* see checkpoint_report_no_room() */
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
    bool path_only; /* open it with O_PATH: FUSE servers list a directory that is opened to be read
                     */
    void (*derived_free)(void *derived);
    struct problem_watch problems; /* all zero: the log is told */
    uint64_t header_memory; /* bytes for headers; at least HEADER_BUDGET_LEAST is used */
};

errint_t catalog_new(const struct catalog_options *options, struct catalog **catalog);
/* Everything handed out must have been let go. */
void catalog_free(struct catalog *catalog);

const char *catalog_source(const struct catalog *catalog); /* absolute, real */
int catalog_source_fd(const struct catalog *catalog); /* it, open; the catalog's own */
struct problems *catalog_problems(struct catalog *catalog);
/* What memory for headers and for what is made of them is charged to. NULL for no catalog, as of
 * the checkpoints that fstfs-pack puts together. */
struct header_budget *catalog_budget(struct catalog *catalog);
errint_t catalog_statvfs(struct catalog *catalog, struct statvfs *out);

/* What the catalog did since its start, for metrics. */
struct catalog_counters {
    uint64_t listings, headers, header_bytes;
    uint64_t tensors, checkpoints, table_bytes; /* held now */
    struct header_budget_counters budget;
};
void catalog_counters(struct catalog *catalog, struct catalog_counters *counters);

/* The source's own directory; a new reference. */
struct source_dir *catalog_root(struct catalog *catalog);
/* The object for a directory inside `dir`; it need not exist. NULL: no memory. */
struct source_dir *source_dir_child(struct source_dir *dir, const char *name);
struct source_dir *source_dir_ref(struct source_dir *dir);
void source_dir_unref(struct source_dir *dir);
const char *source_dir_path(const struct source_dir *dir); /* relative to the source; "" the root */

/* st_dev of the directory as source_dir_stat() last found it; 0 before. Does not wait. */
uint64_t source_dir_device(const struct source_dir *dir);

/* stat of the directory itself. -ENOENT, -ENOTDIR, ... */
errint_t source_dir_stat(struct source_dir *dir, struct stat *st);

/* Makes the next request for the directory's listing or for one of its checkpoints look at
 * the source, however lately that was done. */
void source_dir_expire(struct source_dir *dir);
/* Makes the next request for the listing look at the directory and its indexes; where they have
 * changed, the next ones for its checkpoints look at the shards, too. */
void source_dir_expire_listing(struct source_dir *dir);

/* The directory's listing as it is now; unref it. */
errint_t source_dir_listing(struct source_dir *dir, struct listing **listing);
/* The directory that the listing was read from, as it was then. */
const struct file_identity *listing_directory(const struct listing *listing);
static inline struct listing *
listing_ref(struct listing *listing)
{
    atomic_fetch_add(&listing->references, 1);
    return listing;
}
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
/* As group_checkpoint(), for a group that no listing has: its `state` is not used, and the headers
 * are read each time. */
errint_t group_load(struct source_dir *dir, const struct group *group,
                    struct checkpoint **checkpoint);
/* A number for the versions of all its shards, see file_identity_hash(). */
uint64_t checkpoint_version(const struct checkpoint *checkpoint);
/* Adds a problem: the budget has no room for something made of the checkpoint. Once. */
void checkpoint_report_no_room(struct checkpoint *checkpoint, uint64_t tensors, const char *what);
struct checkpoint *checkpoint_ref(struct checkpoint *checkpoint);
void checkpoint_unref(struct checkpoint *checkpoint);

#endif
