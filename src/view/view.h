/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mount shows: names, attributes, and the extents of each file.
 *
 * The session (src/fuse) refers to files by node ID. An ID that view_lookup() returned is valid
 * until view_forget() reduces its lookup count to 0; VIEW_ROOT_ID is always valid. The ID of a file
 * belongs to one version of its content, so that what the kernel caches never mixes versions.
 *
 * Any thread may call any function. Unless noted otherwise, functions that access the source wait
 * for storage; none reads tensor data. Besides the errors that are listed, a function returns those
 * of the system calls on the source, and -ENOMEM.
 */
#ifndef FSTFS_VIEW_VIEW_H
#define FSTFS_VIEW_VIEW_H

#include "base/buffer.h"
#include "base/extent.h"
#include "catalog/catalog.h"
#include "view/permission.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct view;

enum view_kind { VIEW_TENSORS, VIEW_MERGED, VIEW_SHARDS, VIEW_NPY, VIEW_KINDS };

extern const char *const view_names[VIEW_KINDS]; /* "tensors", "merged", ... */

/* A file of .fstfs, whose text is written for each open, and for each stat of a private mount.
 * `for_owner`: the reader is the mounting user or root, or nobody else can access the mount. */
struct view_page {
    const char *name;
    mode_t mode;
    void (*write)(void *arg, bool for_owner, struct buffer *out); /* for stat; does not wait */
    void (*open)(void *arg, bool for_owner, struct buffer *out); /* may wait a bounded time */
    void *arg;
};

struct view_options {
    int root; /* an enum view_kind: this view is the root; -1: the root contains all views */
    uint32_t shards; /* --shards, or 0 */
    uint64_t shard_size; /* --shard-size in bytes, or 0; not both */
    uid_t owner; /* owner of the root and .fstfs, which are not in the source */
    gid_t group;
    const struct view_page *pages; /* sorted by name; must outlive the view */
    size_t page_count;
    permission_check *check; /* NULL: only the mounting user and root can access the mount */
};

/* `catalog` must outlive the view. -ENOMEM. */
errint_t view_new(struct catalog *catalog, const struct view_options *options, struct view **view);
void view_free(struct view *view);

/* For catalog_options.derived_free. */
void view_derived_free(void *derived);

typedef uint64_t node_id;

enum { VIEW_ROOT_ID = 1 };

/* How long the kernel may cache attributes, and names that are not checked. */
enum { VIEW_CACHE_MS = 500 };

/*
 * If the options have a `check`, the functions with a `caller` return -EACCES unless the caller may
 * do the same in the source. Looking up a name requires search permission on the paths of all files
 * that it is made of. If these are several, or it is a re-cut shard, nothing that depends on their
 * content is shown without read permission for all of them. Looking up a tensor requires search
 * permission for all files of its checkpoint and read permission for its shard, or for all of them
 * if rights_differ. Listing a directory of tensors requires read permission for all that can be
 * read now; reading xattrs, what opening the file requires. -ESTALE: the files of the source have
 * changed. Without a `check`, `caller` may be NULL.
 */

/* Returns whether view_lookup() in this directory checks the caller, so that the kernel must not
 * cache its names. Does not wait. */
bool view_checks_names(struct view *view, node_id directory);

/* Looks up `name` in a directory and increments the lookup count of the result. -ENOENT, -ENOTDIR,
 * -ENAMETOOLONG; -ETXTBSY: a shard that the file needs is open for writing. */
errint_t view_lookup(struct view *view, const struct caller *caller, node_id parent,
                     const char *name, node_id *id, struct stat *st);
/* The generation of an ID whose lookup count is not 0: no other file of the mount has or had the
 * same ID and generation, until 2^32 nodes have been made. Does not wait. */
uint32_t view_generation(struct view *view, node_id id);
/* Reduces the lookup count by `count`. Does not wait. */
void view_forget(struct view *view, node_id id, uint64_t count);
/* Increments a lookup count that is not 0, for a call that may continue after the kernel has
 * dropped its own count. Does not wait. */
