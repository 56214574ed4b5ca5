/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs_open(): finds the tensors of a path and the files that they are stored in.
 *
 * A path on a mount is resolved to the source files that its xattrs name. If that fails for one of
 * them, all are read through the mount.
 */
#include "base/text.h"
#include "base/user_namespace.h"
#include "client/checkpoint.h"
#include "client/error.h"
#include "client/find.h"
#include "client/library.h"
#include "client/mount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- checkpoints that the catalog found ---- */

/* checkpoint_add_tensor() with fail() for -ENOMEM too. */
static errint_t
checkpoint_add_checked(struct fstfs_checkpoint *checkpoint,
                       const struct tensor_description *description)
{
    errint_t error = checkpoint_add_tensor(checkpoint, description);

    return error == -ENOMEM ? fail_no_memory() : error;
}

/* Adds a tensor of a table, stored in `source` at `offset`. */
static errint_t
open_add_tensor(struct fstfs_checkpoint *checkpoint, const struct st_table *table,
                const struct st_tensor *tensor, uint32_t source, uint64_t offset)
{
    struct tensor_description description = {
        .name = table->text + tensor->name,
        .name_length = tensor->name_length,
        .shape = table->dims + tensor->shape,
        .rank = tensor->rank,
        .size = tensor->end - tensor->begin,
        .offset = offset,
        .source = source,
    };

    description.dtype = st_dtype_text(table, tensor, &description.dtype_length);
    return checkpoint_add_checked(checkpoint, &description);
}

static errint_t
open_add_metadata(struct fstfs_checkpoint *checkpoint, const struct st_table *table)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < table->metadata_count; i++)
        error = checkpoint_add_metadata(
            checkpoint, table->text + table->metadata[i].key, table->metadata[i].key_length,
            table->text + table->metadata[i].value, table->metadata[i].value_length);
    return error ? fail_no_memory() : 0;
}

static errint_t
open_add_source(struct fstfs_checkpoint *checkpoint, const struct found *found,
                const struct shard *shard, uint32_t *source)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%s", catalog_source(found->catalog),
                 shard->backing->path) >= PATH_MAX)
        return fail(-ENAMETOOLONG, "%s: the path is too long", shard->backing->path);
    return checkpoint_add_source(checkpoint, path, &shard->identity, source) ? fail_no_memory() : 0;
}

/* Adds all tensors of a shard that is stored unchanged in `source`. */
static errint_t
open_add_tensors(struct fstfs_checkpoint *checkpoint, const struct st_table *table, uint32_t source)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < table->count; i++)
        error = open_add_tensor(checkpoint, table, &table->tensors[i], source,
                                table->data_start + table->tensors[i].begin);
    return error;
}

static errint_t
open_add_all(struct fstfs_checkpoint *checkpoint, const struct found *found)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < found->checkpoint->shard_count; i++) {
        const struct shard *shard = found->checkpoint->shards[i];
        uint32_t source = 0;

        error = open_add_source(checkpoint, found, shard, &source);
        if (!error)
            error = open_add_tensors(checkpoint, shard->table, source);
        if (!error)
            error = open_add_metadata(checkpoint, shard->table);
    }
    return error;
}

/* ---- on a mount: safetensors files ---- */

/* Caches the source checkpoint of the last file of the mount, since most files of a checkpoint
 * there are generated from the same one. */
struct origin_source {
    struct mount_origin origin;
    struct found found;
    uint32_t first_source; /* index of its first shard; the others follow in order */
};

static void
origin_source_free(struct origin_source *cached)
{
    mount_origin_free(&cached->origin);
    found_free(&cached->found);
}

static errint_t
origin_source_find(struct fstfs_checkpoint *checkpoint, const char *path, int fd,
                   struct origin_source *cached)
{
    struct mount_origin origin = {0};
    errint_t error = mount_read_origin(fd, &origin);
    bool same;

    if (error)
        return fail(error, "%s: the mount does not report its source", path);
    same = cached->found.checkpoint && strcmp(origin.directory, cached->origin.directory) == 0 &&
           strcmp(origin.stem, cached->origin.stem) == 0 &&
           origin.version == cached->origin.version;
    if (same) {
        mount_origin_free(&origin);
        return 0;
    }
    origin_source_free(cached);
    cached->origin = origin;
    error = find_origin(&origin, &cached->found);
    for (uint32_t i = 0; !error && i < cached->found.checkpoint->shard_count; i++) {
        uint32_t source = 0;

        error = open_add_source(checkpoint, &cached->found, cached->found.checkpoint->shards[i],
                                &source);
        if (!error && i == 0)
            cached->first_source = source;
    }
    if (error)
        found_free(&cached->found);
    return error;
}

