/* SPDX-License-Identifier: Apache-2.0 */
#include "base/extent.h"

#include "base/array.h"
#include "base/eintr.h"
#include "base/hash.h"
#include "base/open.h"
#include "base/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void
identity_from_stat(struct file_identity *identity, const struct stat *st)
{
    identity->mount = 0;
    identity->device = st->st_dev;
    identity->inode = st->st_ino;
    identity->size = (uint64_t)st->st_size;
    identity->modified = st->st_mtim;
    identity->changed = st->st_ctim;
    identity->mode = st->st_mode;
    identity->owner = st->st_uid;
    identity->group = st->st_gid;
    identity->links = (uint32_t)st->st_nlink;
}

errint_t
file_identity_at(struct file_identity *identity, int directory, const char *path)
{
    /* Kernels that do not know STATX_MNT_ID_UNIQUE ignore it. */
    const unsigned wanted = (STATX_BASIC_STATS & ~(unsigned)(STATX_ATIME | STATX_BLOCKS)) |
                            STATX_MNT_ID | STATX_MNT_ID_UNIQUE;
    unsigned repeats = 0;
    struct statx stx;
    struct stat st;
    int failed;

    do
        failed = statx(directory, path, AT_EMPTY_PATH, wanted, &stx);
    while (failed && eintr_repeat(&repeats));
    if (!failed) {
        *identity = (struct file_identity){
            .mount = resolve_mount_id(&stx),
            .device = makedev(stx.stx_dev_major, stx.stx_dev_minor),
            .inode = stx.stx_ino,
            .size = stx.stx_size,
            .modified = {stx.stx_mtime.tv_sec, stx.stx_mtime.tv_nsec},
            .changed = {stx.stx_ctime.tv_sec, stx.stx_ctime.tv_nsec},
            .mode = stx.stx_mode,
            .owner = stx.stx_uid,
            .group = stx.stx_gid,
            .links = stx.stx_nlink,
        };
        return 0;
    }
    /* A sandbox may not allow statx(). */
    if ((errno != ENOSYS && errno != EPERM) || fstatat(directory, path, &st, AT_EMPTY_PATH) < 0)
        return -errno;
    identity_from_stat(identity, &st);
    return 0;
}

errint_t
file_identity_from_fd(struct file_identity *identity, int fd)
{
    return file_identity_at(identity, fd, "");
}

static bool
same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

bool
file_identity_same_content(const struct file_identity *then, const struct file_identity *now)
{
    if (then->mount != now->mount || then->device != now->device || then->inode != now->inode ||
        then->size != now->size || ((then->mode ^ now->mode) & S_IFMT) ||
        !same_time(&then->modified, &now->modified))
        return false;
    return same_time(&then->changed, &now->changed);
}

int
file_identity_open(const struct file_identity *identity, int directory, const char *path)
{
    int fd = open_at(directory, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct file_identity now = {0};
    errint_t error;

    if (fd < 0)
        return fd;
    error = file_identity_from_fd(&now, fd);
    if (!error && !file_identity_same_content(identity, &now))
        error = -ESTALE;
    if (!error)
        return fd;
    close(fd);
    return error;
}

uint64_t
file_identity_hash(const struct file_identity *identity, uint64_t seed)
{
    uint64_t parts[] = {
        identity->device,
        identity->inode,
        identity->size,
        (uint64_t)identity->modified.tv_sec,
        (uint64_t)identity->modified.tv_nsec,
        (uint64_t)identity->changed.tv_sec,
        (uint64_t)identity->changed.tv_nsec,
    };

    return hash64(parts, sizeof(parts), seed);
}

struct backing *
backing_new(int directory, const char *path, const struct file_identity *identity)
{
    size_t size = strlen(path) + 1;
    struct backing *backing = calloc(1, sizeof(*backing) + size);

    if (!backing)
        return NULL;
    atomic_init(&backing->references, 1);
    backing->identity = backing->accepted = *identity;
    backing->directory = directory;
    memcpy(backing->path, path, size);
    return backing;
}

/* Taking a reference needs only relaxed order, since the caller already has one. Dropping the last
 * one must see all writes made under the others. */
static bool
last_reference(atomic_uint *references)
{
    return atomic_fetch_sub_explicit(references, 1, memory_order_acq_rel) == 1;
}

struct family *
family_new(const char *directory, const char *stem)
{
    size_t size = strlen(directory) + strlen(stem) + 2;
    struct family *family = calloc(1, sizeof(*family) + size);

    if (!family)
        return NULL;
    atomic_init(&family->references, 1);
    snprintf(family->name, size, "%s%s%s", directory, *directory ? "/" : "", stem);
    return family;
}

struct family *
family_ref(struct family *family)
{
    if (family)
        atomic_fetch_add(&family->references, 1);
    return family;
}

void
family_unref(struct family *family)
{
    if (!family || !last_reference(&family->references))
        return;
    free(family->history);
    free(family);
}

struct backing *
backing_ref(struct backing *backing)
{
    atomic_fetch_add_explicit(&backing->references, 1, memory_order_relaxed);
    return backing;
}

void
backing_unref(struct backing *backing)
{
    if (!backing || !last_reference(&backing->references))
        return;
    if (backing->lease_detach)
        backing->lease_detach(backing);
    if (backing->io_detach)
        backing->io_detach(backing);
    layout_unref(backing->layout);
    family_unref(backing->family);
    free(backing);
}

struct blob *
blob_new(struct buffer *buffer)
{
    struct blob *blob = buffer_failed(buffer) ? NULL : malloc(sizeof(*blob));

    if (blob) {
        atomic_init(&blob->references, 1);
        blob->length = buffer->length;
        blob->data = buffer->data;
        buffer->data = NULL;
    }
    buffer_free(buffer);
    return blob;
}

static struct blob *
blob_ref(struct blob *blob)
{
    atomic_fetch_add_explicit(&blob->references, 1, memory_order_relaxed);
    return blob;
}

void
blob_unref(struct blob *blob)
{
    if (!blob || !last_reference(&blob->references))
        return;
    free(blob->data);
    free(blob);
}

struct extent_list *
extent_list_ref(struct extent_list *list)
{
    atomic_fetch_add_explicit(&list->references, 1, memory_order_relaxed);
    return list;
}

static void
charge_give(const struct charge *charge)
{
    if (charge->give)
        charge->give(charge->arg, charge->bytes);
}

struct layout *
layout_new(uint32_t count)
{
    struct layout *layout = malloc(sizeof(*layout) + count * sizeof(layout->pieces[0]));

    if (!layout)
        return NULL;
    atomic_init(&layout->references, 1);
    layout->charge = (struct charge){NULL, NULL, 0};
    layout->count = count;
    return layout;
}

struct layout *
layout_ref(struct layout *layout)
{
    if (layout)
        atomic_fetch_add_explicit(&layout->references, 1, memory_order_relaxed);
    return layout;
}

void
layout_unref(struct layout *layout)
{
    struct charge charge;

    if (!layout || !last_reference(&layout->references))
        return;
    charge = layout->charge;
    free(layout);
    charge_give(&charge);
}

/* Drops the references that extents hold. */
static void
extents_unref(const struct extent *extents, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        backing_unref(extents[i].backing);
        blob_unref(extents[i].blob);
    }
}

