/* SPDX-License-Identifier: Apache-2.0 */
#include "view/attributes.h"

#include "view/current.h"
#include "view/tensor_set.h"

#include <errno.h>
#include <string.h>

static void
fill_stat(struct stat *st, uint64_t inode, mode_t type, struct ownership ownership, uint64_t size,
          const struct timespec *modified, struct timespec changed)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = inode;
    st->st_mode = type | ownership.mode;
    st->st_nlink = 1; /* of directories too: the number of subdirectories is not known */
    st->st_uid = ownership.owner;
    st->st_gid = ownership.group;
    st->st_size = (off_t)size;
    st->st_blksize = 4096;
    st->st_blocks = (blkcnt_t)((size + 511) / 512);
    st->st_atim = st->st_mtim = *modified;
    st->st_ctim = changed;
}

/*
 * The change time of a file of the mount: the second of the source's, and nanoseconds that are a
 * hash of the version. Inode number, size and modification time may be those of an earlier version,
 * and its source file may have been changed in the same tick; libfstfs and a second fstfs detect
 * changes by stat(2). The number is odd, since they treat trailing zeros as a sign of a coarse
 * clock.
 */
static struct timespec
change_time(const struct timespec *changed, uint64_t version)
{
    return (struct timespec){changed->tv_sec, (long)(version % 1000000000 | 1)};
}

static struct timespec
change_time_of_file(const struct file_identity *identity)
{
    return change_time(&identity->changed, file_identity_hash(identity, 0));
}

static struct timespec
change_time_of_checkpoint(const struct checkpoint *checkpoint)
{
    return change_time(&checkpoint->changed,
                       file_identity_hash(&checkpoint->index_identity, checkpoint->version));
}

void
stat_own(const struct view *view, uint64_t inode, mode_t mode, struct stat *st)
{
    struct ownership own = {view->options.owner, view->options.group, mode & 0777};

    fill_stat(st, inode, mode & S_IFMT, own, 0, &view->started, view->started);
}

void
stat_directory(const struct file_identity *source, uint64_t inode, struct stat *st)
{
    fill_stat(st, inode, S_IFDIR, ownership_of(source), 0, &source->modified, source->changed);
}

/* A user who may read the shards may search the directory. */
void
stat_tensors(const struct checkpoint *checkpoint, uint64_t inode, struct stat *st)
{
    struct ownership ownership = checkpoint->ownership;

    ownership.mode |= (ownership.mode & 0444) >> 2;
    fill_stat(st, inode, S_IFDIR, ownership, 0, &checkpoint->modified,
              change_time_of_checkpoint(checkpoint));
}

void
stat_file(struct view *view, const struct node *node, struct stat *st)
{
    struct ownership ownership;

    if (node->kind == NODE_MADE_FILE) {
        fill_stat(st, node->inode, S_IFREG, node->checkpoint->ownership, node->size,
                  &node->checkpoint->modified, change_time_of_checkpoint(node->checkpoint));
        return;
    }
    pthread_mutex_lock(&view->lock);
    ownership = node->ownership;
    pthread_mutex_unlock(&view->lock);
    fill_stat(st, node->inode, S_IFREG, ownership, node->backing->identity.size,
              &node->backing->identity.modified, change_time_of_file(&node->backing->identity));
}

errint_t
stat_page(const struct view *view, const struct view_page *page, uint64_t inode, struct stat *st)
{
    struct buffer text = BUFFER_INIT;
    bool failed;

    /* If callers are checked, the size is 0: a real one would depend on what is in the source. The
     * kernel caches nothing beyond that size, so no reader gets the text of another. */
    if (!view->options.check)
        page->write(page->arg, true, &text);
    failed = buffer_failed(&text);
    stat_own(view, inode, S_IFREG | page->mode, st);
    st->st_size = (off_t)text.length;
    clock_gettime(CLOCK_REALTIME, &st->st_mtim);
    buffer_free(&text);
    return failed ? -ENOMEM : 0;
}

errint_t
stat_tensor(const struct node *set, uint32_t position, struct stat *st)
{
    struct set_tensor at = tensor_set_at(set, position);
    struct buffer header = BUFFER_COUNTING;
    char name[FILE_NAME_SIZE];
    size_t length = tensor_set_file_name(set, position, name);
    errint_t error = tensor_set_header(set, position, &header);

    fill_stat(st, node_child_inode(set->inode, name, length), S_IFREG,
              ownership_of(&at.shard->identity), header.length + at.length,
              &at.shard->identity.modified, change_time_of_file(&at.shard->identity));
    return error;
}

/* The shards at the path of a NODE_TENSORS may be others by now. So if callers are checked, its
 * attributes are those that the caller gets by looking up its name. */
static errint_t
getattr_by_name(struct view *view, const struct caller *caller, const struct node *node,
                struct stat *st)
{
    node_id found;
    errint_t error = view_lookup(view, caller, node_id_of(node->parent), node->name, &found, st);

    if (error)
        return error;
    view_forget(view, found, 1);
    return found == node_id_of(node) ? 0 : -ESTALE;
}

static errint_t
getattr_directory(const struct node *node, struct stat *st)
{
    struct file_identity source;
    errint_t error = current_stat(node, &source);

    if (!error)
        stat_directory(&source, node->inode, st);
    return error;
}

static errint_t
getattr_tensors(struct view *view, struct node *node, struct stat *st)
{
    struct node *set;
    errint_t error = current_tensors(view, node, &set);

    if (error)
        return error;
    stat_tensors(set->checkpoint, node->inode, st);
    node_unref(view, set, 1);
    return 0;
}

errint_t
view_getattr(struct view *view, const struct caller *caller, node_id id, struct stat *st)
{
    uint32_t position;
    struct node *node = node_of(view, id, &position);

    switch (node->kind) {
    case NODE_TOP:
    case NODE_PAGES:
        stat_own(view, node->inode, S_IFDIR | 0555, st);
        return 0;
    case NODE_PAGE:
        return stat_page(view, node->page, node->inode, st);
    case NODE_DIRECTORY:
        return getattr_directory(node, st);
    case NODE_TENSORS:
        return view->options.check ? getattr_by_name(view, caller, node, st)
                                   : getattr_tensors(view, node, st);
    case NODE_TENSOR_SET:
        return stat_tensor(node, position, st);
    case NODE_SOURCE_FILE:
    case NODE_MADE_FILE:
        stat_file(view, node, st);
        return 0;
    }
    return -EIO;
}
