/* SPDX-License-Identifier: Apache-2.0 */
/* Listings: the names of a directory, and the checkpoints that its files form. */
#include "base/array.h"
#include "base/clock.h"
#include "base/open.h"
#include "base/text.h"
#include "base/timestamp.h"
#include "catalog/group.h"
#include "catalog/private.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct listed_index {
    const char *file;
    struct file_identity identity;
};

/* A listing, and the state for checking it. */
struct listing_private {
    struct listing listing; /* first */
    struct file_identity directory;
    bool unsettled; /* the directory changed so recently that another change may not update its
                       times */
    uint64_t checked; /* monotonic_ms(); guarded by the directory's lock */
    char *names; /* of all entries, one after another */
    char *dangling; /* names of dangling links, likewise; ends with an empty name */
    struct grouping grouping;
    const char **directories;
    struct listed_index *indexes;
    size_t index_count;
};

static struct listing_private *
private_of(const struct listing *listing)
{
    return (struct listing_private *)(uintptr_t)listing;
}

const struct file_identity *
listing_directory(const struct listing *listing)
{
    return &private_of(listing)->directory;
}

void
listing_unref(struct listing *listing)
{
    struct listing_private *private = private_of(listing);

    if (!listing || atomic_fetch_sub(&listing->references, 1) > 1)
        return;
    for (uint32_t i = 0; i < listing->group_count; i++)
        group_state_unref(listing->groups[i].state);
    grouping_free(&private->grouping);
    problem_set_free(listing->problems);
    free(private->directories);
    free(private->indexes);
    free(private->names);
    free(private->dangling);
    free(private);
}

/* ---- reading a directory ---- */

struct scanned_entry {
    size_t name; /* offset in the names */
    bool is_directory;
};

struct scan {
    struct source_dir *dir;
    struct problem_set *problems;
    int fd;
    struct buffer names;
    struct buffer dangling; /* names of links that lead nowhere */
    struct scanned_entry *entries;
    size_t count;
    size_t directories;
};

/* Whether `st` is of the directory at `path` or of one above it. */
static bool
is_ancestor(struct catalog *catalog, const char *path, const struct stat *st)
{
    char *prefix = strdup(path);
    bool found = false;
    struct stat above;

    if (!prefix)
        return true; /* out of memory: the link is omitted, which is safe */
    for (;;) {
        char *slash;

        if (open_stat(catalog->root_fd, *prefix ? prefix : ".", &above) == 0 &&
            above.st_dev == st->st_dev && above.st_ino == st->st_ino)
            found = true;
        if (found || !*prefix)
            break;
        slash = strrchr(prefix, '/');
        *(slash ? slash : prefix) = '\0';
    }
    free(prefix);
    return found;
}

enum entry_kind { ENTRY_FILE, ENTRY_DIRECTORY, ENTRY_NONE };

/* The kind of an entry, following links. Reports entries that are not listed. `type`: its
 * d_type. */
static enum entry_kind
classify_entry(struct scan *scan, const char *name, unsigned char type)
{
    const char *directory = scan->dir->path;
    struct stat st;
    errint_t error;

    if (type == DT_REG)
        return ENTRY_FILE;
    if (type == DT_DIR)
        return ENTRY_DIRECTORY;
    if (type == DT_LNK || type == DT_UNKNOWN) {
        error = open_stat(scan->fd, name, &st);
        if (error == -ENOENT && type == DT_UNKNOWN)
            return ENTRY_NONE; /* removed since the directory was read */
        if (error) {
            if (error == -ENOENT)
                buffer_add(&scan->dangling, name, strlen(name) + 1);
            problem_set_add(scan->problems, directory, name,
                            error == -EXDEV ? "left out: a link that leads into the mount itself"
                                            : "left out: a link that leads nowhere: %s",
                            strerror(-error));
            return ENTRY_NONE;
        }
        if (S_ISREG(st.st_mode))
            return ENTRY_FILE;
        if (S_ISDIR(st.st_mode)) {
            if (type == DT_LNK && is_ancestor(scan->dir->catalog, directory, &st)) {
                problem_set_add(scan->problems, directory, name,
                                "left out: a link to a directory that holds it (a loop)");
                return ENTRY_NONE;
            }
            return ENTRY_DIRECTORY;
        }
    }
    problem_set_add(scan->problems, directory, name,
                    "left out: neither a file nor a directory (a FIFO, socket or device)");
    return ENTRY_NONE;
}