void view_ref(struct view *view, node_id id);

/* The view that a file is in. Does not wait. */
enum view_kind view_kind_of(struct view *view, node_id id);

/* What a call accesses, by which src/fuse/requests.c schedules it. `directory` and `name` are
 * hashes, which may collide. */
struct view_place {
    /* The last known st_dev of the directory (0: not known), or the lane of a link to another file
     * system (listing_lane()), which then also counts as a directory of its own. */
    uint64_t filesystem;
    uint64_t directory;
    uint64_t name; /* of a file, checkpoint or subdirectory in it, or of the directory itself */
};

/* Finds the place that a call for `id` accesses: view_lookup() of `name` or, if `name` is NULL,
 * another call. `is_open`: it is view_open(), which for a shard reads the headers of all shards of
 * its checkpoint. False: the call does not wait for storage. This function itself never waits for
 * storage. */
bool view_place(struct view *view, node_id id, const char *name, bool is_open,
                struct view_place *place);

/* fstat(2). The attributes of a checkpoint's directory in tensors/ and npy/ are checked as in
 * view_lookup() of its name; those of other files and directories are not checked. -ESTALE: the
 * path of the directory leads to another one now. */
errint_t view_getattr(struct view *view, const struct caller *caller, node_id id, struct stat *st);

/* An open directory: its names at the time of the open. One thread at a time. */
struct view_directory;

/* Opens a directory. -ENOTDIR. */
errint_t view_opendir(struct view *view, const struct caller *caller, node_id id,
                      struct view_directory **directory);
/* access(2): -EACCES; -EROFS for W_OK. */
errint_t view_access(struct view *view, const struct caller *caller, node_id id, int mask);
void view_closedir(struct view *view, struct view_directory *directory);

/* The entry at `position`, counted from 0: ".", "..", then the entries in the order of strcmp().
 * `name` is valid until the next call; `st` has the inode number and type only. -ENOENT: there are
 * no more entries. Does not wait. */
errint_t view_readdir(struct view *view, struct view_directory *directory, uint64_t position,
                      const char **name, struct stat *st);
/* view_lookup() of the entry at `position`. Only for a view without a `check`. -EAGAIN: it might
 * wait for another file system than the directory's. */
errint_t view_readdir_lookup(struct view *view, struct view_directory *directory, uint64_t position,
                             node_id *id, struct stat *st);

/* Opens a file: returns its extents, a reference. `live`: the file is a page, so nothing of it may
 * be cached. -EISDIR; -EIO: the shard is refused; -ETXTBSY: it is open for writing. */
errint_t view_open(struct view *view, const struct caller *caller, node_id id,
                   struct extent_list **list, bool *live);
/* Closes an open file; takes ownership of the reference. Does not wait for storage. */
void view_close(struct view *view, struct extent_list *list);

/*
 * Appends an xattr to `value`; docs/libfstfs.md has their format. Tensor files have
 * user.fstfs.extents; user.safetensors.name, .dtype and .shape, except for GGUF types that
 * safetensors lacks; and, in GGUF, user.gguf.name, .type and .shape. Unchanged files have
 * user.fstfs.extents; merged files, re-cut and converted shards, and directories of tensors have
 * user.fstfs.source. -ENODATA.
 */
errint_t view_getxattr(struct view *view, const struct caller *caller, node_id id, const char *name,
                       struct buffer *value);
/* Returns whether the file has the xattr. Does not wait; nor does view_getxattr() if it has not. */
bool view_has_xattr(struct view *view, node_id id, const char *name);
/* Appends the names of the xattrs, each with a NUL. Does not wait. */
errint_t view_listxattr(struct view *view, node_id id, struct buffer *names);

/* The numbers of nodes and of versions of tensor directories held now. Does not wait. */
void view_counters(struct view *view, uint64_t *nodes, uint64_t *sets);

#endif
