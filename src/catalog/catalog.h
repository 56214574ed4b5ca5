/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source tree: its directories, checkpoints and other files, kept up to date.
 *
 * Nothing is read before it is needed: a directory when its listing is requested, headers when a
 * checkpoint is. Results are immutable, reference-counted objects (listing, checkpoint, shard). A
 * check that finds a change in the source replaces the object; references to the old one stay
 * valid. Checks happen on request only, at most once in CATALOG_CHECK_MS for each object, in one
 * thread.
 *
 * Any thread may call any function. Calls may wait for storage.
 */
#ifndef FSTFS_CATALOG_CATALOG_H
#define FSTFS_CATALOG_CATALOG_H

#include "base/error.h"
#include "base/extent.h"
#include "base/renew.h"
#include "catalog/header_budget.h"
#include "catalog/problems.h"
#include "format/container.h"
#include "format/safetensors.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

enum { CATALOG_CHECK_MS = 400 };
/* While one thread checks a checkpoint, others get the known version until its last check is
 * CATALOG_CHECK_MS plus this old; after that, they wait for the check. */
enum { CATALOG_LOOKING_MS = 100 };

/* The most headers that are read, or files that are checked, in parallel for one checkpoint: enough
 * to hide the latency of network storage. */
enum { CHECKPOINT_THREADS = 16 };

struct catalog;
struct source_dir;
struct listing;
struct checkpoint;

/*
 * Owner, group and permission bits that the mount shows. If other users can access the mount, they
 * are only informational: permissions are checked against the source (view/permission.h). Else the
 * kernel enforces them (default_permissions).
 */
struct ownership {
    uid_t owner;
    gid_t group;
    mode_t mode; /* permission bits without write bits */
};

static inline struct ownership
ownership_of(const struct file_identity *identity)
{
    return (struct ownership){identity->owner, identity->group, identity->mode & 0555};
}

/*
 * aria2 gives a file its full size before it has the data, and keeps FILE.aria2 beside it until it
 * is complete: what it lacks reads as zeros. Source: aria2c(1), --file-allocation and "CONTROL
 * FILE".
 */
#define ARIA2_CONTROL_SUFFIX ".aria2"

/* How the shards of a checkpoint were found. */
enum group_kind {
    GROUP_INDEX, /* an index names them */
    GROUP_NUMBERED, /* STEM-NNNNN-of-MMMMM.safetensors */
    GROUP_SINGLE, /* STEM.safetensors */
};

/* One checkpoint of a listing; its headers are not read. Strings belong to the listing. */
struct group {
    const struct container *container; /* of its files */
    const char *stem; /* as shown: "model" of pytorch_model.bin */
    const char *suffix; /* as shown, of its files: ".safetensors", ".sft" */
    const char *index; /* the index's file name, or NULL */
    const char *const *members; /* shards that exist, sorted by name */
    uint32_t member_count;
    uint32_t missing_count; /* shards that it should have but lacks */
    /* Its index could not be read: its members are the files that are named after it. Or 0. */
    errint_t index_error;
    /* A hash of the names of those members beside which a file of aria2 is; 0: none. If there is no
     * listing, not 0. */
    uint64_t unfinished;
    enum group_kind kind;
    /* Key of the other file systems that links among its files lead to. 0: there are none, or
     * catalog_options.skip_hung is false. */
    uint64_t lane;
    bool second; /* an earlier group of the listing has the same stem */
    bool shadowed; /* and the same suffix: the earlier group has precedence, even if
                      group_files() has left it out */
    /* merged/ and shards/ show its files as they are: they are not converted, merged or re-cut. See
     * group.h. */
    bool is_unchanged;
    const char *invalid_index; /* an invalid index after which its files are named; or NULL */
    bool may_be_part; /* its file may be one of the parts of a split model */
    struct group_state *state; /* private: its current version */
    struct query *query; /* private: loads it, and is told of its progress; or NULL */
};

/* A name that loaders may look for although there is no usable file. */
struct lost_name {
    const char *name;
    bool is_link; /* that leads to no file; else an index that is not valid, or names no files */
};

