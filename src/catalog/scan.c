/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/scan.h"

#include "base/array.h"
#include "base/eintr.h"
#include "base/open.h"
#include "base/text.h"
#include "base/timestamp.h"
#include "catalog/group_names.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what a name is ---- */

/* Whether `identity` is of the directory at `path` or of one above it. */
static bool
is_ancestor(struct catalog *catalog, const char *path, const struct file_identity *identity)
{
    char *prefix = strdup(path);
    bool found = false;
    struct stat above;

    if (!prefix)
        return true; /* out of memory: the link is omitted, which is safe */
    for (;;) {
        char *slash;

        if (open_stat(catalog->root_fd, *prefix ? prefix : ".", &above) == 0 &&
            above.st_dev == identity->device && above.st_ino == identity->inode)
            found = true;
        if (found || !*prefix)
            break;
        slash = strrchr(prefix, '/');
        *(slash ? slash : prefix) = '\0';
    }
    free(prefix);
    return found;
}

/* Resolves the names, which were offsets, and sorts the links by them. */
static void
sort_local_links(struct local_links *links)
{
    for (size_t i = 0; i < links->count; i++)
        links->all[i].name = links->text.data + links->all[i].at;
    if (links->count)
        qsort(links->all, links->count, sizeof(*links->all), text_compare_strings);
}

const struct local_link *
local_links_find(const struct local_links *links, const char *name)
{
    return links->count
               ? bsearch(&name, links->all, links->count, sizeof(*links->all), text_compare_strings)
               : NULL;
}

static errint_t
scan_add_entry(struct scan *scan, const char *name, enum scanned_kind kind, bool is_link)
{
    const struct scanned_entry entry = {scan->names.length, kind == SCANNED_DIRECTORY, is_link};

    if (kind == SCANNED_NONE)
        return 0;
    if (!array_add(scan->entries, scan->count, entry))
        return -ENOMEM;
    scan->directories += kind == SCANNED_DIRECTORY;
    scan->links += is_link;
    buffer_add(&scan->names, name, strlen(name) + 1);
    return buffer_failed(&scan->names) ? -ENOMEM : 0;
}

#define SPECIAL_FILE "neither a file nor a directory (a FIFO, socket or device)"

static void
report_left_out(const struct scan *scan, const char *name, const char *text)
{
    problem_set_add(scan->problems, name, "left out: %s", text);
}

/* A link that leads to no file. */
static void
report_broken_link(const struct scan *scan, const char *name, errint_t error)
{
    /* See add_broken_indexes() in listing.c. */
    const char *effect = group_index_name(name, NULL)
                             ? "; the checkpoint of files that are named after it cannot be opened"
                             : "";

    if (!error)
        problem_set_add(scan->problems, name, "left out: " SPECIAL_FILE "%s", effect);
    else if (error == -EXDEV)
        problem_set_add(scan->problems, name, "left out: a link that leads into the mount itself%s",
                        effect);
    else if (error == -EPERM)
        problem_set_add(scan->problems, name,
                        "left out: a link whose owner cannot read what it leads to; with "
                        "allow_other only links of root and the mounting user are followed there "
                        "(chown -h)%s",
                        effect);
    else
        problem_set_add(scan->problems, name, "left out: a link that %s: %s%s",
                        error == -ENOENT ? "leads nowhere" : "cannot be followed", strerror(-error),
                        effect);
}

/* What a link leads to. `error`: of stat(2), following links. */
static enum scanned_kind
target_of_link(errint_t error, const struct file_identity *identity)
{
    if (error)
        return SCANNED_NONE;
    if (S_ISREG(identity->mode))
        return SCANNED_FILE;
    return S_ISDIR(identity->mode) ? SCANNED_DIRECTORY : SCANNED_NONE;
}

static const struct remote_name *
find_remote_before(const struct scan *scan, const char *name)
{
    return scan->remotes_before ? remote_names_find(scan->remotes_before, name) : NULL;
}

