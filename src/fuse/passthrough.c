/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/passthrough.h"

#include "base/user_namespace.h"
#include "io/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17) && defined(FUSE_DEV_IOC_BACKING_OPEN)
#define IS_BUILT 1
#else
#define IS_BUILT 0 /* passthrough->off is always set, so no ioctl is called */
#define FUSE_CAP_PASSTHROUGH 0
#endif

/* From <linux/fuse.h> of Linux 6.9. */
#ifndef FUSE_DEV_IOC_BACKING_OPEN
struct fuse_backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define FUSE_DEV_IOC_BACKING_OPEN _IOW(229, 1, struct fuse_backing_map)
#define FUSE_DEV_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)
#endif

static const char not_wanted[] = "not asked for (--passthrough=on)";
static const char not_built[] =
    "built with libfuse before 3.17, or with headers of Linux before 6.9";
static const char not_root[] = "the kernel allows it to root only";

/* An open file. The kernel requires all opens of a file to get the same backing ID, or all to get
 * none, and fails an open that differs. So the first open decides until the last close. */
struct passthrough_file {
    fuse_ino_t id;
    uint64_t opens; /* guarded by passthrough->lock */
    int32_t backing_id; /* 0: read by the daemon */
};

struct passthrough {
    struct fuse_session *fuse;
    const char *off; /* why it is off, or NULL; constant after INIT */
    pthread_mutex_t lock; /* guards the rest; not held over system calls */
    void *files; /* a tree (tsearch(3)) of struct passthrough_file */
    uint64_t passed; /* files that the kernel reads */
    errint_t refused; /* the first error */
};

static bool
has_sys_admin(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {{0}};

    return syscall(SYS_capget, &header, sets) == 0 &&
           (sets[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN)) != 0;
}

struct passthrough *
passthrough_new(bool wanted)
{
    struct passthrough *passthrough = calloc(1, sizeof(*passthrough));

    if (!passthrough)
        return NULL;
    if (!wanted)
        passthrough->off = not_wanted;
    else if (!IS_BUILT)
        passthrough->off = not_built;
    else if (!has_sys_admin() || !user_namespace_is_initial())
        passthrough->off = not_root;
    pthread_mutex_init(&passthrough->lock, NULL);
    return passthrough;
}

void
passthrough_free(struct passthrough *passthrough)
{
    if (!passthrough)
        return;
    tdestroy(passthrough->files, free);
    pthread_mutex_destroy(&passthrough->lock);
    free(passthrough);
}

void
passthrough_init(struct passthrough *passthrough, struct fuse_session *fuse,
                 struct fuse_conn_info *conn)
{
    passthrough->fuse = fuse;
    if ((!passthrough->off || passthrough->off == not_root) &&
        !(conn->capable & FUSE_CAP_PASSTHROUGH))
        passthrough->off = "the kernel does not support it";
    if (!passthrough->off)
        conn->want |= FUSE_CAP_PASSTHROUGH;
}

const char *
passthrough_refusal(const struct passthrough *passthrough)
{
    return passthrough->off == not_wanted ? NULL : passthrough->off;
}

static int
compare_file_ids(const void *a, const void *b)
{
    fuse_ino_t left = ((const struct passthrough_file *)a)->id;
    fuse_ino_t right = ((const struct passthrough_file *)b)->id;

    return (left > right) - (left < right);
}

/* Returns the backing if the list is all of it and nothing else, or NULL. */
static struct backing *
whole_backing(const struct extent_list *list)
{
    const struct extent *extent = list->extents;

    if (list->count != 1 || !extent->backing || extent->offset != 0 ||
        extent->length != extent->backing->identity.size)
        return NULL;
    return extent->backing;
}

/* Returns a backing ID or a negative errno. libfuse's own functions print each error and do not
 * return it. */
static int32_t
backing_open(const struct passthrough *passthrough, struct backing *backing)
{
    struct fuse_backing_map map = {.fd = descriptors_fresh(backing)};
    int32_t id;

    if (map.fd < 0)
        return map.fd;
    /* The kernel reopens it with the reader's flags, and fails the reader's open if the file system
     * does not support O_DIRECT. */
    id = fcntl(map.fd, F_SETFL, O_DIRECT);
    if (id >= 0)
        id = ioctl(fuse_session_fd(passthrough->fuse), FUSE_DEV_IOC_BACKING_OPEN, &map);
    if (id <= 0)
        id = -errno;
    close(map.fd); /* the kernel holds its own reference */
    return id;
}