/* The names in one directory, sorted by strcmp(3). Immutable. */
struct listing {
    atomic_uint references;
    uint32_t directory_count, file_count, group_count;
    const char *const *directories; /* links to directories among them */
    const char *const *files; /* neither shards nor indexes */
    const char *const *links; /* symbolic links among all names, sorted by strcmp(3) */
    uint32_t link_count;
    const struct lost_name *lost;
    uint32_t lost_count;
    const struct group *groups; /* sorted by group_compare_names(), then precedence */
    struct problem_set *problems; /* the view may add to it */
    struct file_identity directory; /* when the listing was read */
    bool has_lanes; /* a link leads to another file system, see listing_lane() */
};

/* One shard with its header. Immutable, counted; shared by versions of the checkpoint. */
struct shard {
    atomic_uint references;
    const char *name; /* file name */
    struct file_identity identity; /* of its file */
    struct backing *backing; /* may be NULL if the shard is refused */
    struct st_table *table; /* NULL when the shard is refused; shared by links to the file */
    struct kept_table *kept; /* private: owns `table` */
    char *refusal; /* one line; NULL: it is not refused */
    errint_t error; /* of the refusal, or 0 */
    bool temporary; /* the refusal may not last: it is tried again at the next check */
    bool is_refused_unread; /* refused, and the refusal does not depend on its content */
    bool may_have_acl; /* has an access control list, or that is not known; not set for the only
                        * shard */
};

struct tensor_ref {
    uint32_t shard; /* index into checkpoint->shards */
    uint32_t tensor; /* index into its table->tensors */
};

/*
 * One version of a checkpoint. Immutable except for `derived` and `no_room_reported`.
 */
struct checkpoint {
    atomic_uint references;
    uint64_t serial; /* never used twice in one process */
    const char *directory; /* of the source, for messages */
    const struct container *container;
    const char *stem, *suffix; /* see struct group */
    uint32_t shard_count;
    uint32_t tensor_count;
    struct shard **shards; /* sorted by file name */
    const struct tensor_ref *tensors; /* by name; only those that are in one shard */
    struct ownership ownership; /* of all its shards combined */
    /* Its shards differ in device, owner, group or mode, one has an overflow ID, or one may have an
     * access control list, so a user may be able to read only some of them. The device counts
     * because a FUSE server can show any owner. Unread shards do not count. */
    bool rights_differ;
    /* A name that is not found may exist later: the error of reading a shard or the index, such as
     * -EIO; -ETXTBSY if another process writes or downloads it; -EMFILE or -ENFILE if no descriptor
     * is free. Else 0. */
    errint_t passing_error;
    bool has_unread_index; /* so it is not known which tensors it should have */
    /* A shard cannot be read now, or the budget has no room for `tensors`, so it is not known
     * whether there is a merged file. Never set for a container whose files are then shown as they
     * are. */
    bool has_unread_shard;
    bool is_absent; /* converted container; none of its files could be read as a checkpoint */
    bool has_total_size; /* its index has a valid metadata.total_size */
    atomic_bool no_room_reported; /* see checkpoint_report_no_room() */
    bool has_no_room; /* private: the budget had no room for `tensors` */
    struct timespec modified, changed; /* the latest of its shards' */
    uint64_t version; /* a hash of the versions of all its shards, see file_identity_hash() */
    uint64_t total_size;
    char *index_metadata; /* of its index: a valid JSON object, owned; NULL: none */
    size_t index_metadata_length;
    const char *unsound; /* why tensors are missing or ambiguous, a static string; NULL: none is */
    bool is_sound_but_for_index; /* `unsound` only because the index names tensors of no shard */
    struct problem_set *problems; /* the view may add to it */
    /* What the view derived from this version. Set once (compare and swap from NULL), freed by
     * derived_free of the catalog's options. */
    _Atomic(void *) derived;
    struct catalog *catalog;
    struct file_identity index_identity; /* all zero: it has no index */
    const char *index_name; /* NULL: it has no index */
    /* Private to the catalog. */
    struct family *family; /* of its shards; shared with the next version */
    struct tensor_ref *own_tensors; /* `tensors`, unless a table owns them */
    uint64_t charged; /* bytes, for own_tensors and index_metadata */
};

/* checkpoint->passing_error, or `otherwise` if it is 0. */
static inline errint_t
checkpoint_passing_error(const struct checkpoint *checkpoint, errint_t otherwise)
{
    return checkpoint->passing_error ? checkpoint->passing_error : otherwise;
}