static errint_t
scan_entry(struct scan *scan, const struct dirent *entry)
{
    struct scanned_entry *entries;
    enum entry_kind kind;

    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
        return 0;
    kind = classify_entry(scan, entry->d_name, entry->d_type);
    if (kind == ENTRY_NONE)
        return 0;
    entries = array_room(scan->entries, scan->count, sizeof(*entries));
    if (!entries)
        return -ENOMEM;
    scan->entries = entries;
    entries[scan->count++] = (struct scanned_entry){scan->names.length, kind == ENTRY_DIRECTORY};
    scan->directories += kind == ENTRY_DIRECTORY;
    buffer_add(&scan->names, entry->d_name, strlen(entry->d_name) + 1);
    return buffer_failed(&scan->names) ? -ENOMEM : 0;
}

static errint_t
scan_directory(struct scan *scan, struct stat *st)
{
    struct dirent *entry;
    errint_t error = 0;
    DIR *stream;

    scan->fd = source_dir_open_self(scan->dir);
    if (scan->fd < 0)
        return scan->fd;
    stream = fdopendir(scan->fd);
    if (!stream) {
        close(scan->fd);
        return -ENOMEM;
    }
    if (fstat(scan->fd, st) < 0)
        error = -errno;
    while (!error) {
        errno = 0;
        entry = readdir(stream);
        if (!entry) {
            error = -errno;
            break;
        }
        error = scan_entry(scan, entry);
    }
    closedir(stream);
    return error;
}

/* ---- making a listing ---- */

/* Reads one index file. A refused index is reported, and *index is NULL. Fails only if out of
 * memory. */
static errint_t
read_listed_index(struct scan *scan, const char *name, struct st_index **index,
                  struct file_identity *identity)
{
    struct st_index *read = NULL;
    struct reason reason;
    errint_t error = source_dir_index(scan->dir, name, &read, identity, &reason);

    if (error == -ENOMEM)
        return error;
    if (error)
        problem_set_add(scan->problems, scan->dir->path, name,
                        "refused: %s: %s; the index is not used", reason.rule, reason.text);
    *index = read;
    return 0;
}

static errint_t
group_listing(struct scan *scan, struct listing *listing, const char **files, size_t count)
{
    struct listing_private *private = private_of(listing);
    struct group_index *indexes;
    errint_t error = 0;

    for (size_t i = 0; i < count; i++) {
        private->index_count += group_index_name(files[i], NULL);
    }
    private->indexes = calloc(private->index_count + 1, sizeof(*private->indexes));
    indexes = calloc(private->index_count + 1, sizeof(*indexes));
    if (!private->indexes || !indexes) {
        free(indexes);
        return -ENOMEM;
    }
    for (size_t i = 0, n = 0; !error && i < count; i++) {
        if (!group_index_name(files[i], NULL))
            continue;
        private->indexes[n].file = indexes[n].file = files[i];
        error = read_listed_index(scan, files[i], &indexes[n].index, &private->indexes[n].identity);
        n++;
    }
    if (!error)
        error = group_files(files, count, indexes, private->index_count, scan->dir->path,
                            scan->problems, &private->grouping);
    for (size_t i = 0; i < private->index_count; i++)
        if (indexes[i].index)
            catalog_keep_index(scan->dir->catalog, indexes[i].index, &private->indexes[i].identity);
    free(indexes);
    return error;
}

static int
compare_groups_by_name(const void *a, const void *b)
{
    return group_compare_names(a, b);
}

static bool
has_same_members(const struct group *a, const struct group *b)
{
    if (a->kind != b->kind || a->shadowed != b->shadowed || a->member_count != b->member_count ||
        a->missing_count != b->missing_count || !a->index != !b->index)
        return false;
    if (a->index && strcmp(a->index, b->index) != 0)
        return false;
    for (uint32_t i = 0; i < a->member_count; i++)
        if (strcmp(a->members[i], b->members[i]) != 0)
            return false;
    return true;
}

/* Takes the known checkpoints over from the previous listing. */
static errint_t
carry_states(struct group *groups, size_t count, const struct listing *before)
{
    for (size_t i = 0; i < count; i++) {
        struct group *group = &groups[i];
        const struct group *old = NULL;

        if (before && before->group_count)
            old = bsearch(group, before->groups, before->group_count, sizeof(*group),
                          compare_groups_by_name);
        if (old && !group->shadowed && has_same_members(group, old))
            group->state = group_state_ref(old->state);
        else
            group->state = group_state_new();
        if (!group->state)
            return -ENOMEM;
    }
    return 0;
}

