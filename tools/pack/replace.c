/* SPDX-License-Identifier: Apache-2.0 */
#include "replace.h"

#include "base/array.h"
#include "base/file.h"
#include "catalog/catalog.h"
#include "catalog/group.h"
#include "common/command.h"
#include "common/find.h"
#include "format/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static errint_t
fail_old_name(struct reason *reason, errint_t error, const char *name, const char *what)
{
    char shown[QUOTED_SIZE];

    return reason_set(reason, error, "Output", "%s %s", quoted(shown, name, strlen(name)), what);
}

errint_t
old_files_add(struct old_files *old, const char *name, bool is_side, struct reason *reason)
{
    struct old_file file = {.is_side = is_side};
    struct stat st;
    errint_t error;

    if (old_files_find(old, name)) /* two indexes name it */
        return 0;
    error = output_inspect(old->directory, name, &file.entry);
    if (error)
        return reason_errno(reason, error, "cannot inspect it");
    if (file.entry.fd >= 0 && fstat(file.entry.fd, &st) == 0 && !S_ISREG(st.st_mode) &&
        !S_ISLNK(st.st_mode)) {
        output_entry_close(&file.entry);
        return fail_old_name(reason, -EEXIST, name, "exists and is not a file");
    }
    snprintf(file.name, sizeof(file.name), "%s", name);
    if (file.entry.fd < 0 || array_add(old->all, old->count, file))
        return 0;
    output_entry_close(&file.entry);
    return reason_no_memory(reason);
}

struct old_file *
old_files_find(const struct old_files *old, const char *name)
{
    for (size_t i = 0; i < old->count; i++)
        if (strcmp(old->all[i].name, name) == 0)
            return &old->all[i];
    return NULL;
}