static inline const struct st_tensor *
checkpoint_tensor(const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    return &checkpoint->shards[ref.shard]->table->tensors[ref.tensor];
}

/* A tensor with its name, which is not NUL-terminated. */
struct named_tensor {
    const char *name;
    uint32_t length;
    struct tensor_ref ref;
};

/* Returns the `count` tensors of all shards that are not refused, sorted by name and shard;
 * malloc'ed. NULL: out of memory. */
struct named_tensor *checkpoint_sort_tensors(const struct checkpoint *checkpoint, size_t count);

struct catalog_options {
    const char *source; /* path of an existing directory */
    /* Opens the source with O_PATH. If false, it is opened for reading, which makes an underlying
     * FUSE server read the directory. */
    bool path_only;
    void (*derived_free)(void *derived);
    struct problem_watch problems; /* all zero: problems go to the log */
    /* A link to a file system that does not answer does not block the listing of its directory:
     * after up to QUERY_WAIT_MS without an answer, its name is left out, or keeps the kind that the
     * last listing found. If false, listings wait for it. */
    bool skip_hung;
    uint64_t header_memory; /* bytes for headers; at least HEADER_BUDGET_LEAST is used */
    /* How to raise header_memory, as the end of a message: "; raise --memory". NULL: no option
     * does.
     */
    const char *header_memory_advice;
};

errint_t catalog_new(const struct catalog_options *options, struct catalog **catalog);
/* Ends the threads that skip_hung needs. Returns false if some of them hang: the catalog must then
 * not be freed. */
bool catalog_stop_queries(struct catalog *catalog);
/* The pool for calls that may hang; NULL without skip_hung. */
struct query_pool *catalog_query_pool(const struct catalog *catalog);
/* All references must have been released, and catalog_stop_queries() must not have failed. */
void catalog_free(struct catalog *catalog);

const char *catalog_source(const struct catalog *catalog); /* absolute, real */
const struct renewal_path *catalog_source_path(const struct catalog *catalog); /* the same path */
int catalog_source_fd(const struct catalog *catalog); /* its descriptor, owned by the catalog */

/* The problems of all directories and checkpoints that are in memory. Those of a directory are left
 * out if a directory above it could not be listed, or its listing in memory does not lead to it: a
 * file or directory that was removed or replaced has no problems. Does not access the source. */
void catalog_write_problems(struct catalog *catalog, struct buffer *out);
size_t catalog_count_problems(struct catalog *catalog);

/* The budget for headers and the objects built from them. NULL if `catalog` is NULL, as in the
 * checkpoints of fstfs-pack. */
struct header_budget *catalog_budget(struct catalog *catalog);
errint_t catalog_statvfs(struct catalog *catalog, struct statvfs *out);

/* For metrics. */
struct catalog_counters {
    uint64_t listings, headers, header_bytes; /* read since the start */
    uint64_t tensors, checkpoints, table_bytes; /* in memory now */
    struct header_budget_counters budget;
};
void catalog_counters(struct catalog *catalog, struct catalog_counters *counters);

/* The root of the source; a new reference. */
struct source_dir *catalog_root(struct catalog *catalog);
/* A directory inside `dir`, which need not exist; a new reference. NULL: out of memory. */
struct source_dir *source_dir_child(struct source_dir *dir, const char *name);
struct source_dir *source_dir_ref(struct source_dir *dir);
void source_dir_unref(struct source_dir *dir);
const char *source_dir_path(const struct source_dir *dir); /* relative to the source; "" the root */

/* st_dev by the last source_dir_stat(); 0: there was none. Does not wait. */
uint64_t source_dir_device(const struct source_dir *dir);

/* The identity of the directory itself. -ENOTDIR. */
errint_t source_dir_stat(struct source_dir *dir, struct file_identity *identity);

/* Makes the next request for the listing or for a checkpoint of the directory check the source,
 * however recent the last check is. */
void source_dir_expire(struct source_dir *dir);
/* Makes the next request for the listing check the directory and its indexes. If they have changed,
 * the next requests for its checkpoints check the shards, too. */
void source_dir_expire_listing(struct source_dir *dir);

/* The current listing; a new reference. */
errint_t source_dir_listing(struct source_dir *dir, struct listing **listing);
/* The last listing, which may be outdated; a new reference. NULL: there is none. Does not wait for
 * storage. */