/* What the name led to in the scan before. SCANNED_NONE: to nothing, or there was no such name. A
 * local link to a directory that holds the link counts as a directory, although it was left out. */
static enum scanned_kind
kind_before(const struct scan *scan, const char *name)
{
    const struct remote_name *remote = find_remote_before(scan, name);
    const struct local_link *local =
        scan->locals_before ? local_links_find(scan->locals_before, name) : NULL;

    if (local)
        return local->target;
    return remote ? remote->kind : SCANNED_NONE;
}

/* The kind of a name of which stat(2) failed for now: as before, or of a file. The name must stay
 * listed, because programs, and group_files(), would otherwise use another file in its place. */
static enum scanned_kind
kind_of_failed_name(struct scan *scan, const char *name, errint_t error)
{
    enum scanned_kind before = kind_before(scan, name);

    if (!group_index_name(name, NULL)) /* reported when it is read */
        problem_set_add(scan->problems, name,
                        "cannot determine whether it is a file or a directory: %s",
                        strerror(-error));
    return scanned_kind_is_known(before) ? before : SCANNED_FILE;
}

/* The kind of what the name leads to. `error`: of stat(2), following links. Reports names that are
 * left out. */
static enum scanned_kind
kind_of_target(struct scan *scan, const char *name, bool is_link, errint_t error,
               const struct file_identity *identity)
{
    if (error == -ENOENT && !is_link)
        return SCANNED_NONE; /* removed since the directory was read */
    if (error_hides_target(error))
        return kind_of_failed_name(scan, name, error);
    if (error) {
        report_broken_link(scan, name, error);
        return error == -EPERM && !group_index_name(name, NULL) ? SCANNED_UNKNOWN : SCANNED_NONE;
    }
    if (S_ISREG(identity->mode))
        return SCANNED_FILE;
    if (!S_ISDIR(identity->mode)) {
        if (is_link)
            report_broken_link(scan, name, 0);
        else
            report_left_out(scan, name, SPECIAL_FILE);
        return SCANNED_NONE;
    }
    if (is_link && is_ancestor(scan->dir->catalog, scan->dir->path, identity)) {
        report_left_out(scan, name, "a link to a directory that holds it (a loop)");
        return SCANNED_NONE;
    }
    return SCANNED_DIRECTORY;
}

/* ---- remote names ---- */

struct remote_name *
remote_names_find(const struct remote_names *remotes, const char *name)
{
    return remotes->count ? bsearch(&name, remotes->all, remotes->count, sizeof(*remotes->all),
                                    text_compare_strings)
                          : NULL;
}

static void
remote_name_drop(struct remote_names *remotes, struct remote_name *remote)
{
    if (remote->query)
        query_unref(remotes->catalog->queries, &remote->query->query);
    remote->query = NULL;
}

void
remote_names_settle(struct remote_names *remotes)
{
    for (size_t i = 0; i < remotes->count; i++)
        if (remotes->all[i].is_answered && remotes->all[i].query &&
            query_is_answered(&remotes->all[i].query->query))
            remote_name_drop(remotes, &remotes->all[i]);
}

void
remote_names_free(struct remote_names *remotes)
{
    for (size_t i = 0; i < remotes->count; i++)
        remote_name_drop(remotes, &remotes->all[i]);
    free(remotes->all);
    buffer_free(&remotes->text);
}

static errint_t
add_remote_name(struct remote_names *remotes, const char *name, uint64_t lane)
{
    size_t at = remotes->text.length;

    buffer_add(&remotes->text, name, strlen(name) + 1);
    if (buffer_failed(&remotes->text) ||
        !array_add(remotes->all, remotes->count, (struct remote_name){.at = at, .lane = lane}))
        return -ENOMEM;
    return 0;
}

static void
ask_remote_name(struct source_dir *dir, const struct remote_names *remotes,
                struct remote_name *remote)
{
    struct resolve_mounts mounts = remotes->mounts;

    mounts.ids[mounts.count++] = remote->lane;
    remote->query = name_query_ask(dir, remote->name, &mounts, &remote->index);
}