errint_t
old_files_check_name(const struct old_files *old, const char *name, struct reason *reason)
{
    struct stat st;

    if (old_files_find(old, name))
        return 0;
    if (fstatat(old->directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return fail_old_name(reason, -EEXIST, name,
                             "exists and is not one of the files that would be replaced");
    return errno == ENOENT ? 0 : reason_errno(reason, -errno, "cannot inspect it");
}

/* ---- the checkpoint ---- */

static errint_t
check_not_source(const struct old_files *old, const char *name, const struct sources *sources,
                 const char *other_option, struct reason *reason)
{
    const char *path = sources_find_in(sources, old->directory, name);
    char shown[QUOTED_SIZE], input[QUOTED_SIZE];

    if (!path)
        return 0;
    return reason_set(reason, -EINVAL, "Output",
                      "%.100s in it is an input, by the path %.250s; use another DIRECTORY or %s",
                      quoted(shown, name, strlen(name)), quoted(input, path, strlen(path)),
                      other_option);
}

/* Adds the index and the shards of a group. */
static errint_t
add_old_group(struct old_files *old, const struct group *group, bool force,
              const struct sources *sources, struct reason *reason)
{
    errint_t error =
        group->index ? check_not_source(old, group->index, sources, "--stem", reason) : 0;

    for (uint32_t i = 0; !error && i < group->member_count; i++)
        error = check_not_source(old, group->members[i], sources, "--stem", reason);
    if (!error && !force)
        error = reason_set(reason, -EEXIST, "Output",
                           "already contains a checkpoint %s; --force replaces it", group->stem);
    if (!error && group->index)
        error = old_files_add(old, group->index, false, reason);
    for (uint32_t i = 0; !error && i < group->member_count; i++)
        error = old_files_add(old, group->members[i], false, reason);
    return error;
}

/* Whether the group is the checkpoint `stem` as fstfs-pack writes it. */
static bool
is_old_group(const struct group *group, const char *stem)
{
    return strcmp(group->stem, stem) == 0 && strcmp(group->suffix, ST_SUFFIX) == 0 &&
           group->container == &container_safetensors;
}

static errint_t
fail_shared(struct reason *reason, const char *name, const char *index)
{
    char shown[QUOTED_SIZE], shown_index[QUOTED_SIZE];

    return reason_set(reason, -EEXIST, "Output",
                      "%.150s would be replaced, and is also a shard of %.150s; use another "
                      "FILE, DIRECTORY or --stem",
                      quoted(shown, name, strlen(name)), quoted(shown_index, index, strlen(index)));
}

/* -EEXIST: a file of the list is also a shard of this group, whose index names it. */
static errint_t
check_not_shared(const struct old_files *old, const struct group *group, struct reason *reason)
{
    for (uint32_t i = 0; group->index && i < group->member_count; i++)
        if (old_files_find(old, group->members[i]))
            return fail_shared(reason, group->members[i], group->index);
    return 0;
}

/* Reads a file, and appends its text with the escapes of JSON strings resolved, wherever they are:
 * no parser finds the strings of an invalid index. */
static errint_t
read_unescaped(int directory, const char *name, struct buffer *text)
{
    char path[64 + NAME_MAX + 1];
    errint_t error;
    size_t length;

    snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", directory, name);
    error = file_read_text(path, text);
    if (error)
        return error;
    length = text->length;
    buffer_reserve(text, length);
    if (buffer_failed(text))
        return -ENOMEM;
    text->length += json_unescape((struct json_span){text->data, length}, text->data + length);
    return 0;
}

/* Whether the files that the index names are members of a group. */
static bool
index_is_known(const struct listing *listing, const char *file)
{
    for (uint32_t i = 0; i < listing->group_count; i++)
        if (listing->groups[i].index && strcmp(listing->groups[i].index, file) == 0)
            return listing->groups[i].index_error == 0;
    return false;
}

/* -EEXIST: the index, which may be invalid, contains the name of a file of the checkpoint. */
static errint_t
check_not_named(const struct old_files *old, const char *index, struct reason *reason)
{
    struct buffer text = BUFFER_INIT;
    char name[QUOTED_SIZE];
    struct stat st;
    errint_t error;

    if (fstatat(old->directory, index, &st, 0) == 0 && !S_ISREG(st.st_mode))
        return 0;
    error = read_unescaped(old->directory, index, &text);
    if (error)
        reason_fill(reason, "Output", "cannot read %.250s, which may name old files: %s",
                    quoted(name, index, strlen(index)), strerror(-error));
    for (size_t i = 0; !error && i < old->count; i++) {
        const char *file = old->all[i].name;

        if (!old->all[i].is_side && memmem(text.data, text.length, file, strlen(file)))
            error = fail_shared(reason, file, index);
    }
    buffer_free(&text);
    return error;
}

/* check_not_named() for the indexes in the directory that no group has and that are not replaced:
 * those that are invalid, or list files of another format. */
static errint_t
check_other_indexes(const struct old_files *old, const struct listing *listing,
                    struct reason *reason)
{
    int fd = openat(old->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    errint_t error = 0;

    if (!directory) {
        error = reason_errno(reason, -errno, "cannot list it");
        if (fd >= 0)
            close(fd);
        return error;
    }
    while (!error && (entry = readdir(directory)))
        if (group_index_container(entry->d_name) && !old_files_find(old, entry->d_name) &&
            !index_is_known(listing, entry->d_name))
            error = check_not_named(old, entry->d_name, reason);
    closedir(directory);
    return error;
}

/* Adds the groups of the checkpoint `stem`, and its index if it belongs to none. */
static errint_t
add_old_groups(struct old_files *old, const struct listing *listing, const char *stem, bool force,
               const struct sources *sources, struct reason *reason)
{
    char index[300];
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->group_count; i++)
        if (is_old_group(&listing->groups[i], stem))
            error = add_old_group(old, &listing->groups[i], force, sources, reason);
    group_name_index(stem, ST_SUFFIX, index);
    if (!error && force && !old_files_find(old, index))
        error = old_files_add(old, index, false, reason);
    return error;
}

/* -EEXIST: a file of the list is also a shard of a checkpoint that is not replaced, by an index. */
static errint_t
check_other_checkpoints(const struct old_files *old, const struct listing *listing,
                        const char *stem, bool force, struct reason *reason)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->group_count; i++)
        if (!stem || !is_old_group(&listing->groups[i], stem))
            error = check_not_shared(old, &listing->groups[i], reason);
    return error || !force ? error : check_other_indexes(old, listing, reason);
}

errint_t
old_files_add_checkpoint(struct old_files *old, const char *stem, bool force,
                         const struct sources *sources, struct reason *reason)
{
    char path[64];
    const struct catalog_options options = {.source = path,
                                            .problems = {find_ignore_problem, NULL, 0}};
    struct listing *listing = NULL;
    struct catalog *catalog = NULL;
    struct source_dir *root = NULL;
    errint_t error;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", old->directory);
    error = catalog_new(&options, &catalog);
    if (!error && !(root = catalog_root(catalog)))
        error = -ENOMEM;
    if (!error)
        error = source_dir_listing(root, &listing);
    if (error)
        reason_errno(reason, error, "cannot list it");
    else if (stem)
        error = add_old_groups(old, listing, stem, force, sources, reason);
    if (!error)
        error = check_other_checkpoints(old, listing, stem, force, reason);
    listing_unref(listing);
    source_dir_unref(root);
    catalog_free(catalog);
    return error;
}

/* ---- side files ---- */

/* Returns whether an open file and a backing of the same size have the same bytes; false if one of
 * them cannot be read. */
