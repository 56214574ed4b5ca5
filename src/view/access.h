/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Permissions of a caller: unless stated otherwise, each function returns the result of the
 * permission_check of the view's options, or 0 if there is none. Any thread; waits for storage.
 */
#ifndef FSTFS_VIEW_ACCESS_H
#define FSTFS_VIEW_ACCESS_H

#include "view/node.h"

/* A directory of the source. `expected` is NULL if it may be any directory at this path; its change
 * time counts only with R_OK. */
errint_t access_directory(struct view *view, const struct caller *caller, const char *path,
                          int mask, const struct file_identity *expected);
/* Checks that the caller can resolve a name in a directory of the source, following links. */
errint_t access_name(struct view *view, const struct caller *caller, const char *directory,
                     const char *name);
/* The same for several names; one of the errors, if there are any. */
errint_t access_names(struct view *view, const struct caller *caller, const char *directory,
                      const char *const *names, size_t count);
/* The file of a backing. */
errint_t access_backing(struct view *view, const struct caller *caller,
                        const struct backing *backing, int mask);
/* The files of all shards, and the index. Shards that could not be read need only lookup
 * permission; an index that could not be read is not checked. If no file is left to check, the
 * caller must have search permission for their directory. */
errint_t access_shards(struct view *view, const struct caller *caller,
                       const struct checkpoint *checkpoint, int mask);
/* Permission to look up the same files; -ENOENT in place of -EACCES, because what is generated from
 * them does not exist for a caller without that permission. */
errint_t access_existence(struct view *view, const struct caller *caller,
                          const struct checkpoint *checkpoint);
/*
 * A name that is generated from a checkpoint; call it before returning anything that depends on the
 * content of its files. -ENOENT: links among the files lead to a place that the caller may not
 * search.
 *
 * Whether a file made of several files exists, and its size, depend on the tensor names in all of
 * them; the size of a re-cut shard reveals the sizes of tensors. Sets *unread to an error if the
 * caller lacks read permission for one of these files, or if one cannot be read now, by the daemon
 * or for this check. Then the generated file cannot be opened, and nothing that the caller gets may
 * depend on the content of the checkpoint's files. Else *unread is 0. `is_retry`: a first attempt
 * returned -ESTALE.
 */
errint_t access_generated(struct view *view, const struct caller *caller,
                          const struct checkpoint *checkpoint, enum made_kind kind, bool is_retry,
                          errint_t *unread);
/* As access_generated(), for a name in a listing whose links have been checked. `permission`: the
 * result of access_content(). Does not wait. */
errint_t access_listed(const struct checkpoint *checkpoint, enum made_kind kind,
                       errint_t permission, bool is_retry, errint_t *unread);
/* Whether the existence or the size of a file depends on what a caller may not see without read
 * permission: see access_generated(). Does not wait. */
bool access_depends_on_content(const struct checkpoint *checkpoint, enum made_kind kind);
/* Checks read permission for the checkpoint's files if access_depends_on_content(). */
errint_t access_content(struct view *view, const struct caller *caller,
                        const struct checkpoint *checkpoint, enum made_kind kind);
/* Checks read permission for the checkpoint's files one by one, and calls `progress` after each. */
errint_t access_shards_slowly(struct view *view, const struct caller *caller,
                              const struct checkpoint *checkpoint, void (*progress)(void *arg),
                              void *arg);
/* Whether the caller is the mounting user or root, or no other user can access the mount. */
bool access_is_owner(const struct view *view, const struct caller *caller);
/* Hides an error that may depend on the content of the directory that contains the checkpoint of a
 * NODE_TENSORS: returns `error` only if the caller may search that directory. */
errint_t access_hide_error(struct view *view, const struct caller *caller,
                           const struct node *tensors, errint_t error);
/* The tensor file at `position` of the set of a NODE_TENSORS, or all files (NODE_ITSELF), for
 * reading. A tensor requires permission to look up all files, too, and if rights_differ, to read
 * them. -ENOENT: the caller is not permitted to look up every shard. */
errint_t access_set(struct view *view, const struct caller *caller, const struct node *tensors,
                    const struct node *set, uint32_t position);
/* Sets *set to a reference to the set of a NODE_TENSORS, after access_set() of all shards. */
errint_t access_tensors(struct view *view, const struct caller *caller, struct node *tensors,
                        struct node **set);
/* A file that has a node, or the tensor file at `position` of a set. */
errint_t access_file(struct view *view, const struct caller *caller, const struct node *node,
                     uint32_t position, int mask);

#endif