static void
wait_for_remote_names(const struct remote_names *remotes)
{
    struct query **queries = malloc((remotes->count + 1) * sizeof(struct query *));
    size_t count = 0;

    for (size_t i = 0; queries && i < remotes->count; i++)
        if (remotes->all[i].query)
            queries[count++] = &remotes->all[i].query->query;
    if (count)
        query_pool_wait(remotes->catalog->queries, queries, count);
    free(queries);
}

/* Whether a query has the answer that a scan needs. */
static bool
has_full_answer(const struct name_query *query)
{
    return query && query_is_answered(&query->query) &&
           (query->is_index_read || !query->known.inode || query->error ||
            !S_ISREG(query->identity.mode));
}

/* Takes over the query of the scan before, unless the link now leads to another file system, or the
 * answer is not what a scan needs. */
static void
take_query(struct remote_name *remote, struct remote_name *old)
{
    struct name_query *query = old->query;

    if (!query || query->first_lane != remote->lane ||
        (query_is_answered(&query->query) && !has_full_answer(query)))
        return;
    remote->query = query;
    old->query = NULL;
}

/* Sets the kind of a remote name whose storage does not answer: as before. */
static void
set_without_answer(const struct scan *scan, struct remote_name *remote)
{
    const struct remote_name *before = find_remote_before(scan, remote->name);

    remote->is_unusable = before && before->is_unusable;
    remote->kind = kind_before(scan, remote->name);
    if (!remote->kind && !before)
        remote->kind = group_index_name(remote->name, NULL) ? SCANNED_FILE : SCANNED_UNKNOWN;
}

static errint_t
add_remote_entry(struct scan *scan, struct remote_name *remote)
{
    const struct name_query *query = remote->query;

    if (has_full_answer(query)) {
        if (error_is_lack(query->error))
            return query->error;
        remote->is_answered = true;
        remote->lane = name_query_lane(query);
        remote->is_unusable = !target_of_link(query->error, &query->identity);
        remote->has_failed = error_hides_target(query->error);
        remote->is_refused = query->error == -EPERM;
        remote->kind = kind_of_target(scan, remote->name, true, query->error, &query->identity);
    } else {
        set_without_answer(scan, remote);
        problem_set_add(scan->problems, remote->name,
                        scanned_kind_is_known(remote->kind)
                            ? "the storage that the link leads to does not answer"
                            : "left out: the storage that the link leads to does not answer");
    }
    return scan_add_entry(scan, remote->name, remote->kind, true);
}

static errint_t
scan_remote_names(struct scan *scan)
{
    const struct remote_names *before = scan->remotes_before;
    struct remote_names *remotes = &scan->remotes;
    struct remote_name *old;
    errint_t error = 0;

    for (size_t i = 0; i < remotes->count; i++)
        remotes->all[i].name = remotes->text.data + remotes->all[i].at;
    if (remotes->count)
        qsort(remotes->all, remotes->count, sizeof(*remotes->all), text_compare_strings);
    for (size_t i = 0; i < remotes->count; i++) {
        old = before ? remote_names_find(before, remotes->all[i].name) : NULL;
        if (old)
            take_query(&remotes->all[i], old);
        if (!remotes->all[i].query)
            ask_remote_name(scan->dir, remotes, &remotes->all[i]);
    }
    wait_for_remote_names(remotes);
    for (size_t i = 0; !error && i < remotes->count; i++)
        error = add_remote_entry(scan, &remotes->all[i]);
    return error;
}

/* ---- remote names of a listing ---- */

/* Whether the listing must be made again if the target of the link changes: the link is unusable,
 * or has the name of an index. */
static bool
remote_name_is_checked(const struct remote_name *remote)
{
    return remote->is_unusable || group_index_name(remote->name, NULL);
}

