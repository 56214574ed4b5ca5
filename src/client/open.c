/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs_open(): from a path to tensors and the files they lie in.
 *
 * What is on a mount is first tried by the files below it, of which the mount tells;
 * where that fails in any part all of it is read through the mount.
 */
#include "base/text.h"
#include "client/build.h"
#include "client/find.h"
#include "client/mount.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- what the catalog found ---- */

static errint_t
out_of_memory(void)
{
    return fail(-ENOMEM, "out of memory");
}

/* What is wrong with a tensor, build_tensor() has said. */
static errint_t
build_failed(errint_t error)
{
    return error == -ENOMEM ? out_of_memory() : error;
}

/* Adds the tensor by what a table says of it, lying in `source` at `offset`. */
static errint_t
add_tensor(struct fstfs_checkpoint *checkpoint, const struct st_table *table,
           const struct st_tensor *tensor, uint32_t source, uint64_t offset)
{
    struct tensor_given given = {
        .name = table->text + tensor->name,
        .name_length = tensor->name_length,
        .shape = table->dims + tensor->shape,
        .rank = tensor->rank,
        .size = tensor->end - tensor->begin,
        .offset = offset,
        .source = source,
    };

    given.dtype = st_dtype_text(table, tensor, &given.dtype_length);
    return build_failed(build_tensor(checkpoint, &given));
}

static errint_t
add_metadata(struct fstfs_checkpoint *checkpoint, const struct st_table *table)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < table->metadata_count; i++)
        error = build_metadata(
            checkpoint, table->text + table->metadata[i].key, table->metadata[i].key_length,
            table->text + table->metadata[i].value, table->metadata[i].value_length);
    return error ? out_of_memory() : 0;
}

static errint_t
add_source(struct fstfs_checkpoint *checkpoint, const struct found *found,
           const struct shard *shard, uint32_t *source)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%s", catalog_source(found->catalog),
                 shard->backing->path) >= PATH_MAX)
        return fail(-ENAMETOOLONG, "%s: the path is too long", shard->backing->path);
    return build_source(checkpoint, path, &shard->file.identity, source) ? out_of_memory() : 0;
}

/* All tensors of a shard, which lie in `source` as its header says. */
static errint_t
add_tensors(struct fstfs_checkpoint *checkpoint, const struct st_table *table, uint32_t source)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < table->count; i++)
        error = add_tensor(checkpoint, table, &table->tensors[i], source,
                           table->data_start + table->tensors[i].begin);
    return error;
}

static errint_t
add_all(struct fstfs_checkpoint *checkpoint, const struct found *found)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < found->checkpoint->shard_count; i++) {
        const struct shard *shard = found->checkpoint->shards[i];
        uint32_t source = 0;

        error = add_source(checkpoint, found, shard, &source);
        if (!error)
            error = add_tensors(checkpoint, shard->table, source);
        if (!error)
            error = add_metadata(checkpoint, shard->table);
    }
    return error;
}

/* ---- on a mount: files of tensors ---- */

/* What the files of the mount are made of; several are of one checkpoint. */
struct below {
    struct mount_origin origin;
    struct found found;
    uint32_t first_source; /* of its shards, in their order */
};

static void
below_free(struct below *below)
{
    mount_origin_free(&below->origin);
    found_free(&below->found);
}

static errint_t
look_below(struct fstfs_checkpoint *checkpoint, const char *path, struct below *below)
{
    struct mount_origin origin;
    errint_t error = mount_origin(path, &origin);
    bool same;

    if (error)
        return fail(error, "%s: the mount does not say what it is made of", path);
    same = below->found.checkpoint && strcmp(origin.directory, below->origin.directory) == 0 &&
           strcmp(origin.stem, below->origin.stem) == 0 && origin.version == below->origin.version;
    if (same) {
        mount_origin_free(&origin);
        return 0;
    }
    below_free(below);
    below->origin = origin;
    error = find_origin(&origin, &below->found);
    for (uint32_t i = 0; !error && i < below->found.checkpoint->shard_count; i++) {
        uint32_t source = 0;

        if (!below->found.checkpoint->shards[i]->table)
            error = fail(-EBADMSG, "%s: %s", below->found.checkpoint->shards[i]->name,
                         below->found.checkpoint->shards[i]->refusal);
        else
            error =
                add_source(checkpoint, &below->found, below->found.checkpoint->shards[i], &source);
        if (!error && i == 0)
            below->first_source = source;
    }
    if (error)
        found_free(&below->found);
    return error;
}

static const struct tensor_ref *
find_tensor(const struct checkpoint *checkpoint, const char *name, uint32_t length)
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

