/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and parses index files within the budget for headers. */
#include "base/file.h"
#include "base/version.h"
#include "catalog/group.h"
#include "catalog/private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that are charged for an index in addition to those that depend on its length. */
enum { INDEX_LEAST_CHARGE = 1024 };

enum { READ_TRIES = 5 }; /* of an index that changes while it is read */

void
catalog_free_index(struct catalog *catalog, struct st_index *index)
{
    uint64_t bytes;

    if (!index)
        return;
    bytes = index->bytes;
    st_index_free(index);
    header_budget_give(&catalog->budget, bytes);
}

bool
catalog_drop_index(struct catalog *catalog)
{
    struct st_index *index;

    pthread_mutex_lock(&catalog->lock);
    index = catalog->kept_index;
    catalog->kept_index = NULL;
    pthread_mutex_unlock(&catalog->lock);
    catalog_free_index(catalog, index);
    return index != NULL;
}

void
catalog_keep_index(struct catalog *catalog, struct st_index *index,
                   const struct file_identity *identity)
{
    struct st_index *before;

    pthread_mutex_lock(&catalog->lock);
    before = catalog->kept_index;
    catalog->kept_index = index;
    catalog->kept_identity = *identity;
    pthread_mutex_unlock(&catalog->lock);
    catalog_free_index(catalog, before);
}

/* Returns the kept index, which the caller then owns, if it is of this file and container. */
static struct st_index *
take_kept_index(struct catalog *catalog, const struct file_identity *identity,
                const struct container *container)
{
    struct st_index *index = NULL;

    pthread_mutex_lock(&catalog->lock);
    if (catalog->kept_index && catalog->kept_index->container == container &&
        file_identity_equal(&catalog->kept_identity, identity)) {
        index = catalog->kept_index;
        catalog->kept_index = NULL;
    }
    pthread_mutex_unlock(&catalog->lock);
    return index;
}

/* Reads and parses a version of `size` bytes. The memory of the index stays charged. */
static errint_t
read_index_charged(struct catalog *catalog, struct backing *backing, int fd, size_t size,
                   const struct container *container, struct st_index **index,
                   struct reason *reason)
{
    uint64_t charged = ST_INDEX_FACTOR * size + INDEX_LEAST_CHARGE;
    struct header_budget_counters now;
    /* Wait for storage before memory is charged. */
    errint_t error = size > ST_LARGE_HEADER ? file_read_through(fd, 0, size) : 0;
    ssize_t got;
    char *text;

    if (error)
        return reason_set(reason, error, "IoError", "%s", strerror(-error));
    if (header_budget_take(&catalog->budget, charged) != 0) {
        header_budget_count(&catalog->budget, &now);
        return reason_set(reason, -ENOBUFS, "NoMemoryForHeaders",
                          "an index of %zu bytes needs about %" PRIu64 " bytes, %" PRIu64
                          " of %" PRIu64 " bytes are in use%s",
                          size, charged, now.used, now.limit, now.advice);
    }
    text = malloc(size + 1);
    got = text ? file_read(fd, text, size, 0) : -ENOMEM;
    error = got < 0 ? (errint_t)got : (size_t)got < size ? -EIO : 0;
    if (!error)
        error = version_verify(backing, fd);
    if (error)
        reason_fill(reason, "IoError", "%s", strerror(-error));
    else
        error = st_index_parse(text, size, container, index, reason);
    free(text);
    header_budget_settle(&catalog->budget, charged, error ? 0 : (*index)->bytes);
    return error;
}

/* The same, but only if the file is the version `identity` both before and after the read. */
static errint_t
read_index_version(struct source_dir *dir, const char *name, int fd,
                   const struct file_identity *identity, struct st_index **index,
                   struct reason *reason)
{
    struct backing *backing = source_dir_backing(dir, name, identity);
    errint_t error = backing ? version_open(backing, fd) : -ENOMEM;

    if (error) {
        reason_fill(reason, "IoError", "%s", strerror(-error));
    } else {
        error = read_index_charged(dir->catalog, backing, fd, (size_t)identity->size,
                                   group_index_container(name), index, reason);
        version_close(backing);
    }
    backing_unref(backing);
    return error;
}

static errint_t
open_and_read_index(struct source_dir *dir, const char *name, struct st_index **index,
                    struct file_identity *identity, struct reason *reason)
{
    int fd = source_dir_open(dir, name);
    errint_t error;

    if (fd >= 0 && source_dir_is_unfinished(dir, name)) {
        close(fd);
        return reason_set(reason, -ETXTBSY, "UnfinishedDownload", UNFINISHED_TEXT);
    }
    if (fd < 0)
        return reason_set(reason, fd, "IoError", "open: %s", strerror(-fd));
    if (file_identity_from_fd(identity, fd) != 0 || !S_ISREG(identity->mode)) {
        close(fd);
        return reason_set(reason, -EIO, "IoError", "it is no longer a regular file");
    }
    *index = take_kept_index(dir->catalog, identity, group_index_container(name));
    if (*index) {
        close(fd);
        return 0;
    }
    if (identity->size > ST_MAX_INDEX)
        error = reason_set(reason, -EBADMSG, "InvalidIndex",
                           "it has %" PRIu64 " bytes, expected at most %u", identity->size,
                           ST_MAX_INDEX);
    else
        error = read_index_version(dir, name, fd, identity, index, reason);
    close(fd);
    return error;
}

errint_t
source_dir_index(struct source_dir *dir, const char *name, struct st_index **index,
                 struct file_identity *identity, struct reason *reason)
{
    errint_t error = -ESTALE;

    memset(identity, 0, sizeof(*identity));
    for (int tries = 0; error == -ESTALE && tries < READ_TRIES; tries++)
        error = open_and_read_index(dir, name, index, identity, reason);
    /* An error of the storage or the budget may be temporary. */
    if (error && error != -EBADMSG)
        memset(identity, 0, sizeof(*identity));
    return error;
}

errint_t
source_dir_check_index(struct source_dir *dir, const char *name, struct reason *reason)
{
    struct file_identity identity;
    struct st_index *index = NULL;
    errint_t error = source_dir_index(dir, name, &index, &identity, reason);

    if (!error)
        catalog_free_index(dir->catalog, index);
    return error;
}