struct listing *source_dir_last_listing(struct source_dir *dir);
/* Adds the problem that source_dir_listing() failed with `error`. It is removed when a later
 * attempt to list the directory has a different result, or with the last reference to `dir`. */
void source_dir_report_list_error(struct source_dir *dir, errint_t error);
/* Key of the file system that the link `name` leads to; 0: as in struct group. */
uint64_t listing_lane(const struct listing *listing, const char *name);
static inline struct listing *
listing_ref(struct listing *listing)
{
    atomic_fetch_add(&listing->references, 1);
    return listing;
}
void listing_unref(struct listing *listing);

/* stat(2) of the regular file `name` in the directory, following links. */
errint_t source_dir_file(struct source_dir *dir, const char *name, struct file_identity *identity);
/* Whether aria2 has not finished the download of a file: its control file is beside it. */
bool source_dir_is_unfinished(struct source_dir *dir, const char *name);
/* A backing for this version of the file. NULL: out of memory. */
struct backing *source_dir_backing(struct source_dir *dir, const char *name,
                                   const struct file_identity *identity);

/* Why the index file `name` cannot be used: an error with its reason, or 0 if it can. */
errint_t source_dir_check_index(struct source_dir *dir, const char *name, struct reason *reason);

/* The current version of a group's checkpoint; a new reference. -ENOMEM; -EOVERFLOW: it
 * has over 2^31 tensors. Problems of the shards are recorded in the checkpoint. */
errint_t group_checkpoint(struct source_dir *dir, const struct group *group,
                          struct checkpoint **checkpoint);
/* Loads or checks the checkpoints of groups that have a lane, and waits as long as answers arrive
 * (see query_pool_wait()). Adds a problem for each group whose storage does not answer. `wanted`:
 * whether to do so, for each group of the listing (NULL: all); set to false if there is no answer.
 */
void groups_load(struct source_dir *dir, const struct listing *listing, bool *wanted);
/* The last version that was loaded; a new reference. -EAGAIN: none. Does not wait. */
errint_t group_known_checkpoint(const struct group *group, struct checkpoint **checkpoint);
/* A group of one file, for group_load(). The strings and `*member` must outlive it. */
struct group group_of_file(const struct container *container, const char *stem,
                           const char *const *member);
/* As group_checkpoint(), but reads the headers each time, at most `threads` of them in parallel,
 * and keeps no reference. The group need not be from a listing: its `state` is not used. */
errint_t group_load(struct source_dir *dir, const struct group *group, unsigned threads,
                    struct checkpoint **checkpoint);
/* Whether the group counts when a program looks for the only checkpoint of a directory: it is a
 * checkpoint, or it is named like weights. If no group of the directory has such a name, a damaged
 * or unreadable file counts, too. Beside safetensors files, PyTorch files count only if they are
 * named like weights, and loaders do not prefer one of the safetensors files (`model`,
 * `diffusion_pytorch_model`). GGUF files do not count if there are safetensors files, or PyTorch
 * files that are named like weights. */
bool group_may_be_checkpoint(struct source_dir *dir, const struct listing *listing,
                             const struct group *group);
/* The first of listing->lost that would be a shard or the index of the chosen group, or would be
 * chosen instead, if it were a valid file. `any_stem`: the group was chosen as the only one of the
 * directory, not by its stem. If `group` is NULL, returns the first lost name. Returns NULL if
 * there is none. */
const struct lost_name *group_lost_rival(const struct listing *listing, const struct group *group,
                                         bool any_stem);
/* Reports, once for the checkpoint, that the budget has no room for something made of it: `what`, a
 * noun phrase, with `tensors` tensors. */
void checkpoint_report_no_room(struct checkpoint *checkpoint, uint64_t tensors, const char *what);
/* Why the checkpoint cannot be loaded, or shown merged or re-cut; NULL: it can. Loaders ignore
 * names of an index that are in no shard. */
static inline const char *
checkpoint_fault(const struct checkpoint *checkpoint)
{
    return checkpoint->is_sound_but_for_index ? NULL : checkpoint->unsound;
}
struct checkpoint *checkpoint_ref(struct checkpoint *checkpoint);
void checkpoint_unref(struct checkpoint *checkpoint);

#endif