void
extent_list_unref(struct extent_list *list)
{
    struct charge charge;

    if (!list || !last_reference(&list->references))
        return;
    charge = list->charge;
    extents_unref(list->extents, list->count);
    layout_unref(list->layout);
    free(list);
    charge_give(&charge);
}

/* Counts consecutive extents of the same backing once. */
static void
extent_list_count_readers(const struct extent_list *list, unsigned change)
{
    const struct backing *before = NULL;

    for (uint32_t i = 0; i < list->count; i++) {
        struct backing *backing = list->extents[i].backing;

        if (backing && backing != before)
            atomic_fetch_add_explicit(&backing->readers, change, memory_order_relaxed);
        before = backing;
    }
}

void
extent_list_opened(const struct extent_list *list)
{
    extent_list_count_readers(list, 1);
}

void
extent_list_closed(const struct extent_list *list)
{
    extent_list_count_readers(list, -1u);
}

uint32_t
extent_list_find(const struct extent_list *list, uint64_t offset)
{
    uint32_t low = 0, high = list->count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (list->extents[middle].start <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint64_t
extent_list_lane(const struct extent_list *list, uint64_t offset, size_t length)
{
    uint32_t last = extent_list_find(list, offset + length - 1);
    uint64_t key = 0, lane = 0, next;

    for (uint32_t i = extent_list_find(list, offset); i <= last; i++) {
        const struct backing *backing = list->extents[i].backing;

        if (!backing)
            continue;
        next = backing_lane(backing);
        if (key == 0 || next != lane)
            key = key * 31 + next;
        lane = next;
    }
    return key;
}

uint32_t
layout_find(const struct layout *layout, uint64_t offset)
{
    uint32_t low = 0, high = layout ? layout->count : 0;

    if (high == 0 || layout->pieces[0].start > offset)
        return UINT32_MAX;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (layout->pieces[middle].start <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void
builder_add(struct extent_builder *builder, struct backing *backing, struct blob *blob,
            uint64_t offset, uint64_t length)
{
    struct extent *last = builder->count ? &builder->extents[builder->count - 1] : NULL;

    if (builder->failed || length == 0)
        return;
    if (length > INT64_MAX - builder->size || length > INT64_MAX || offset > INT64_MAX - length) {
        builder->failed = true;
        return;
    }
    if (last && last->backing == backing && last->blob == blob &&
        last->offset + last->length == offset)
        last->length += length;
    else if (builder->count == UINT32_MAX ||
             !array_add(builder->extents, builder->count,
                        (struct extent){
                            .start = builder->size,
                            .length = length,
                            .offset = offset,
                            .backing = backing ? backing_ref(backing) : NULL,
                            .blob = blob ? blob_ref(blob) : NULL,
                        }))
        builder->failed = true;
    builder->size += length;
}

void
extent_builder_add_backing(struct extent_builder *builder, struct backing *backing, uint64_t offset,
                           uint64_t length)
{
    builder_add(builder, backing, NULL, offset, length);
}

void
extent_builder_add_blob(struct extent_builder *builder, struct blob *blob, uint64_t offset,
                        uint64_t length)
{
    builder_add(builder, NULL, blob, offset, length);
}

void
extent_builder_add_buffer(struct extent_builder *builder, struct buffer *buffer)
{
    struct blob *blob = blob_new(buffer);

    if (blob)
        extent_builder_add_blob(builder, blob, 0, blob->length);
    else
        builder->failed = true;
    blob_unref(blob);
}

struct extent_list *
extent_builder_finish(struct extent_builder *builder)
{
    struct extent *extents = builder->extents;
    size_t bytes = builder->count * sizeof(*extents);
    struct extent_list *list = builder->failed ? NULL : calloc(1, sizeof(*list) + bytes);

    if (!list) {
        extents_unref(extents, builder->count);
    } else {
        atomic_init(&list->references, 1);
        list->count = builder->count;
        list->size = builder->size;
        if (bytes) /* an empty file has a list of no extents */
            memcpy(list->extents, extents, bytes);
    }
    free(extents);
    *builder = (struct extent_builder)EXTENT_BUILDER_INIT;
    return list;
}