static void
backing_close(const struct passthrough *passthrough, int32_t id)
{
    if (id > 0)
        ioctl(fuse_session_fd(passthrough->fuse), FUSE_DEV_IOC_BACKING_CLOSE, &id);
}

/* Whether this process may register backing files. The kernel checks that before it checks the
 * descriptor. */
static bool
backing_is_permitted(const struct passthrough *passthrough)
{
    struct fuse_backing_map none = {.fd = -1};

    return ioctl(fuse_session_fd(passthrough->fuse), FUSE_DEV_IOC_BACKING_OPEN, &none) >= 0 ||
           errno != EPERM;
}

static void
set_backing_id(struct fuse_file_info *fi, int32_t id)
{
#if IS_BUILT
    fi->backing_id = id;
#endif
}

/* Returns a file that is open, and counts another open of it; NULL: it is not open. */
static struct passthrough_file *
passthrough_find(struct passthrough *passthrough, fuse_ino_t id)
{
    struct passthrough_file key = {.id = id}, **place, *file;

    pthread_mutex_lock(&passthrough->lock);
    place = tfind(&key, &passthrough->files, compare_file_ids);
    file = place ? *place : NULL; /* tdelete() of another file may free the node at `place` */
    if (file)
        file->opens++;
    pthread_mutex_unlock(&passthrough->lock);
    return file;
}

/* Adds a file, or increments the opens of the one that another thread has added meanwhile. */
static struct passthrough_file *
passthrough_add(struct passthrough *passthrough, fuse_ino_t id, int32_t backing_id)
{
    struct passthrough_file *fresh = calloc(1, sizeof(*fresh)), **place = NULL, *file = NULL;

    pthread_mutex_lock(&passthrough->lock);
    if (fresh) {
        *fresh = (struct passthrough_file){.id = id, .backing_id = backing_id > 0 ? backing_id : 0};
        place = tsearch(fresh, &passthrough->files, compare_file_ids);
    }
    if (place) {
        file = *place;
        file->opens++;
        passthrough->passed += file == fresh && backing_id > 0;
    }
    if (backing_id < 0 && backing_id != -ESTALE && !passthrough->refused)
        passthrough->refused = backing_id;
    pthread_mutex_unlock(&passthrough->lock);
    if (!file || file != fresh) {
        backing_close(passthrough, backing_id);
        free(fresh);
    }
    return file;
}

errint_t
passthrough_open(struct passthrough *passthrough, fuse_ino_t id, const struct extent_list *list,
                 struct fuse_file_info *fi, struct passthrough_file **file)
{
    struct backing *backing = whole_backing(list);

    *file = NULL;
    if (passthrough->off || !backing)
        return 0;
    *file = passthrough_find(passthrough, id);
    if (!*file)
        *file = passthrough_add(passthrough, id, backing_open(passthrough, backing));
    if (!*file)
        return -ENOMEM;
    if ((*file)->backing_id > 0) {
        set_backing_id(fi, (*file)->backing_id);
        fi->keep_cache = 0; /* required by the kernel */
        fi->direct_io = (fi->flags & O_DIRECT) != 0;
    }
    return 0;
}

void
passthrough_close(struct passthrough *passthrough, struct passthrough_file *file)
{
    bool last;

    pthread_mutex_lock(&passthrough->lock);
    last = --file->opens == 0;
    if (last) {
        tdelete(file, &passthrough->files, compare_file_ids);
        passthrough->passed -= file->backing_id > 0;
    }
    pthread_mutex_unlock(&passthrough->lock);
    if (last) {
        backing_close(passthrough, file->backing_id);
        free(file);
    }
}

static const char *
explain_refusal(errint_t error)
{
    switch (error) {
    case -ELOOP:
        return "the file is on a stacked file system (overlay, or passthrough itself)";
    case -EINVAL:
        return "the file system does not support O_DIRECT";
    default:
        return strerror(-error);
    }
}

void
passthrough_status(struct passthrough *passthrough, struct buffer *out)
{
    const char *off = passthrough->off;
    errint_t refused;
    uint64_t passed;

    pthread_mutex_lock(&passthrough->lock);
    refused = passthrough->refused;
    passed = passthrough->passed;
    pthread_mutex_unlock(&passthrough->lock);
    if (!off && !backing_is_permitted(passthrough))
        off = not_root;
    if (off) {
        buffer_addf(out, "{\"on\":false,\"why\":\"%s\"}", off);
        return;
    }
    buffer_addf(out, "{\"on\":true,\"files\":%" PRIu64, passed);
    if (refused)
        buffer_addf(out, ",\"refused\":\"%s\"", explain_refusal(refused));
    buffer_add_char(out, '}');
}