static bool
has_same_bytes(int fd, const struct backing *content)
{
    enum { PIECE = 1 << 16 };
    int other = openat(content->directory, content->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *pieces = malloc((size_t)2 * PIECE);
    uint64_t at = 0;
    bool same = other >= 0 && pieces;

    while (same && at < content->identity.size) {
        ssize_t one = pread(fd, pieces, PIECE, (off_t)at);
        ssize_t two = pread(other, pieces + PIECE, PIECE, (off_t)at);

        same = one > 0 && one == two && memcmp(pieces, pieces + PIECE, (size_t)one) == 0;
        at += same ? (uint64_t)one : 0;
    }
    if (other >= 0)
        close(other);
    free(pieces);
    return same;
}

/* Returns whether `name`, following links, is the same file or one with the same bytes. */
static bool
directory_has_content(int directory, const char *name, const struct backing *content)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    bool same = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                (uint64_t)st.st_size == content->identity.size;

    if (same && (st.st_dev != content->identity.device || st.st_ino != content->identity.inode))
        same = has_same_bytes(fd, content);
    if (fd >= 0)
        close(fd);
    return same;
}

errint_t
old_files_add_side(struct old_files *old, const char *name, const struct backing *content,
                   bool force, const struct sources *sources, bool *needed, struct reason *reason)
{
    struct stat st;
    errint_t error;

    *needed = true;
    if (fstatat(old->directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : reason_errno(reason, -errno, "cannot inspect it");
    *needed = !directory_has_content(old->directory, name, content);
    if (!*needed)
        return 0;
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return fail_old_name(reason, -EEXIST, name, "exists and is not a file");
    if (!force)
        return fail_old_name(reason, -EEXIST, name,
                             "exists in it and differs from the INPUT's; --force replaces it, "
                             "--tensors-only keeps it");
    error = check_not_source(old, name, sources, "--tensors-only", reason);
    return error ? error : old_files_add(old, name, true, reason);
}

/* ---- replacing ---- */

static errint_t
fail_old_changed(struct reason *reason, const char *name)
{
    return fail_old_name(reason, -ESTALE, name, "was changed by another program; it is kept");
}

errint_t
old_files_check_unchanged(const struct old_files *old, struct reason *reason)
{
    for (size_t i = 0; i < old->count; i++)
        if (!output_is_unchanged(old->directory, old->all[i].name, &old->all[i].entry))
            return fail_old_changed(reason, old->all[i].name);
    return 0;
}

static errint_t
old_file_set_aside(int directory, struct old_file *file, struct reason *reason)
{
    char aside[NAME_MAX + 1], name[QUOTED_SIZE];
    errint_t error = output_set_aside(directory, file->name, &file->entry, aside);

    if (error == -ESTALE)
        return fail_old_changed(reason, file->name);
    if (error)
        return reason_set(reason, error, "Output", "cannot replace %s: %s",
                          quoted(name, file->name, strlen(file->name)), strerror(-error));
    strcpy(file->aside, aside);
    return 0;
}

errint_t
old_files_set_aside(struct old_files *old, struct reason *reason)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < old->count; i++)
        if (!old->all[i].is_side)
            error = old_file_set_aside(old->directory, &old->all[i], reason);
    return error;
}

void
old_files_restore(const struct old_files *old)
{
    char name[QUOTED_SIZE], aside[QUOTED_SIZE];

    for (size_t i = 0; i < old->count; i++) {
        const struct old_file *file = &old->all[i];

        if (file->aside[0] && output_rename(old->directory, file->aside, file->name) != 0)
            complain("%s: cannot be renamed back; its name is now %s",
                     quoted(name, file->name, strlen(file->name)),
                     quoted(aside, file->aside, strlen(file->aside)));
    }
}

static errint_t
old_file_remove(int directory, struct old_file *file, struct reason *reason)
{
    char aside[QUOTED_SIZE];
    errint_t error = 0;

    if (!file->aside[0])
        error = old_file_set_aside(directory, file, reason);
    else if (!output_is_unchanged(directory, file->aside, &file->entry))
        error = reason_set(reason, -ESTALE, "Output",
                           "%s, a replaced file, was changed by another program; it is kept",
                           quoted(aside, file->aside, strlen(file->aside)));
    if (!error && unlinkat(directory, file->aside, 0) < 0)
        error = reason_errno(reason, -errno, "cannot remove a replaced file");
    return error;
}

errint_t
old_files_remove(struct old_files *old, struct reason *reason)
{
    bool keeps_shards = false;
    errint_t error = 0;

    for (size_t i = 0; i < old->count; i++) {
        struct old_file *file = &old->all[i];
        errint_t result;

        if (file->entry.fd < 0 || (keeps_shards && !file->is_side))
            continue;
        result = old_file_remove(old->directory, file, reason);
        if (!result)
            continue;
        complain("all files were written, but a replaced file could not be removed");
        error = error ? error : result;
        keeps_shards |= group_index_container(file->name) != NULL; /* it names them */
    }
    return error;
}

void
old_files_free(struct old_files *old)
{
    for (size_t i = 0; i < old->count; i++)
        output_entry_close(&old->all[i].entry);
    free(old->all);
}
