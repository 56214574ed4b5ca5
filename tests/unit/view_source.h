/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source directory in /tmp and a view of it, for unit tests of src/view. One at a time; include
 * it once in a test program.
 */
#ifndef FSTFS_TESTS_VIEW_SOURCE_H
#define FSTFS_TESTS_VIEW_SOURCE_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "format/safetensors.h"
#include "view/view.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char source[] = "/tmp/fstfs-view-XXXXXX";
static struct catalog *catalog;
static struct view *view;

/* A tensor of one dimension. */
struct tensor_spec {
    const char *name, *dtype;
    uint64_t elements, bytes;
};

static inline void
source_path(const char *name, char path[600])
{
    ck_assert_int_lt(snprintf(path, 600, "%s/%s", source, name), 600);
}

static inline void
make_source(void)
{
    strcpy(source, "/tmp/fstfs-view-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(source));
}

static inline int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void
remove_source(void)
{
    ck_assert_int_eq(nftw(source, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static inline void
add_directory(const char *name)
{
    char path[600];

    source_path(name, path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ck_assert_int_eq(chmod(path, 0755), 0); /* regardless of the umask */
}

static inline void
add_file(const char *name, const void *bytes, size_t length)
{
    char path[600];
    int fd;

    source_path(name, path);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0640);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fchmod(fd, 0640), 0);
    ck_assert_int_eq(write(fd, bytes, length), (ssize_t)length);
    close(fd);
}

/* Writes a shard of `count` tensors whose bytes are 'x'. */
static inline void
add_shard(const char *name, const struct tensor_spec *tensors, size_t count)
{
    struct buffer file = BUFFER_INIT;
    uint64_t at = 0;

    st_header_begin(&file);
    for (size_t i = 0; i < count; i++) {
        const struct tensor_spec *tensor = &tensors[i];

        st_header_tensor(&file, tensor->name, strlen(tensor->name), tensor->dtype,
                         strlen(tensor->dtype), &tensor->elements, 1, at, at + tensor->bytes);
        at += tensor->bytes;
    }
    ck_assert_int_eq(st_header_finish(&file, 8), 0);
    buffer_add_repeat(&file, 'x', at);
    ck_assert(!buffer_failed(&file));
    add_file(name, file.data, file.length);
    buffer_free(&file);
}

/* A shard of one tensor of 8 bytes. */
static inline void
add_small_shard(const char *name, const char *tensor)
{
    add_shard(name, &(struct tensor_spec){tensor, "U8", 8, 8}, 1);
}

static inline void
open_view(const struct view_options *options)
{
    struct catalog_options catalog_options = {.source = source,
                                              .derived_free = view_derived_free,
                                              .header_memory_advice = "; raise --memory"};

    ck_assert_int_eq(catalog_new(&catalog_options, &catalog), 0);
    ck_assert_int_eq(view_new(catalog, options, &view), 0);
}

static inline void
close_view(void)
{
    view_free(view);
    catalog_free(catalog);
    view = NULL;
    catalog = NULL;
}

/* Looks up each part of a path below `directory`, as `caller`. The result's lookup count is
 * incremented, that of the directories on the way is not. */
static inline errint_t
find_as(const struct caller *caller, node_id directory, const char *path, node_id *id,
        struct stat *st)
{
    char parts[2000], *rest = NULL;
    node_id parent = directory;
    errint_t error = 0;

    strcpy(parts, path);
    *id = 0;
    for (char *name = strtok_r(parts, "/", &rest); name && !error;
         name = strtok_r(NULL, "/", &rest)) {
        error = view_lookup(view, caller, parent, name, id, st);
        if (parent != directory)
            view_forget(view, parent, 1);
        parent = *id;
    }
    return error;
}

static inline errint_t
find(const char *path, node_id *id, struct stat *st)
{
    return find_as(NULL, VIEW_ROOT_ID, path, id, st);
}

static inline node_id
must_find(const char *path, struct stat *st)
{
    struct stat unused;
    node_id id;

    ck_assert_msg(find(path, &id, st ? st : &unused) == 0, "%s is not found", path);
    return id;
}

/* The errno of a lookup, or 0. */
static inline int
find_error(const char *path)
{
    struct stat st;
    node_id id;
    errint_t error = find(path, &id, &st);

    if (!error)
        view_forget(view, id, 1);
    return -error;
}

static inline void
forget_unless_root(node_id id)
{
    if (id != VIEW_ROOT_ID)
        view_forget(view, id, 1);
}

#endif