/* Whether the answer to its query agrees with the listing. */
static bool
remote_name_is_current(const struct remote_name *remote)
{
    const struct name_query *query = remote->query;

    if (!remote->is_answered)
        return false;
    if (remote->is_unusable)
        return !target_of_link(query->error, &query->identity) &&
               error_hides_target(query->error) == remote->has_failed &&
               (query->error == -EPERM) == remote->is_refused;
    /* A directory; or one that holds the link, which is left out. */
    if (remote->kind != SCANNED_FILE)
        return target_of_link(query->error, &query->identity) == SCANNED_DIRECTORY;
    return !query->error && file_identity_equal(&query->identity, &remote->index);
}

static bool
answers_are_current(struct remote_names *remotes)
{
    for (size_t i = 0; i < remotes->count; i++)
        if (remotes->all[i].query && query_is_answered(&remotes->all[i].query->query) &&
            !remote_name_is_current(&remotes->all[i]))
            return false;
    return true;
}

bool
remote_names_are_current(struct source_dir *dir, struct remote_names *remotes)
{
    bool asks = false;

    if (!answers_are_current(remotes))
        return false;
    remote_names_settle(remotes);
    for (size_t i = 0; i < remotes->count; i++) {
        struct remote_name *remote = &remotes->all[i];

        if (remote->query || (remote->is_answered && !remote_name_is_checked(remote)))
            continue;
        ask_remote_name(dir, remotes, remote);
        asks = true;
    }
    if (asks)
        wait_for_remote_names(remotes);
    return answers_are_current(remotes);
}

/* ---- reading a directory ---- */

enum { ENTRIES_BYTES = 32768 }; /* of one call, as in the C library */

/* As stat(2). Sets device, inode and type only. */
static errint_t
stat_through_links(int directory, const char *name, struct file_identity *identity)
{
    struct stat st = {0};
    errint_t error = open_stat(directory, name, &st);

    identity->device = st.st_dev;
    identity->inode = st.st_ino;
    identity->mode = st.st_mode;
    return error;
}

/* Finds out where a link leads, without waiting for other file systems. -EREMOTE: *mount is the one
 * that must be asked. If there are no mounts, as stat_through_links(). */
static errint_t
stat_local(int directory, const char *name, const struct resolve_mounts *mounts,
           struct file_identity *identity, uint64_t *mount)
{
    errint_t error;
    int fd;

    if (!mounts->count)
        return stat_through_links(directory, name, identity);
    fd = open_local(directory, name, mounts, mount);
    if (fd == -ESTALE) { /* see name_query.c */
        *mount = mounts->ids[0];
        return -EREMOTE;
    }
    if (fd < 0)
        return fd;
    error = file_identity_from_fd(identity, fd);
    close(fd);
    return error;
}

static errint_t
add_local_link(struct local_links *links, const char *name, enum scanned_kind target,
               errint_t error)
{
    const struct local_link link = {.at = links->text.length,
                                    .target = target,
                                    .has_failed = error_hides_target(error),
                                    .is_refused = error == -EPERM,
                                    .is_index = group_index_name(name, NULL)};

    buffer_add(&links->text, name, strlen(name) + 1);
    return !buffer_failed(&links->text) && array_add(links->all, links->count, link) ? 0 : -ENOMEM;
}

static errint_t
scan_link(struct scan *scan, const char *name, bool is_link)
{
    struct file_identity identity = {0};
    enum scanned_kind kind, target;
    uint64_t mount = 0;
    errint_t error = stat_local(scan->fd, name, &scan->remotes.mounts, &identity, &mount);

    if (error == -EREMOTE && mount)
        return add_remote_name(&scan->remotes, name, mount);
    if (error_is_lack(error))
        return error;
    kind = kind_of_target(scan, name, is_link, error, &identity);
    target = error_hides_target(error) ? kind : target_of_link(error, &identity);
    if ((is_link || error_hides_target(error)) &&
        add_local_link(&scan->locals, name, target, error))
        return -ENOMEM;
    return scan_add_entry(scan, name, kind, is_link);
}

static bool
is_symbolic_link(int directory, const char *name)
{
    char first;

    return readlinkat(directory, name, &first, 1) >= 0;
}