static const struct tensor_ref *
checkpoint_find_tensor(const struct checkpoint *checkpoint, const char *name, uint32_t length)
{
    uint32_t low = 0, high = checkpoint->tensor_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct tensor_ref *ref = &checkpoint->tensors[middle];
        const struct st_tensor *tensor = checkpoint_tensor(checkpoint, *ref);
        int order = text_compare(checkpoint->shards[ref->shard]->table->text + tensor->name,
                                 tensor->name_length, name, length);

        if (order == 0)
            return ref;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Adds a tensor of a file on the mount, with the source file and offset where it is stored. */
static errint_t
open_add_source_tensor(struct fstfs_checkpoint *checkpoint, const struct st_table *table,
                       const struct st_tensor *tensor, const struct origin_source *cached)
{
    const struct checkpoint *original = cached->found.checkpoint;
    const struct tensor_ref *ref =
        checkpoint_find_tensor(original, table->text + tensor->name, tensor->name_length);
    const struct st_tensor *there = ref ? checkpoint_tensor(original, *ref) : NULL;

    if (!there || there->end - there->begin != tensor->end - tensor->begin)
        return fail(-EBADMSG, "%.*s: differs between the mount and its source",
                    (int)tensor->name_length, table->text + tensor->name);
    return open_add_tensor(checkpoint, table, tensor, cached->first_source + ref->shard,
                           original->shards[ref->shard]->table->data_start + there->begin);
}

/* open_add_source_shard() with the descriptor of the shard. */
static errint_t
open_add_shard_of(struct fstfs_checkpoint *checkpoint, const char *path, int fd,
                  const struct shard *shard, struct origin_source *cached)
{
    const struct st_table *table = shard->table;
    struct file_identity identity;
    struct mount_extent extent;
    struct reason why;
    uint32_t source = 0;
    errint_t error = file_identity_from_fd(&identity, fd);

    if (error)
        return fail(error, "%s: %s", path, strerror(-error));
    if (!file_identity_same_content(&shard->identity, &identity))
        return fail(-ESTALE, "%s: was replaced while it was opened", path);
    error = mount_read_extent(fd, &extent);
    if (!error) {
        error = mount_check_source(&extent, &identity, &why);
        if (error)
            fail(error, "%s", why.text);
        else if (checkpoint_add_source(checkpoint, extent.path, &identity, &source))
            error = fail_no_memory();
        free(extent.path);
        return error ? error : open_add_tensors(checkpoint, table, source);
    }
    error = origin_source_find(checkpoint, path, fd, cached);
    for (uint32_t i = 0; !error && i < table->count; i++)
        error = open_add_source_tensor(checkpoint, table, &table->tensors[i], cached);
    return error;
}

/* Adds a shard of the mount, with the source files of its tensors: an unchanged source file, or one
 * generated from a checkpoint. */
static errint_t
open_add_source_shard(struct fstfs_checkpoint *checkpoint, const char *path,
                      const struct shard *shard, struct origin_source *cached)
{
    int fd = mount_open(path);
    errint_t error;

    if (fd < 0)
        return fail(fd, "%s: %s", path, strerror(-fd));
    error = open_add_shard_of(checkpoint, path, fd, shard, cached);
    close(fd);
    return error;
}

static errint_t
open_add_all_source(struct fstfs_checkpoint *checkpoint, const struct found *found)
{
    struct origin_source cached = {0};
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < found->checkpoint->shard_count; i++) {
        const struct shard *shard = found->checkpoint->shards[i];
        char path[PATH_MAX];

        snprintf(path, sizeof(path), "%s/%s", catalog_source(found->catalog), shard->name);
        error = open_add_source_shard(checkpoint, path, shard, &cached);
        if (!error)
            error = open_add_metadata(checkpoint, shard->table);
    }
    origin_source_free(&cached);
    return error;
}

/* ---- on a mount: tensor files ---- */

/* Reads the origin of a directory of tensors. */
static errint_t
read_directory_origin(const char *path, struct mount_origin *origin)
{
    int fd = mount_open(path);
    errint_t error = fd < 0 ? fd : mount_read_origin(fd, origin);

    if (fd >= 0)
        close(fd);
    return error ? fail(error, "%s: the mount does not report its source", path) : 0;
}

