/* SPDX-License-Identifier: Apache-2.0 */
#include "view/attributes.h"

#include "view/current.h"
#include "view/names.h"
#include "view/node.h"

#include <errno.h>
#include <string.h>

static void
fill_stat(struct stat *st, uint64_t inode, mode_t type, struct ownership ownership, uint64_t size,
          const struct timespec *modified)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = inode;
    st->st_mode = type | ownership.mode;
    st->st_nlink = 1; /* of directories too: it says nothing of how many are inside */
    st->st_uid = ownership.owner;
    st->st_gid = ownership.group;
    st->st_size = (off_t)size;
    st->st_blksize = 4096;
    st->st_blocks = (blkcnt_t)((size + 511) / 512);
    st->st_atim = st->st_mtim = st->st_ctim = *modified;
}

/* A directory may be searched by those who may read what it is made of. */
static struct ownership
ownership_of_directory(struct ownership ownership)
{
    ownership.mode |= (ownership.mode & 0444) >> 2;
    return ownership;
}

void
fill_own_stat(const struct view *view, struct stat *st, uint64_t inode, mode_t mode)
{
    struct ownership own = {view->options.owner, view->options.group, mode & 0777};

    fill_stat(st, inode, mode & S_IFMT, own, 0, &view->started);
}

/* `identity`: of the directory that the attributes are of. */
errint_t
stat_directory(const struct node *node, struct stat *st, struct file_identity *identity)
{
    struct stat source;
    errint_t error = source_dir_stat(node->dir, &source);

    if (error)
        return error;
    fill_stat(st, node->inode, S_IFDIR, ownership_from_stat(&source), 0, &source.st_mtim);
    file_identity_from_stat(identity, &source);
    return 0;
}

void
stat_tensors(const struct node *node, const struct checkpoint *checkpoint, struct stat *st)
{
    fill_stat(st, node->inode, S_IFDIR, ownership_of_directory(checkpoint->ownership), 0,
              &checkpoint->modified);
}

void
stat_file(struct view *view, struct node *node, struct stat *st)
{
    struct ownership ownership;

    if (node->kind == NODE_MADE) {
        fill_stat(st, node->inode, S_IFREG, node->checkpoint->ownership, node->size,
                  &node->checkpoint->modified);
        return;
    }
    pthread_mutex_lock(&view->lock);
    ownership = node->ownership;
    pthread_mutex_unlock(&view->lock);
    fill_stat(st, node->inode, S_IFREG, ownership, node->backing->identity.size,
              &node->backing->identity.modified);
}

errint_t
page_text(void (*write)(void *arg, struct buffer *out), void *arg, struct buffer *text)
{
    write(arg, text);
    if (!buffer_failed(text))
        return 0;
    buffer_free(text);
    return -ENOMEM;
}

errint_t
stat_page(struct view *view, const struct node *node, struct stat *st)
{
    struct buffer text = BUFFER_INIT;
    errint_t error = page_text(node->page->write, node->page->arg, &text);

    if (error)
        return error;
    fill_own_stat(view, st, node->inode, S_IFREG | node->page->mode);
    st->st_size = (off_t)text.length;
    clock_gettime(CLOCK_REALTIME, &st->st_mtim);
    buffer_free(&text);
    return 0;
}

errint_t
stat_tensor(const struct tensor_set *set, uint32_t position, const char *name, size_t length,
            struct stat *st)
{
    struct tensor_ref ref = set_tensor(set, position);
    const struct shard *shard = set->checkpoint->shards[ref.shard];
    const struct st_tensor *tensor = &shard->table->tensors[ref.tensor];
    uint64_t size = tensor->end - tensor->begin;

    if (set->view == VIEW_NPY) {
        struct buffer header = BUFFER_INIT;
        errint_t error = npy_text(shard->table, tensor, &header);

        if (error)
            return error;
        size += header.length;
        buffer_free(&header);
    }
    fill_stat(st, node_child_inode(set->inode, name, length), S_IFREG, shard->file.ownership, size,
              &shard->file.identity.modified);
    return 0;
}

errint_t
view_getattr(struct view *view, node_id id, struct stat *st)
{
    struct file_identity identity;
    struct tensor_set *set;
    char name[FILE_NAME_SIZE];
    struct node *node;
    uint32_t position;
    errint_t error;

    if (node_is_tensor(id)) {
        set = node_set_of(view, id, &position);
        return stat_tensor(set, position, name, set_file_name(set, position, name), st);
    }
    node = node_of(view, id);
    switch (node->kind) {
    case NODE_TOP:
    case NODE_PAGES:
        fill_own_stat(view, st, node->inode, S_IFDIR | 0555);
        return 0;
    case NODE_PAGE:
        return stat_page(view, node, st);
    case NODE_DIRECTORY:
        return stat_directory(node, st, &identity);
    case NODE_TENSORS:
        error = current_tensors(view, node, &set);
        if (error)
            return error;
        stat_tensors(node, set->checkpoint, st);
        node_set_unref(view, set, 1);
        return 0;
    case NODE_WHOLE:
    case NODE_MADE:
        stat_file(view, node, st);
        return 0;
    }
    return -EIO;
}