/* Moves the scanned names into a listing. */
static errint_t
fill_listing(struct scan *scan, struct listing *listing, const struct listing *before)
{
    struct listing_private *private = private_of(listing);
    size_t file_count = scan->count - scan->directories, files = 0, directories = 0;
    const char **names = malloc((file_count + 1) * sizeof(*names));
    errint_t error;

    private->directories = malloc((scan->directories + 1) * sizeof(*private->directories));
    if (!names || !private->directories) {
        free(names);
        return -ENOMEM;
    }
    private->names = scan->names.data;
    scan->names = (struct buffer)BUFFER_INIT;
    if (scan->dangling.length)
        buffer_add_char(&scan->dangling, '\0');
    if (buffer_failed(&scan->dangling)) {
        free(names);
        return -ENOMEM;
    }
    private->dangling = scan->dangling.data;
    scan->dangling = (struct buffer)BUFFER_INIT;
    for (size_t i = 0; i < scan->count; i++) {
        const char *name = private->names + scan->entries[i].name;

        if (scan->entries[i].is_directory)
        private->directories[directories++] = name;
        else names[files++] = name;
    }
    qsort(private->directories, directories, sizeof(*names), text_compare_strings);
    qsort(names, files, sizeof(*names), text_compare_strings);
    error = group_listing(scan, listing, names, files);
    free(names);
    if (error)
        return error;
    listing->directories = private->directories;
    listing->directory_count = (uint32_t)directories;
    listing->files = private->grouping.files;
    listing->file_count = (uint32_t) private->grouping.file_count;
    listing->groups = private->grouping.groups;
    listing->group_count = (uint32_t) private->grouping.group_count;
    return carry_states(private->grouping.groups, private->grouping.group_count, before);
}

static errint_t
make_listing(struct source_dir *dir, const struct listing *before, struct listing **out)
{
    struct scan scan = {.dir = dir, .names = BUFFER_INIT, .dangling = BUFFER_INIT};
    struct listing_private *private = calloc(1, sizeof(*private));
    struct listing *listing;
    errint_t error = -ENOMEM;
    struct stat st = {0};

    if (!private)
        return -ENOMEM;
    listing = &private->listing;
    atomic_init(&listing->references, 1);
    listing->problems = scan.problems = problem_set_new(dir->catalog->problems);
    if (listing->problems)
        error = scan_directory(&scan, &st);
    if (!error)
        error = fill_listing(&scan, listing, before);
    free(scan.entries);
    buffer_free(&scan.names);
    buffer_free(&scan.dangling);
    if (error) {
        listing_unref(listing);
        return error;
    }
    file_identity_from_stat(&private->directory, &st);
    private->unsettled = timestamp_settle_ns(&st.st_ctim, true) > 0;
    private->checked = monotonic_ms();
    atomic_fetch_add(&dir->catalog->listings, 1);
    *out = listing;
    return 0;
}

/* ---- the current listing ---- */

/* Whether the target of a dangling link exists now, which does not update the directory's times. */
static bool
link_leads_somewhere(struct source_dir *dir, const char *dangling)
{
    struct source_file file;

    for (const char *name = dangling; name && *name; name += strlen(name) + 1)
        if (source_dir_file(dir, name, &file) != -ENOENT)
            return true;
    return false;
}

static bool
listing_is_current(struct source_dir *dir, const struct listing *listing)
{
    const struct listing_private *private = private_of(listing);
    struct file_identity identity;
    struct source_file file;
    struct stat st;

    if (private->unsettled || source_dir_stat(dir, &st) != 0)
        return false;
    file_identity_from_stat(&identity, &st);
    if (!file_identity_equal(&identity, &private->directory))
        return false;
    for (size_t i = 0; i < private->index_count; i++)
        if (source_dir_file(dir, private->indexes[i].file, &file) != 0 ||
            !file_identity_equal(&file.identity, &private->indexes[i].identity))
            return false;
    return !link_leads_somewhere(dir, private->dangling);
}

static bool
listing_check_is_due(const struct source_dir *dir)
{
    uint64_t checked = private_of(dir->listing)->checked;

    return source_dir_is_older(dir, checked, CATALOG_CHECK_MS) ||
           checked <= atomic_load(&dir->listing_expired);
}

errint_t
source_dir_listing(struct source_dir *dir, struct listing **out)
{
    struct listing *listing = NULL;
    errint_t error = 0;

    pthread_mutex_lock(&dir->lock);
    if (dir->listing && listing_check_is_due(dir)) {
        if (listing_is_current(dir, dir->listing)) {
            private_of(dir->listing)->checked = monotonic_ms();
        } else {
            source_dir_expire(dir); /* the name of a shard may refer to another file now */
            error = make_listing(dir, dir->listing, &listing);
        }
    } else if (!dir->listing) {
        error = make_listing(dir, NULL, &listing);
    }
    if (listing || error) {
        listing_unref(dir->listing);
        dir->listing = listing;
    }
    if (!error) {
        *out = listing_ref(dir->listing);
    }
    pthread_mutex_unlock(&dir->lock);
    return error;
}