static errint_t
open_source_directory(struct fstfs_checkpoint *checkpoint, const char *path)
{
    struct mount_origin origin = {0};
    struct found found = {0};
    errint_t error = read_directory_origin(path, &origin);

    if (error)
        return error;
    error = find_origin(&origin, &found);
    mount_origin_free(&origin);
    if (!error)
        error = open_add_all(checkpoint, &found);
    found_free(&found);
    return error;
}

/* Adds the tensor of a tensor file, read from the source file (with `below`) or from the file `fd`
 * on the mount. The latter may have a header (.npy) before the tensor, which is at its end. */
static errint_t
open_add_tensor_file(struct fstfs_checkpoint *checkpoint, const char *path, int fd,
                     struct tensor_description *description, const struct mount_extent *extent,
                     bool below)
{
    struct file_identity identity;
    struct reason why;
    errint_t error;

    description->size = extent->length;
    description->offset = extent->offset;
    if (below) {
        error = mount_check_source(extent, &identity, &why);
        if (error)
            return fail(error, "%s", why.text);
    } else {
        error = file_identity_from_fd(&identity, fd);
        if (error)
            return fail(error, "%s: %s", path, strerror(-error));
        if (identity.size < extent->length)
            return fail(-EBADMSG, "%s: the file is shorter than its tensor", path);
        description->offset = identity.size - extent->length;
    }
    if (checkpoint_add_source(checkpoint, below ? extent->path : path, &identity,
                              &description->source))
        return fail_no_memory();
    return checkpoint_add_checked(checkpoint, description);
}

static errint_t
open_tensor_file(struct fstfs_checkpoint *checkpoint, const char *path, bool below)
{
    struct tensor_description description = {0};
    struct mount_extent extent = {0};
    struct mount_tensor tensor = {0};
    int fd = mount_open(path);
    errint_t error = fd < 0 ? fd : mount_read_tensor(fd, &tensor);

    if (!error)
        error = mount_read_extent(fd, &extent);
    if (error) {
        fail(error, "%s: cannot read the xattrs of the mount: %s", path, strerror(-error));
    } else {
        description.name = tensor.name;
        description.name_length = tensor.name_length;
        description.dtype = tensor.dtype;
        description.dtype_length = tensor.dtype_length;
        description.shape = tensor.shape;
        description.rank = tensor.rank;
        error = open_add_tensor_file(checkpoint, path, fd, &description, &extent, below);
    }
    free(extent.path);
    mount_tensor_free(&tensor);
    if (fd >= 0)
        close(fd);
    return error;
}

/* Fails if the directory lacks tensors of its checkpoint, or is of another version than before.
 * `count`: of its files. */
static errint_t
check_directory_complete(const char *path, const struct mount_origin *before, uint64_t count)
{
    struct mount_origin origin = {0};
    errint_t error = read_directory_origin(path, &origin);

    if (error)
        return error;
    if (origin.unsound)
        error = fail(-EBADMSG, "%s: %s; .fstfs/problems of the mount has the details", path,
                     origin.unsound);
    else if (origin.version != before->version)
        error = fail(-ESTALE, "%s: changed while it was opened", path);
    else if (origin.tensors != count)
        error =
            fail(-EBADMSG,
                 "%s: found %llu tensor files, expected %llu (npy/ lacks tensors whose dtype is "
                 "not known)",
                 path, (unsigned long long)count, (unsigned long long)origin.tensors);
    mount_origin_free(&origin);
    return error;
}

static errint_t
open_tensor_files(struct fstfs_checkpoint *checkpoint, const char *path, uint64_t *count)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    errint_t error = 0;

    *count = 0;
    if (!directory)
        return fail(-errno, "%s: %s", path, strerror(errno));
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own */
    while (!error && (errno = 0, entry = readdir(directory))) {
        char file[PATH_MAX];

        if (entry->d_name[0] == '.')
            continue; /* not a tensor */
        snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        error = open_tensor_file(checkpoint, file, false);
        ++*count;
    }
    if (!error && errno)
        error = fail(-errno, "%s: %s", path, strerror(errno));
    closedir(directory);
    return error;
}

