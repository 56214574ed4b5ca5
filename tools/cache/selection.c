/* SPDX-License-Identifier: Apache-2.0 */
#include "selection.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/file.h"
#include "catalog/group.h"
#include "common/command.h"
#include "common/glob.h"
#include "common/progress.h"
#include "format/container.h"
#include "fstfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* No row yet. */
#define NO_ROW SIZE_MAX

/* Prints the error of a file, and sets `failed`. */
static void
selection_fail(struct selection *selection, const char *path, errint_t error)
{
    char name[QUOTED_SIZE];

    complain("%s: %s", quoted(name, path, strlen(path)),
             error == -ESTALE   ? "has changed since it was selected"
             : error == -EINVAL ? "neither a file nor a directory"
                                : strerror(-error));
    selection->failed = true;
}

void
selection_fail_file(struct selection *selection, size_t number, errint_t error)
{
    struct selected_file *file = &selection->files[number];

    if (!file->failed)
        selection_fail(selection, file->path, error);
    file->failed = true;
}

/* ---- files and their ranges ---- */

/* Bytes [begin, end) of a tensor in a file. */
struct tensor_bytes {
    const char *file;
    uint64_t begin, end;
};

static int
compare_tensor_bytes(const void *a, const void *b)
{
    const struct tensor_bytes *x = a, *y = b;
    int order = strcmp(x->file, y->file);

    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Adds bytes [begin, end), extended to whole pages. Calls must be in ascending order of `begin`. */
static errint_t
file_add_range(struct selected_file *file, uint64_t begin, uint64_t end)
{
    struct page_range *last = file->range_count ? &file->ranges[file->range_count - 1] : NULL;
    const uint64_t page = page_bytes();
    struct page_range range = {begin / page * page, (end + page - 1) / page * page};

    if (begin == end)
        return 0;
    if (range.end > file->identity.size)
        range.end = file->identity.size;
    if (!last || last->end < range.begin)
        return array_add(file->ranges, file->range_count, range) ? 0 : -ENOMEM;
    if (last->end < range.end)
        last->end = range.end;
    return 0;
}

/* Adds a row for `path` if `*row` is NO_ROW, and stores its index there. */
static errint_t
selection_start_row(struct selection *selection, const char *path, size_t *row)
{
    struct selection_row made = {.path = NULL};

    if (*row != NO_ROW)
        return 0;
    made.path = strdup(path);
    if (!made.path || !array_add(selection->rows, selection->row_count, made)) {
        free(made.path);
        return -ENOMEM;
    }
    *row = selection->row_count - 1;
    return 0;
}

static errint_t
selection_keep_file(struct selection *selection, struct selected_file *file)
{
    struct selection_row *row = &selection->rows[file->row];

    for (size_t i = 0; i < file->range_count; i++)
        file->pages += page_range_count(&file->ranges[i]);
    file->wanted = file->pages;
    row->files++;
    row->pages += file->pages;
    row->wanted += file->pages;
    return array_add(selection->files, selection->file_count, *file) ? 0 : -ENOMEM;
}

/* The bytes of `count` tensors of a file, which are sorted by offset. Bytes that tensors share,
 * such as tied weights, count once. */
static uint64_t
tensors_count_bytes(const struct tensor_bytes *tensors, size_t count)
{
    uint64_t bytes = 0, end = 0;

    for (size_t i = 0; i < count; i++) {
        if (tensors[i].end <= end)
            continue;
        bytes += tensors[i].end - (tensors[i].begin > end ? tensors[i].begin : end);
        end = tensors[i].end;
    }
    return bytes;
}

/* Adds a file: the `count` tensors in it, which are sorted by offset, or all of it if `tensors` is
 * NULL. Does nothing if the file was added before. */
static errint_t
selection_add_file(struct selection *selection, const char *path, size_t row,
                   const struct tensor_bytes *tensors, size_t count)
{
    struct selected_file file = {.row = row};
    errint_t error = file_identity_at(&file.identity, AT_FDCWD, path);
    size_t known;

    if (error) {
        selection_fail(selection, path, error);
        return 0;
    }
    known = inode_map_add(&selection->inodes, &file.identity);
    if (known <= selection->file_count)
        return known ? 0 : -ENOMEM;
    file.path = strdup(path);
    if (!file.path)
        return -ENOMEM;
    for (size_t i = 0; !error && i < count; i++)
        error = file_add_range(&file, tensors[i].begin, tensors[i].end);
    selection->rows[row].bytes +=
        tensors ? tensors_count_bytes(tensors, count) : file.identity.size;
    selection->rows[row].tensors += count;
    if (!error && !tensors)
        error = file_add_range(&file, 0, file.identity.size);
    if (!error)
        error = selection_keep_file(selection, &file);
    if (error) {
        free(file.ranges);
        free(file.path);
    }
    return error;
}

/* ---- tensors ---- */

static errint_t
selection_match_tensor(struct selection *selection, const struct fstfs_tensor *tensor,
                       bool *selected)
{
    errint_t error = 0;

    *selected = selection->globs->count == 0;
    for (size_t i = 0; !error && i < selection->globs->count; i++) {
        bool matches = false;

        error = glob_match(selection->globs->all[i], tensor->name, tensor->name_length, &matches);
        if (matches)
            *selected = selection->glob_matched[i] = true;
    }
    return error;
}

/* Adds the files of `count` tensors. */
static errint_t
selection_add_tensors(struct selection *selection, const char *row_path,
                      struct tensor_bytes *tensors, size_t count, size_t *row)
{
    errint_t error = count ? selection_start_row(selection, row_path, row) : 0;
    size_t end;

    if (count)
        qsort(tensors, count, sizeof(*tensors), compare_tensor_bytes);
    for (size_t i = 0; !error && i < count; i = end) {
        for (end = i + 1; end < count && strcmp(tensors[end].file, tensors[i].file) == 0; end++)
            ;
        /* Without globs, the path is an index, which selects its shards. */
        error = selection->globs->count
                    ? selection_add_file(selection, tensors[i].file, *row, tensors + i, end - i)
                    : selection_add_file(selection, tensors[i].file, *row, NULL, 0);
    }
    return error;
}

/* Adds the matching tensors at a path. Returns the errors of fstfs_open(), without printing them.
 */
static errint_t
selection_add_checkpoint(struct selection *selection, const char *path, const char *row_path,
                         size_t *row)
{
    struct tensor_bytes *tensors = NULL;
    struct fstfs_checkpoint *checkpoint;
    const struct fstfs_tensor *tensor;
    size_t count = 0;
    errint_t error = fstfs_open(selection->fstfs, path, &checkpoint);

    if (error)
        return error;
    for (size_t i = 0; !error && (tensor = fstfs_tensor(checkpoint, i)); i++) {
        struct tensor_bytes bytes = {tensor->file, tensor->offset, tensor->offset + tensor->size};
        bool selected;

        error = selection_match_tensor(selection, tensor, &selected);
        if (!error && selected && !array_add(tensors, count, bytes))
            error = -ENOMEM;
    }
    if (!error)
        error = selection_add_tensors(selection, row_path, tensors, count, row);
    free(tensors);
    fstfs_close(checkpoint);
    return error;
}

static errint_t
selection_report_open(struct selection *selection, errint_t error)
{
    char text[QUOTED_SIZE];

    if (!error || error == -ENOMEM)
        return error;
    complain("%s", quoted(text, fstfs_error(), strlen(fstfs_error())));
    selection->failed = true;
    return 0;
}

/* Returns whether a file in a directory may contain tensors, by its suffix or its xattrs. */
static bool
file_may_have_tensors(const char *path, const char *name, const struct container **container)
{
    *container = container_of_name(name, strlen(name), NULL);
    return *container || getxattr(path, "user.safetensors.name", NULL, 0) >= 0 ||
           getxattr(path, "user.gguf.name", NULL, 0) >= 0;
}

/* ---- paths ---- */

static errint_t
selection_add_found(struct selection *selection, const char *path, const char *name,
                    const char *directory, size_t *row)
{
    const struct container *container;
    errint_t error;

    if (!selection->globs->count) {
        error = selection_start_row(selection, directory, row);
        return error ? error : selection_add_file(selection, path, *row, NULL, 0);
    }
    if (!file_may_have_tensors(path, name, &container))
        return 0;
    error = selection_add_checkpoint(selection, path, directory, row);
    /* Files such as optimizer.pt have the suffix of a checkpoint, but are not one. */
    if (error == -EBADMSG && container && container->is_converted)
        return 0;
    return selection_report_open(selection, error);
}

static errint_t selection_add_directory(struct selection *selection, const char *path);

/* Adds an entry of a directory. Does not follow links to directories, which could form cycles. */
static errint_t
selection_add_entry(struct selection *selection, const char *directory, const char *name,
                    size_t *row)
{
    char *path = path_join(directory, name);
    struct stat st;
    errint_t error = 0;

    if (!path)
        return -ENOMEM;
    if (stat(path, &st) < 0)
        selection_fail(selection, path, -errno);
    else if (S_ISREG(st.st_mode))
        error = selection_add_found(selection, path, name, directory, row);
    else if (S_ISDIR(st.st_mode) && lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
        error = selection_add_directory(selection, path);
    free(path);
    return error;
}

static int
entry_is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static errint_t
selection_add_directory(struct selection *selection, const char *path)
{
    struct dirent **entries;
    size_t row = NO_ROW;
    int count = scandir(path, &entries, entry_is_shown, alphasort);
    errint_t error = 0;

    if (count < 0) {
        selection_fail(selection, path, -errno);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        if (!error && progress_signal())
            error = -EINTR;
        if (!error)
            error = selection_add_entry(selection, path, entries[i]->d_name, &row);
        free(entries[i]);
    }
    free(entries);
    return error;
}

static errint_t
selection_add_path(struct selection *selection, const char *path)
{
    size_t row = NO_ROW;
    char stem[256];
    struct stat st;
    errint_t error;

    if (stat(path, &st) < 0) {
        selection_fail(selection, path, -errno);
        return 0;
    }
    if (S_ISDIR(st.st_mode))
        return selection_add_directory(selection, path);
    if (!S_ISREG(st.st_mode)) {
        selection_fail(selection, path, -EINVAL);
        return 0;
    }
    if (selection->globs->count || group_index_name(basename(path), stem))
        return selection_report_open(selection,
                                     selection_add_checkpoint(selection, path, path, &row));
    error = selection_start_row(selection, path, &row);
    return error ? error : selection_add_file(selection, path, row, NULL, 0);
}

static void
selection_report_globs(struct selection *selection)
{
    char text[QUOTED_SIZE];

    for (size_t i = 0; i < selection->globs->count; i++) {
        const char *glob = selection->globs->all[i];

        if (selection->glob_matched[i])
            continue;
        complain("--tensors=%s: matches no tensor", quoted(text, glob, strlen(glob)));
        selection->failed = true;
    }
}

errint_t
selection_make(struct selection *selection, const struct cache_options *options)
{
    const struct fstfs_options through_mount = {.no_source = 1};
    errint_t error;

    *selection = (struct selection){.globs = &options->globs};
    selection->glob_matched = calloc(options->globs.count + 1, sizeof(bool));
    if (!selection->glob_matched)
        return -ENOMEM;
    error = fstfs_new(&through_mount, &selection->fstfs);
    for (int i = 0; !error && i < options->path_count; i++)
        error = selection_add_path(selection, options->paths[i]);
    if (!error)
        selection_report_globs(selection);
    return error;
}

void
selection_free(struct selection *selection)
{
    for (size_t i = 0; i < selection->file_count; i++) {
        free(selection->files[i].ranges);
        free(selection->files[i].path);
    }
    for (size_t i = 0; i < selection->row_count; i++)
        free(selection->rows[i].path);
    free(selection->files);
    free(selection->rows);
    free(selection->glob_matched);
    inode_map_free(&selection->inodes);
    fstfs_free(selection->fstfs);
}

/* ---- limits and measurement ---- */

void
selection_limit(struct selection *selection, uint64_t bytes)
{
    uint64_t left = bytes / page_bytes();

    for (size_t i = 0; i < selection->row_count; i++)
        selection->rows[i].wanted = 0;
    for (size_t i = 0; i < selection->file_count; i++) {
        struct selected_file *file = &selection->files[i];

        file->wanted = file->pages < left ? file->pages : left;
        left -= file->wanted;
        selection->rows[file->row].wanted += file->wanted;
    }
}

uint64_t
selection_wanted_bytes(const struct selection *selection)
{
    return selection_total(selection).wanted * page_bytes();
}

struct selection_row
selection_total(const struct selection *selection)
{
    struct selection_row total = {.path = NULL};

    for (size_t i = 0; i < selection->row_count; i++) {
        const struct selection_row *row = &selection->rows[i];

        total.files += row->files;
        total.tensors += row->tensors;
        total.bytes += row->bytes;
        total.pages += row->pages;
        total.wanted += row->wanted;
        total.cached += row->cached;
        total.missing += row->missing;
        total.is_hidden |= row->is_hidden;
    }
    return total;
}

bool
selected_range(const struct selected_file *file, size_t i, uint64_t *left, struct page_range *range)
{
    uint64_t count;

    if (i >= file->range_count || *left == 0)
        return false;
    *range = file->ranges[i];
    count = page_range_count(range);
    if (count > *left) {
        count = *left;
        range->end = range->begin + count * page_bytes();
    }
    *left -= count;
    return true;
}

/* Counts the wanted pages of a file that are cached, and the others. */
static errint_t
selection_measure_file(const struct selected_file *file, uint64_t *wanted, uint64_t *others)
{
    int fd = file->range_count ? file_identity_open(&file->identity, AT_FDCWD, file->path) : -1;
    uint64_t left = file->wanted;
    errint_t error = 0;

    if (file->range_count && fd < 0)
        return fd;
    for (size_t i = 0; !error && i < file->range_count; i++) {
        struct page_range rest = file->ranges[i], part;

        if (selected_range(file, i, &left, &part)) {
            error = page_cache_count(fd, &part, wanted);
            rest.begin = part.end;
        }
        if (!error)
            error = page_cache_count(fd, &rest, others);
    }
    if (fd >= 0)
        close(fd);
    return error;
}

void
selection_measure(struct selection *selection)
{
    const uint64_t started = monotonic_ns();

    for (size_t i = 0; i < selection->row_count; i++) {
        struct selection_row *row = &selection->rows[i];

        row->cached = row->missing = row->is_hidden = 0;
    }
    for (size_t i = 0; i < selection->file_count; i++) {
        struct selected_file *file = &selection->files[i];
        struct selection_row *row = &selection->rows[file->row];
        uint64_t wanted = 0, others = 0;
        errint_t error = selection_measure_file(file, &wanted, &others);

        row->cached += wanted + others;
        row->missing += error ? 0 : file->wanted - wanted;
        row->is_hidden |= error != 0;
        if (error && error != -EPERM)
            selection_fail_file(selection, i, error);
    }
    selection->measured_ns = monotonic_ns() - started;
}