static errint_t
scan_entry(struct scan *scan, const struct dirent64 *entry)
{
    const char *name = entry->d_name;

    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return 0;
    switch (entry->d_type) {
    case DT_REG:
        return scan_add_entry(scan, name, SCANNED_FILE, false);
    case DT_DIR:
        return scan_add_entry(scan, name, SCANNED_DIRECTORY, false);
    case DT_LNK:
        return scan_link(scan, name, true);
    case DT_UNKNOWN:
        return scan_link(scan, name, is_symbolic_link(scan->fd, name));
    default:
        report_left_out(scan, name, SPECIAL_FILE);
        return 0;
    }
}

/* Whether the directory was removed: getdents64(2) then fails with ENOENT instead of returning no
 * entries. */
static bool
is_removed(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_nlink == 0;
}

/* Does not use readdir(3), which reports ENOENT as the end of the directory: if storage fails with
 * that error, names would be missing silently. */
static errint_t
scan_entries(struct scan *scan)
{
    char *entries = malloc(ENTRIES_BYTES);
    unsigned repeats = 0;
    errint_t error = entries ? 0 : -ENOMEM;

    while (!error) {
        const ssize_t bytes = getdents64(scan->fd, entries, ENTRIES_BYTES);

        if (bytes < 0 && eintr_repeat(&repeats))
            continue;
        if (bytes <= 0) {
            error = bytes < 0 ? -errno : 0;
            if (error == -ENOENT && is_removed(scan->fd))
                error = 0;
            break;
        }
        for (ssize_t at = 0; !error && at < bytes;) {
            const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);

            error = scan_entry(scan, entry);
            at += entry->d_reclen;
        }
    }
    free(entries);
    return error;
}

errint_t
scan_directory(struct scan *scan, struct file_identity *identity)
{
    errint_t error;

    scan->remotes.catalog = scan->dir->catalog;
    scan->fd = source_dir_open_self(scan->dir);
    if (scan->fd < 0)
        return scan->fd;
    error = file_identity_from_fd(identity, scan->fd);
    if (!error)
        scan->unsettled = timestamp_settle_ns(&identity->changed, true) > 0;
    if (scan->dir->catalog->queries && identity->mount)
        scan->remotes.mounts = (struct resolve_mounts){1, {identity->mount}};
    if (!error)
        error = scan_entries(scan);
    if (!error)
        error = scan_remote_names(scan);
    sort_local_links(&scan->locals);
    close(scan->fd);
    return error;
}

/* ---- local links of a listing ---- */

enum { LINKS_PER_CHECK = 512 };

static bool
local_link_is_current(int directory, const struct local_link *link,
                      const struct resolve_mounts *mounts)
{
    struct file_identity identity = {0};
    uint64_t mount;
    errint_t error = stat_local(directory, link->name, mounts, &identity, &mount);

    if (error_hides_target(error))
        return error != -EREMOTE;
    return !link->has_failed && target_of_link(error, &identity) == link->target &&
           (error == -EPERM) == link->is_refused;
}

bool
local_links_are_current(struct source_dir *dir, struct local_links *links,
                        const struct resolve_mounts *mounts)
{
    bool current = true;
    int directory;

    if (!links->count)
        return true;
    directory = source_dir_open_self(dir);
    if (directory < 0)
        return false;
    for (size_t i = 0; current && i < links->count; i++) {
        bool is_turn = (i + links->count - links->next) % links->count < LINKS_PER_CHECK;

        if (is_turn || links->all[i].is_index)
            current = local_link_is_current(directory, &links->all[i], mounts);
    }
    close(directory);
    links->next = (links->next + LINKS_PER_CHECK) % links->count;
    return current;
}

void
local_links_free(struct local_links *links)
{
    free(links->all);
    buffer_free(&links->text);
}

void
scan_free(struct scan *scan)
{
    free(scan->entries);
    buffer_free(&scan->names);
    local_links_free(&scan->locals);
    remote_names_free(&scan->remotes);
}