static errint_t
open_tensor_directory(struct fstfs_checkpoint *checkpoint, const char *path)
{
    struct mount_origin origin = {0};
    uint64_t count;
    errint_t error = read_directory_origin(path, &origin);

    if (error)
        return error;
    error = open_tensor_files(checkpoint, path, &count);
    if (!error)
        error = check_directory_complete(path, &origin, count);
    mount_origin_free(&origin);
    return error;
}

/* ---- opening ---- */

enum kind { KIND_FOUND, KIND_TENSOR_FILE, KIND_TENSOR_DIRECTORY };

static bool
mount_has_xattr(int fd, const char *name)
{
    size_t length;
    char *value;

    if (mount_read_xattr(fd, name, &value, &length))
        return false;
    free(value);
    return true;
}

static enum kind
kind_on_mount(int fd)
{
    struct stat st;

    if (mount_has_xattr(fd, "user.safetensors.name") || mount_has_xattr(fd, "user.gguf.name"))
        return KIND_TENSOR_FILE;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && mount_has_xattr(fd, "user.fstfs.source"))
        return KIND_TENSOR_DIRECTORY;
    return KIND_FOUND;
}

/* `path` is absolute; for KIND_FOUND without `below` it may be relative. With `below`, tensors are
 * read from the source files of the mount. */
static errint_t
open_fill(struct fstfs_checkpoint *checkpoint, const char *path, enum kind kind, bool below)
{
    struct found found = {0};
    errint_t error;

    if (kind == KIND_TENSOR_FILE)
        return open_tensor_file(checkpoint, path, below);
    if (kind == KIND_TENSOR_DIRECTORY)
        return below ? open_source_directory(checkpoint, path)
                     : open_tensor_directory(checkpoint, path);
    error = find_path(path, &found);
    if (error)
        return error;
    error = below ? open_add_all_source(checkpoint, &found) : open_add_all(checkpoint, &found);
    found_free(&found);
    return error;
}

static errint_t
open_as(struct fstfs *fstfs, const char *path, enum kind kind, bool below,
        struct fstfs_checkpoint **out)
{
    struct fstfs_checkpoint *checkpoint = checkpoint_new(fstfs);
    errint_t error;

    if (!checkpoint)
        return fail_no_memory();
    error = open_fill(checkpoint, path, kind, below);
    if (error) {
        checkpoint_destroy(checkpoint);
        return error;
    }
    checkpoint_finish(checkpoint);
    *out = checkpoint;
    return 0;
}

/* Why files on a mount of this user are not read from the source; false: they are. Whoever mounted
 * it decides which files it names as its source, and could name any that this process may read. */
static bool
reads_through_mount(const struct fstfs *fstfs, const struct fuse_owner *owner, char why[512])
{
    unsigned user = owner->user;

    if (fstfs->no_source)
        snprintf(why, 512, "disabled by the option no_source");
    else if (user != 0 && user != geteuid())
        snprintf(why, 512, "mounted by user %u, who is neither root nor the user of this process",
                 user);
    else if (user != 0 && owner->allow_other && !user_namespace_is_initial())
        snprintf(why, 512,
                 "mounted with allow_other by user %u, who may be one of another user namespace",
                 user);
    else
        return false;
    return true;
}

static errint_t
open_on_mount(struct fstfs *fstfs, const char *path, const struct fuse_owner *owner,
              struct fstfs_checkpoint **out)
{
    char why[512];
    char *real = realpath(path, NULL);
    enum kind kind;
    errint_t error = -1;
    int fd;

    if (!real)
        return fail(-errno, "%s: %s", path, strerror(errno));
    fd = mount_open(real);
    if (fd < 0) {
        free(real);
        return fail(fd, "%s: %s", path, strerror(-fd));
    }
    kind = kind_on_mount(fd);
    close(fd);
    if (!reads_through_mount(fstfs, owner, why)) {
        error = open_as(fstfs, real, kind, true, out);
        snprintf(why, sizeof(why), "%s", fstfs_error());
    }
    if (error) {
        error = open_as(fstfs, real, kind, false, out);
        if (!error) {
            (*out)->through_mount = strdup(why);
            if (!(*out)->through_mount) {
                checkpoint_destroy(*out);
                error = fail_no_memory();
            }
        }
    }
    free(real);
    return error;
}

int
fstfs_open(struct fstfs *fstfs, const char *path, struct fstfs_checkpoint **out)
{
    struct fuse_owner owner;

    if (mount_find_owner(path, &owner))
        return open_on_mount(fstfs, path, &owner, out);
    return open_as(fstfs, path, KIND_FOUND, false, out);
}
