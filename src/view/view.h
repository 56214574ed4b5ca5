/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mount shows: names, attributes, and for each file its extents.
 *
 * The view answers for the session (src/fuse) in terms of node ids. An id given
 * out by view_lookup() or view_root() stays good until as many view_forget()s;
 * a file's id belongs to one version of its content, so what the kernel caches
 * under it never mixes versions. Tensor files have no object of their own: their
 * id is a number that names their directory's version and their place in it.
 *
 * Any thread may call anything here. Calls wait on storage when they have to
 * look at the source; none of them reads tensor data.
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

/* A page of .fstfs: text made anew each time it is looked at. */
struct view_page {
    const char *name;
    mode_t mode;
    void (*write)(void *arg, struct buffer *out); /* does not wait */
    void (*open)(void *arg, struct buffer *out); /* what is read; may wait a bounded time */
    void *arg;
};

struct view_options {
    int root; /* an enum view_kind: that view is the root; or -1: all, side by side */
    uint32_t shards; /* --shards, or 0 */
    uint64_t shard_size; /* --shard-size in bytes, or 0; not both */
    uid_t owner; /* of what is not in the source: the root, .fstfs */
    gid_t group;
    const struct view_page *pages; /* outlive the view */
    size_t page_count;
    permission_check *check; /* other users may enter: asked for each; NULL: they may not */
};

errint_t view_new(struct catalog *catalog, const struct view_options *options, struct view **view);
void view_free(struct view *view);

/* For catalog_options.derived_free. */
void view_derived_free(void *derived);

typedef uint64_t node_id;

enum { VIEW_ROOT_ID = 1 };

/* How long the kernel may cache attributes, and names that are not checked. */
enum { VIEW_CACHE_MS = 500 };

/*
 * Where other users may enter, the calls that take a `caller` answer -EACCES unless he
 * could do the same in the source. A name may be looked up by those who can reach the
 * files it is made of; a tensor, its xattrs and the names in its directory are for
 * those who can read its shard. -ESTALE: the source has other files by now.
 */

/* Whether view_lookup() checks the caller here, so that the kernel must not cache the names. */
bool view_checks_names(struct view *view, node_id directory);

/* Looks `name` up in a directory. On success the node's lookup count is incremented. */
errint_t view_lookup(struct view *view, const struct caller *caller, node_id parent,
                     const char *name, node_id *id, struct stat *st);
void view_forget(struct view *view, node_id id, uint64_t count);
/* Increments the lookup count of an id that has one, for a call that may outlast the kernel's
 * own; view_forget() undoes it. */
void view_ref(struct view *view, node_id id);

/* Where in the source a call works, from the coarsest to the finest. Each member is a hash:
 * equal ones may, in theory, belong to different places. */
struct view_place {
    uint64_t filesystem; /* st_dev of the directory when it was last looked at; 0: not known */
    uint64_t directory;
    uint64_t name; /* of a file, a checkpoint or a subdirectory in it, or of itself */
};

/* Returns where a call for `id` works: view_lookup() of `name`, or with NULL any other.
 * False: the call does not wait on storage. Does not wait on storage itself. */
bool view_place(struct view *view, node_id id, const char *name, struct view_place *place);

errint_t view_getattr(struct view *view, node_id id, struct stat *st);

/* A directory as it was when it was opened. Read by one thread at a time. */
struct view_directory;

errint_t view_opendir(struct view *view, const struct caller *caller, node_id id,
                      struct view_directory **directory);
/* access(2): -EACCES, -EROFS. */
errint_t view_access(struct view *view, const struct caller *caller, node_id id, int mask);
void view_closedir(struct view *view, struct view_directory *directory);

/* The entry at `position`, counted from 0, "." and ".." first: its name (good
 * until the next call), inode number and type. -ENOENT past the last one. */
errint_t view_readdir(struct view *view, struct view_directory *directory, uint64_t position,
                      const char **name, struct stat *st);
/* As view_lookup() of that entry, without a check: only where other users may not enter.
 * `st` gets all attributes. */
errint_t view_readdir_lookup(struct view *view, struct view_directory *directory, uint64_t position,
                             node_id *id, struct stat *st);

/* Opens a file: its extents. `live` says the file is a page: the list holds it as
 * it is now, and nothing of it may be cached. -EIO where a shard is refused. */
errint_t view_open(struct view *view, const struct caller *caller, node_id id,
                   struct extent_list **list, bool *live);
/* To be called when an open file is closed; takes over the reference. */
void view_close(struct view *view, struct extent_list *list);

/*
 * xattrs. Of tensor files: user.safetensors.name, .dtype, .shape, and user.fstfs.extents,
 * which unchanged files have, too; of what is made of a checkpoint (the merged file,
 * re-cut shards, a directory of tensors): user.fstfs.source. They say where the bytes
 * lie, and of which version; what is not UTF-8 of a path, docs/libfstfs.md says how. The
 * value is appended to `value`. -ENODATA.
 */
errint_t view_getxattr(struct view *view, const struct caller *caller, node_id id, const char *name,
                       struct buffer *value);
/* The names, each with its NUL. */
errint_t view_listxattr(struct view *view, node_id id, struct buffer *names);

/* Objects held now, for metrics. */
void view_counters(struct view *view, uint64_t *nodes, uint64_t *sets);

#endif
