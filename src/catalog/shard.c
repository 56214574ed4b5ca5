/* SPDX-License-Identifier: Apache-2.0 */
/* One shard: a version of a file, and the table of its header. */
#include "base/file.h"
#include "base/version.h"
#include "catalog/private.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOAD_TRIES = 5 }; /* of a file that changes while it is read */

/* The reason for an error of version_open() or version_verify(). -EAGAIN: the file has changed. */
static errint_t
version_reason(errint_t error, struct reason *reason)
{
    if (error == -ESTALE)
        return -EAGAIN;
    if (error == -ETXTBSY)
        return reason_set(reason, error, "IoError", "another process has it open for writing");
    return error ? reason_set(reason, error, "IoError", "stat: %s", strerror(-error)) : 0;
}

/* Reads the header of an open shard. -EAGAIN: the file changed during the read. */
static errint_t
shard_read_table(struct table_cache *tables, int fd, const struct container *container,
                 struct shard *shard, struct reason *reason)
{
    errint_t error = version_reason(version_open(shard->backing, fd), reason), changed;

    if (error)
        return error;
    error = table_cache_read(tables, fd, shard->backing, container, &shard->kept, reason);
    changed = version_reason(version_verify(shard->backing, fd), reason);
    version_close(shard->backing);
    if (!changed)
        return error;
    if (shard->kept)
        table_cache_forget(tables, shard->kept);
    table_cache_unref(tables, shard->kept);
    shard->kept = NULL;
    return changed;
}

bool
source_dir_is_unfinished(struct source_dir *dir, const char *name)
{
    struct file_identity identity;
    char control[NAME_MAX + sizeof(ARIA2_CONTROL_SUFFIX)];

    snprintf(control, sizeof(control), "%s" ARIA2_CONTROL_SUFFIX, name);
    return source_dir_file(dir, control, &identity) == 0;
}

/* One attempt: stat, open, header. -EAGAIN: the file changed during the attempt. */
static errint_t
shard_load_once(struct source_dir *dir, const struct group *group, struct shard *shard,
                struct reason *reason)
{
    errint_t error = source_dir_file(dir, shard->name, &shard->identity);
    int fd;

    if (error)
        return reason_set(reason, error, "IoError", "%s", strerror(-error));
    if (group->unfinished && source_dir_is_unfinished(dir, shard->name))
        return reason_set(reason, -ETXTBSY, "UnfinishedDownload", UNFINISHED_TEXT);
    backing_unref(shard->backing);
    shard->backing = source_dir_backing(dir, shard->name, &shard->identity);
    if (!shard->backing)
        return -ENOMEM;
    fd = source_dir_open(dir, shard->name);
    if (fd < 0)
        return reason_set(reason, fd, "IoError", "open: %s", strerror(-fd));
    shard->may_have_acl = group->member_count > 1 && file_may_have_acl(fd);
    error = shard_read_table(&dir->catalog->tables, fd, group->container, shard, reason);
    close(fd);
    return error;
}

struct shard *
shard_load(struct source_dir *dir, const struct group *group, const char *name,
           struct family *family)
{
    struct shard *shard = calloc(1, sizeof(*shard) + strlen(name) + 1);
    struct reason reason = {"IoError", "it changes faster than it can be read"};
    errint_t error = -EAGAIN;

    if (!shard)
        return NULL;
    atomic_init(&shard->references, 1);
    shard->name = strcpy((char *)(shard + 1), name);
    for (int tries = 0; error == -EAGAIN && tries < LOAD_TRIES; tries++)
        error = shard_load_once(dir, group, shard, &reason);
    if (error == -ENOMEM)
        goto fail;
    if (error && asprintf(&shard->refusal, "%s: %s", reason.rule, reason.text) < 0) {
        shard->refusal = NULL;
        goto fail;
    }
    shard->error = error;
    shard->temporary = error && error != -EBADMSG && error != -ENOMSG;
    shard->is_refused_unread = shard->temporary && error != -ENOBUFS; /* depends on its header */
    if (!error) {
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): set if the error is 0 */
        shard->table = shard->kept->table;
        shard->backing->layout = layout_ref(shard->kept->layout);
        shard->backing->family = family_ref(family);
        atomic_fetch_add(&dir->catalog->headers, 1);
        atomic_fetch_add(&dir->catalog->header_bytes, shard->table->data_start);
    }
    return shard;

fail:
    shard_unref(dir->catalog, shard);
    return NULL;
}

bool
shard_is_current(struct source_dir *dir, const struct shard *shard)
{
    struct file_identity now;

    return source_dir_file(dir, shard->name, &now) == 0 &&
           file_identity_equal(&now, &shard->identity) &&
           (!shard->backing || version_is_current(shard->backing));
}

void
shard_unref(struct catalog *catalog, struct shard *shard)
{
    if (!shard || atomic_fetch_sub(&shard->references, 1) > 1)
        return;
    backing_unref(shard->backing);
    table_cache_unref(&catalog->tables, shard->kept);
    free(shard->refusal);
    free(shard);
}