/* A tensor of a file made of the checkpoint below, as it lies there. */
static errint_t
add_tensor_below(struct fstfs_checkpoint *checkpoint, const struct st_table *table,
                 const struct st_tensor *tensor, const struct below *below)
{
    const struct checkpoint *made_of = below->found.checkpoint;
    const struct tensor_ref *ref =
        find_tensor(made_of, table->text + tensor->name, tensor->name_length);
    const struct st_tensor *there = ref ? checkpoint_tensor(made_of, *ref) : NULL;

    if (!there || there->end - there->begin != tensor->end - tensor->begin)
        return fail(-EBADMSG, "%.*s is not in the checkpoint below as the mount shows it",
                    (int)tensor->name_length, table->text + tensor->name);
    return add_tensor(checkpoint, table, tensor, below->first_source + ref->shard,
                      made_of->shards[ref->shard]->table->data_start + there->begin);
}

/* A shard of the mount that is one of the source, or is made of some. */
static errint_t
add_shard_below(struct fstfs_checkpoint *checkpoint, const char *path, const struct st_table *table,
                struct below *below)
{
    struct file_identity identity;
    struct mount_extent extent;
    struct reason why;
    uint32_t source = 0;
    errint_t error = mount_extent(path, &extent);

    if (!error) {
        error = mount_look_below(&extent, &identity, &why);
        if (error)
            fail(error, "%s", why.text);
        else if (build_source(checkpoint, extent.path, &identity, &source))
            error = out_of_memory();
        free(extent.path);
        return error ? error : add_tensors(checkpoint, table, source);
    }
    error = look_below(checkpoint, path, below);
    for (uint32_t i = 0; !error && i < table->count; i++)
        error = add_tensor_below(checkpoint, table, &table->tensors[i], below);
    return error;
}

static errint_t
add_all_below(struct fstfs_checkpoint *checkpoint, const struct found *found)
{
    struct below below = {0};
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < found->checkpoint->shard_count; i++) {
        const struct shard *shard = found->checkpoint->shards[i];
        char path[PATH_MAX];

        snprintf(path, sizeof(path), "%s/%s", catalog_source(found->catalog), shard->name);
        error = add_shard_below(checkpoint, path, shard->table, &below);
        if (!error)
            error = add_metadata(checkpoint, shard->table);
    }
    below_free(&below);
    return error;
}

/* ---- on a mount: tensors that are files ---- */

static errint_t
open_directory_below(struct fstfs_checkpoint *checkpoint, const char *path)
{
    struct mount_origin origin;
    struct found found = {0};
    errint_t error = mount_origin(path, &origin);

    if (error)
        return fail(error, "%s: the mount does not say what it is made of", path);
    error = find_origin(&origin, &found);
    mount_origin_free(&origin);
    if (!error)
        error = add_all(checkpoint, &found);
    found_free(&found);
    return error;
}

/* "[2, 3]"; malloc'ed. */
static errint_t
parse_shape(const char *text, uint64_t **shape, unsigned *rank)
{
    size_t most = strlen(text) / 2 + 1;

    *rank = 0;
    *shape = malloc(most * sizeof(**shape));
    if (!*shape)
        return -ENOMEM;
    for (const char *at = text + strspn(text, "[ "); *at >= '0' && *at <= '9';) {
        char *end;

        (*shape)[(*rank)++] = strtoull(at, &end, 10);
        at = end + strspn(end, ", ");
    }
    return 0;
}

/* A tensor's file: read below, or itself, in which the tensor is what ends it. */
static errint_t
add_file(struct fstfs_checkpoint *checkpoint, const char *path, struct tensor_given *given,
         const struct mount_extent *extent, bool below)
{
    struct file_identity identity;
    struct reason why;
    struct stat st;
    errint_t error;

    given->size = extent->length;
    given->offset = extent->offset;
    if (below) {
        error = mount_look_below(extent, &identity, &why);
        if (error)
            return fail(error, "%s", why.text);
    } else {
        if (stat(path, &st) < 0)
            return fail(-errno, "%s: %s", path, strerror(errno));
        if ((uint64_t)st.st_size < extent->length)
            return fail(-EBADMSG, "%s: shorter than its tensor", path);
        given->offset = (uint64_t)st.st_size - extent->length;
        file_identity_from_stat(&identity, &st);
    }
    if (build_source(checkpoint, below ? extent->path : path, &identity, &given->source))
        return out_of_memory();
    return build_failed(build_tensor(checkpoint, given));
}

