/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names that an open directory shows.
 *
 * They are the same for every caller: who may list a directory is checked before. All handles
 * on a node that were opened while it had the same names share one object, so memory grows with
 * the directories that are open and not with the handles. The memory of directories of the source
 * is charged to the budget for headers.
 *
 * Any thread may call anything here; nothing waits on storage.
 */
#ifndef FSTFS_VIEW_DIRECTORY_H
#define FSTFS_VIEW_DIRECTORY_H

#include "base/error.h"
#include "catalog/header_budget.h"
#include "view/node.h"

#include <stdint.h>
#include <sys/types.h>

struct shown_name {
    size_t name; /* offset in `text` */
    mode_t type; /* S_IFREG or S_IFDIR */
};

/* Immutable but for the count. */
struct shown_names {
    uint64_t references; /* guarded by view->lock */
    struct node *node; /* counted */
    struct header_budget *budget; /* or NULL */
    size_t count, length;
    char *text; /* `length` bytes: the names, each with its NUL */
    struct shown_name entries[];
};

/* Where names are added, first to measure them and then to keep them. */
struct names_writer {
    struct shown_names *to; /* NULL: they are measured */
    size_t count, length;
};

void shown_names_add(struct names_writer *writer, const char *name, mode_t type);

/* Adds all names, the same ones each time that it is called. */
typedef void list_names(void *arg, struct names_writer *writer);

/*
 * The names of `node` as `list` gives them, sorted if `sort`; a reference. `budget` NULL: nothing
 * is charged. -ENOBUFS: the budget has no room for them. `bytes` is what they take, then too.
 */
errint_t shown_names_get(struct view *view, struct node *node, struct header_budget *budget,
                         list_names *list, void *arg, bool sort, struct shown_names **names,
                         uint64_t *bytes);
void shown_names_unref(struct view *view, struct shown_names *names);

#endif