static errint_t
open_file(struct fstfs_checkpoint *checkpoint, const char *path, bool below)
{
    struct mount_extent extent = {0};
    struct tensor_given given = {0};
    char *name = NULL, *dtype = NULL, *text = NULL;
    uint64_t *shape = NULL;
    size_t length;
    errint_t error = mount_xattr(path, "user.safetensors.name", &name, &given.name_length);

    if (!error)
        error = mount_xattr(path, "user.safetensors.dtype", &dtype, &given.dtype_length);
    if (!error)
        error = mount_xattr(path, "user.safetensors.shape", &text, &length);
    if (!error)
        error = parse_shape(text, &shape, &given.rank);
    if (!error)
        error = mount_extent(path, &extent);
    if (error) {
        fail(error, "%s: what the mount says of it: %s", path, strerror(-error));
    } else {
        given.name = name;
        given.dtype = dtype;
        given.shape = shape;
        error = add_file(checkpoint, path, &given, &extent, below);
    }
    free(extent.path);
    free(shape);
    free(text);
    free(dtype);
    free(name);
    return error;
}

static errint_t
open_directory_of_files(struct fstfs_checkpoint *checkpoint, const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    errint_t error = 0;

    if (!directory)
        return fail(-errno, "%s: %s", path, strerror(errno));
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own */
    while (!error && (errno = 0, entry = readdir(directory))) {
        char file[PATH_MAX];

        if (entry->d_name[0] == '.')
            continue; /* no tensor's file begins so */
        snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        error = open_file(checkpoint, file, false);
    }
    if (!error && errno)
        error = fail(-errno, "%s: %s", path, strerror(errno));
    closedir(directory);
    return error;
}

/* ---- all of it ---- */

enum kind { KIND_FOUND, KIND_TENSOR_FILE, KIND_TENSOR_DIRECTORY };

static bool
has_xattr(const char *path, const char *name)
{
    size_t length;
    char *value;

    if (mount_xattr(path, name, &value, &length))
        return false;
    free(value);
    return true;
}

static enum kind
kind_of(const char *path)
{
    struct stat st;

    if (has_xattr(path, "user.safetensors.name"))
        return KIND_TENSOR_FILE;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode) && has_xattr(path, "user.fstfs.source"))
        return KIND_TENSOR_DIRECTORY;
    return KIND_FOUND;
}

/* `path` is absolute; `below`: past the mount. */
static errint_t
fill(struct fstfs_checkpoint *checkpoint, const char *path, enum kind kind, bool below)
{
    struct found found = {0};
    errint_t error;

    if (kind == KIND_TENSOR_FILE)
        return open_file(checkpoint, path, below);
    if (kind == KIND_TENSOR_DIRECTORY)
        return below ? open_directory_below(checkpoint, path)
                     : open_directory_of_files(checkpoint, path);
    error = find_path(path, &found);
    if (error)
        return error;
    error = below ? add_all_below(checkpoint, &found) : add_all(checkpoint, &found);
    found_free(&found);
    return error;
}

static errint_t
open_as(struct fstfs *fstfs, const char *path, enum kind kind, bool below,
        struct fstfs_checkpoint **out)
{
    struct fstfs_checkpoint *checkpoint = build_begin(fstfs);
    errint_t error;

    if (!checkpoint)
        return out_of_memory();
    error = fill(checkpoint, path, kind, below);
    if (error) {
        checkpoint_destroy(checkpoint);
        return error;
    }
    build_end(checkpoint);
    *out = checkpoint;
    return 0;
}

static errint_t
open_on_mount(struct fstfs *fstfs, const char *path, struct fstfs_checkpoint **out)
{
    char why[512] = "not wanted";
    char *real = realpath(path, NULL);
    enum kind kind;
    errint_t error = -1;

    if (!real)
        return fail(-errno, "%s: %s", path, strerror(errno));
    kind = kind_of(real);
    if (!fstfs->no_source) {
        error = open_as(fstfs, real, kind, true, out);
        snprintf(why, sizeof(why), "%s", fstfs_error());
    }
    if (error) {
        error = open_as(fstfs, real, kind, false, out);
        if (!error) {
            (*out)->through_mount = strdup(why);
            if (!(*out)->through_mount) {
                checkpoint_destroy(*out);
                error = out_of_memory();
            }
        }
    }
    free(real);
    return error;
}

int
fstfs_open(struct fstfs *fstfs, const char *path, struct fstfs_checkpoint **out)
{
    if (mount_is_ours(path))
        return open_on_mount(fstfs, path, out);
    return open_as(fstfs, path, KIND_FOUND, false, out);
}
