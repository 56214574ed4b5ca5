/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories and their listings. Checkpoints are in checkpoint.c.
 */
#include "catalog/catalog.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/open.h"
#include "base/timestamp.h"
#include "catalog/group.h"
#include "catalog/private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct listing_index {
    const char *file;
    struct file_identity identity;
};

struct listing_private {
    struct catalog *catalog;
    struct file_identity directory;
    bool unsettled; /* the directory changed too lately to trust its time stamp */
    uint64_t checked; /* guarded by the directory's lock */
    char *names; /* all file names, one after another */
    char *dangling; /* links that led to nothing, likewise; an empty name ends them */
    struct grouping grouping;
    const char **directories;
    struct listing_index *indexes;
    size_t index_count;
};

bool
file_identity_equal(const struct file_identity *a, const struct file_identity *b)
{
    return file_identity_same_content(a, b) && a->mode == b->mode && a->owner == b->owner &&
           a->group == b->group;
}

/* ---- the catalog ---- */

/* The checkpoint of one group of the directory that nobody uses; NULL: none. Does not wait. */
static struct checkpoint *
take_idle_checkpoint(struct source_dir *dir)
{
    struct checkpoint *checkpoint = NULL;

    if (pthread_mutex_trylock(&dir->lock) != 0)
        return NULL;
    for (uint32_t i = 0; dir->listing && !checkpoint && i < dir->listing->group_count; i++)
        checkpoint = group_state_take_idle(dir->listing->groups[i].state);
    pthread_mutex_unlock(&dir->lock);
    return checkpoint;
}

/*
 * Drops the kept index, else a checkpoint that only its group's state refers to. Callers
 * may hold locks of directories and states: those are only tried here.
 */
static bool
reclaim_headers(void *arg)
{
    struct catalog *catalog = arg;
    struct checkpoint *checkpoint = NULL;

    if (catalog_drop_index(catalog))
        return true;
    pthread_mutex_lock(&catalog->lock);
    for (size_t i = 0; !checkpoint && i < DIRECTORY_BUCKETS; i++) {
        struct source_dir *dir = catalog->directories[catalog->reclaim_bucket];

        for (; dir && !checkpoint; dir = dir->next)
            checkpoint = take_idle_checkpoint(dir);
        if (!checkpoint)
            catalog->reclaim_bucket = (catalog->reclaim_bucket + 1) % DIRECTORY_BUCKETS;
    }
    pthread_mutex_unlock(&catalog->lock);
    checkpoint_unref(checkpoint);
    return checkpoint != NULL;
}

struct header_budget *
catalog_budget(struct catalog *catalog)
{
    return catalog ? &catalog->budget : NULL;
}

errint_t
catalog_new(const struct catalog_options *options, struct catalog **out)
{
    struct catalog *catalog = calloc(1, sizeof(*catalog));
    errint_t error = -ENOMEM;

    if (!catalog)
        return -ENOMEM;
    catalog->root_fd = -1;
    catalog->derived_free = options->derived_free;
    pthread_mutex_init(&catalog->lock, NULL);
    header_budget_init(&catalog->budget,
                       options->header_memory > HEADER_BUDGET_LEAST ? options->header_memory
                                                                    : HEADER_BUDGET_LEAST,
                       reclaim_headers, catalog);
    table_cache_init(&catalog->tables, &catalog->budget);
    catalog->problems = problems_new(&options->problems);
    if (!catalog->problems)
        goto fail;
    catalog->source = realpath(options->source, NULL);
    if (!catalog->source) {
        error = -errno;
        goto fail;
    }
    catalog->root_fd =
        open(catalog->source, (options->path_only ? O_PATH : O_RDONLY) | O_DIRECTORY | O_CLOEXEC);
    if (catalog->root_fd < 0) {
        error = -errno;
        goto fail;
    }
    atomic_store(&catalog->root_checked, monotonic_ms());
    *out = catalog;
    return 0;

fail:
    catalog_free(catalog);
    return error;
}

void
catalog_free(struct catalog *catalog)
{
    if (!catalog)
        return;
    if (catalog->root_fd >= 0)
        close(catalog->root_fd);
    problems_free(catalog->problems);
    st_index_free(catalog->kept_index);
    table_cache_destroy(&catalog->tables);
    header_budget_destroy(&catalog->budget);
    pthread_mutex_destroy(&catalog->lock);
    free(catalog->source);
    free(catalog);
}

const char *
catalog_source(const struct catalog *catalog)
{
    return catalog->source;
}

int
catalog_source_fd(const struct catalog *catalog)
{
    return catalog->root_fd;
}

struct problems *
catalog_problems(struct catalog *catalog)
{
    return catalog->problems;
}

errint_t
catalog_statvfs(struct catalog *catalog, struct statvfs *out)
{
    return fstatvfs(catalog->root_fd, out) < 0 ? -errno : 0;
}

void
catalog_counters(struct catalog *catalog, struct catalog_counters *counters)
{
    counters->listings = atomic_load(&catalog->listings);
    counters->headers = atomic_load(&catalog->headers);
    counters->header_bytes = atomic_load(&catalog->header_bytes);
    counters->tensors = atomic_load(&catalog->tensors);
    counters->checkpoints = atomic_load(&catalog->checkpoints);
    pthread_mutex_lock(&catalog->tables.lock);
    counters->table_bytes = catalog->tables.bytes;
    pthread_mutex_unlock(&catalog->tables.lock);
    header_budget_count(&catalog->budget, &counters->budget);
}

/* ---- directories ---- */

static size_t
hash_path(const char *path)
{
    return hash64(path, strlen(path), 0) % DIRECTORY_BUCKETS;
}

static struct source_dir *
find_or_add_directory(struct catalog *catalog, const char *path)
{
    struct source_dir **bucket = &catalog->directories[hash_path(path)], *dir;

    pthread_mutex_lock(&catalog->lock);
    for (dir = *bucket; dir; dir = dir->next)
        if (strcmp(dir->path, path) == 0)
            break;
    if (dir) {
        dir->references++;
    } else if ((dir = calloc(1, sizeof(*dir) + strlen(path) + 1))) {
        dir->catalog = catalog;
        dir->references = 1;
        pthread_mutex_init(&dir->lock, NULL);
        strcpy(dir->path, path);
        dir->next = *bucket;
        *bucket = dir;
    }
    pthread_mutex_unlock(&catalog->lock);
    return dir;
}

struct source_dir *
catalog_root(struct catalog *catalog)
{
    return find_or_add_directory(catalog, "");
}

/* "name" beside nothing, else "directory/name"; malloc'ed. */
static char *
join_path(const char *directory, const char *name)
{
    char *path;

    if (!*directory)
        return strdup(name);
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

struct source_dir *
source_dir_child(struct source_dir *dir, const char *name)
{
    char *path = join_path(dir->path, name);
    struct source_dir *child = path ? find_or_add_directory(dir->catalog, path) : NULL;

    free(path);
    return child;
}

struct source_dir *
source_dir_ref(struct source_dir *dir)
{
    pthread_mutex_lock(&dir->catalog->lock);
    dir->references++;
    pthread_mutex_unlock(&dir->catalog->lock);
    return dir;
}

void
source_dir_unref(struct source_dir *dir)
{
    struct catalog *catalog;
    struct source_dir **link;

    if (!dir)
        return;
    catalog = dir->catalog;
    pthread_mutex_lock(&catalog->lock);
    if (--dir->references > 0) {
        pthread_mutex_unlock(&catalog->lock);
        return;
    }
    link = &catalog->directories[hash_path(dir->path)];
    while (*link != dir)
        link = &(*link)->next;
    *link = dir->next;
    pthread_mutex_unlock(&catalog->lock);
    listing_unref(dir->listing);
    pthread_mutex_destroy(&dir->lock);
    free(dir);
}

const char *
source_dir_path(const struct source_dir *dir)
{
    return dir->path;
}

static const char *
path_at_root(const char *path)
{
    return *path ? path : ".";
}

/*
 * The source's descriptor. Where another directory is at its path by now, and no path
 * leads to the one that was there, goes on with that one. One thread looks: should that
 * take long, the others need not wait.
 */
static int
root_of(struct catalog *catalog)
{
    char name[QUOTED_SIZE];

    if (monotonic_ms() - atomic_load(&catalog->root_checked) < CATALOG_CHECK_MS ||
        atomic_exchange(&catalog->root_checking, true))
        return catalog->root_fd;
    if (open_renew(catalog->root_fd, catalog->source))
        log_warning("%s: another directory is there now, and is shown",
                    quoted(name, catalog->source, strlen(catalog->source)));
    atomic_store(&catalog->root_checked, monotonic_ms());
    atomic_store(&catalog->root_checking, false);
    return catalog->root_fd;
}

/* stat of `path`, through links. */
static errint_t
stat_below_root(struct catalog *catalog, const char *path, struct stat *st)
{
    errint_t error = 0;
    int fd;

    memset(st, 0, sizeof(*st)); /* where errno has no reason to give */
    fd = open_at(root_of(catalog), path_at_root(path), O_PATH | O_CLOEXEC);
    if (fd < 0)
        return fd;
    if (fstat(fd, st) < 0)
        error = -errno;
    close(fd);
    return error;
}

errint_t
source_dir_stat(struct source_dir *dir, struct stat *st)
{
    errint_t error = stat_below_root(dir->catalog, dir->path, st);

    if (!error && !S_ISDIR(st->st_mode))
        return -ENOTDIR;
    if (!error)
        atomic_store_explicit(&dir->device, st->st_dev, memory_order_relaxed);
    return error;
}

void
source_dir_expire(struct source_dir *dir)
{
    atomic_store(&dir->expired, monotonic_ms());
}

void
source_dir_expire_listing(struct source_dir *dir)
{
    atomic_store(&dir->listing_expired, monotonic_ms());
}

static bool
is_older(const struct source_dir *dir, uint64_t checked, uint64_t ms)
{
    return monotonic_ms() - checked >= ms || checked <= atomic_load(&dir->expired);
}

bool
source_dir_check_is_due(const struct source_dir *dir, uint64_t checked)
{
    return is_older(dir, checked, CATALOG_CHECK_MS);
}

bool
source_dir_check_is_overdue(const struct source_dir *dir, uint64_t checked)
{
    return is_older(dir, checked, CATALOG_CHECK_MS + CATALOG_LOOKING_MS);
}

uint64_t
source_dir_checked(const struct source_dir *dir, uint64_t began)
{
    return began <= atomic_load(&dir->expired) ? began : monotonic_ms();
}

uint64_t
source_dir_device(const struct source_dir *dir)
{
    return atomic_load_explicit(&dir->device, memory_order_relaxed);
}

errint_t
source_dir_file(struct source_dir *dir, const char *name, struct source_file *file)
{
    char *path = join_path(dir->path, name);
    struct stat st;
    errint_t error;

    if (!path)
        return -ENOMEM;
    error = stat_below_root(dir->catalog, path, &st);
    free(path);
    if (error)
        return error;
    if (!S_ISREG(st.st_mode))
        return S_ISDIR(st.st_mode) ? -EISDIR : -ENOENT;
    file_identity_from_stat(&file->identity, &st);
    file->ownership = ownership_from_stat(&st);
    return 0;
}

struct backing *
source_dir_backing(struct source_dir *dir, const char *name, const struct source_file *file)
{
    char *path = join_path(dir->path, name);
    struct backing *backing = NULL;

    if (path)
        backing = backing_new(dir->catalog->root_fd, path, &file->identity);
    free(path);
    return backing;
}

int
source_dir_open(struct source_dir *dir, const char *name)
{
    char *path = join_path(dir->path, name);
    int fd;

    if (!path)
        return -ENOMEM;
    /* O_NONBLOCK: what was a file when it was looked at may be a FIFO by now. */
    fd = open_at(dir->catalog->root_fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0)
        /* Only what is asked for: what the kernel reads ahead of a header stays in
         * the page cache, and marks where it goes on when the engine comes there. */
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    free(path);
    return fd;
}

/* ---- listings ---- */

const struct file_identity *
listing_directory(const struct listing *listing)
{
    return &listing->private->directory;
}

void
listing_unref(struct listing *listing)
{
    struct listing_private *private;

    if (!listing || atomic_fetch_sub(&listing->references, 1) > 1)
        return;
    private = listing->private;
    for (uint32_t i = 0; i < listing->group_count; i++)
        group_state_unref(listing->groups[i].state);
    grouping_free(&private->grouping);
    problem_set_free(listing->problems);
    free(private->directories);
    free(private->indexes);
    free(private->names);
    free(private->dangling);
    free(private);
    free(listing);
}

/* One entry while a directory is read: its name's place among the names. */
struct entry {
    size_t name;
    bool directory;
};

struct scan {
    struct source_dir *dir;
    struct problem_set *problems;
    int fd;
    struct buffer names;
    struct buffer dangling; /* names of links that lead to nothing */
    struct entry *entries;
    size_t count, capacity;
    size_t directories;
};

/* Whether the directory `st` is the one at `path` or holds it. */
static bool
is_ancestor(struct catalog *catalog, const char *path, const struct stat *st)
{
    char *prefix = strdup(path);
    bool found = false;
    struct stat above;

    if (!prefix)
        return true; /* the safe answer: leave the link out */
    for (;;) {
        char *slash;

        if (open_stat(catalog->root_fd, path_at_root(prefix), &above) == 0 &&
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

enum what { IS_FILE, IS_DIRECTORY, IS_NOTHING };

/* Finds out what an entry is that getdents does not say, or that is a link. */
static enum what
classify(struct scan *scan, const char *name, unsigned char type)
{
    const char *directory = scan->dir->path;
    struct stat st;
    errint_t error;

    if (type == DT_REG)
        return IS_FILE;
    if (type == DT_DIR)
        return IS_DIRECTORY;
    if (type == DT_LNK || type == DT_UNKNOWN) {
        error = open_stat(scan->fd, name, &st);
        if (error == -ENOENT && type == DT_UNKNOWN)
            return IS_NOTHING; /* gone since */
        if (error) {
            if (error == -ENOENT)
                buffer_add(&scan->dangling, name, strlen(name) + 1);
            problem_set_add(scan->problems, directory, name,
                            error == -EXDEV ? "left out: a link that leads into the mount itself"
                                            : "left out: a link that leads nowhere: %s",
                            strerror(-error));
            return IS_NOTHING;
        }
        if (S_ISREG(st.st_mode))
            return IS_FILE;
        if (S_ISDIR(st.st_mode)) {
            if (type == DT_LNK && is_ancestor(scan->dir->catalog, directory, &st)) {
                problem_set_add(scan->problems, directory, name,
                                "left out: a link to a directory that holds it (a loop)");
                return IS_NOTHING;
            }
            return IS_DIRECTORY;
        }
    }
    problem_set_add(scan->problems, directory, name,
                    "left out: neither a file nor a directory (a FIFO, socket or device)");
    return IS_NOTHING;
}

static errint_t
scan_entry(struct scan *scan, const struct dirent *entry)
{
    enum what what;

    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
        return 0;
    what = classify(scan, entry->d_name, entry->d_type);
    if (what == IS_NOTHING)
        return 0;
    if (scan->count == scan->capacity) {
        size_t capacity = scan->capacity ? 2 * scan->capacity : 64;
        struct entry *entries = realloc(scan->entries, capacity * sizeof(*entries));

        if (!entries)
            return -ENOMEM;
        scan->entries = entries;
        scan->capacity = capacity;
    }
    scan->entries[scan->count++] = (struct entry){scan->names.length, what == IS_DIRECTORY};
    scan->directories += what == IS_DIRECTORY;
    buffer_add(&scan->names, entry->d_name, strlen(entry->d_name) + 1);
    return buffer_failed(&scan->names) ? -ENOMEM : 0;
}

static errint_t
scan_directory(struct scan *scan, struct stat *st)
{
    struct catalog *catalog = scan->dir->catalog;
    struct dirent *entry;
    errint_t error = 0;
    DIR *stream;

    scan->fd = open_at(root_of(catalog), path_at_root(scan->dir->path),
                       O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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

static int
compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Reads one index file; what is wrong with it is said, and it counts as refused:
 * *index is NULL. Fails only for want of memory. */
static errint_t
read_index(struct scan *scan, const char *name, struct st_index **index,
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
    struct listing_private *private = listing->private;
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
        error = read_index(scan, files[i], &indexes[n].index, &private->indexes[n].identity);
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
compare_group_names(const void *a, const void *b)
{
    return group_compare_names(a, b);
}

static bool
same_members(const struct group *a, const struct group *b)
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

/* What is known of the checkpoints of the listing before stays known. */
static errint_t
carry_states(struct group *groups, size_t count, const struct listing *before)
{
    for (size_t i = 0; i < count; i++) {
        struct group *group = &groups[i];
        const struct group *old = NULL;

        if (before && before->group_count)
            old = bsearch(group, before->groups, before->group_count, sizeof(*group),
                          compare_group_names);
        if (old && !group->shadowed && same_members(group, old))
            group->state = group_state_ref(old->state);
        else
            group->state = group_state_new();
        if (!group->state)
            return -ENOMEM;
    }
    return 0;
}

/* Moves what was scanned into a listing. */
static errint_t
fill_listing(struct scan *scan, struct listing *listing, const struct listing *before)
{
    struct listing_private *private = listing->private;
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

        if (scan->entries[i].directory)
        private->directories[directories++] = name;
        else names[files++] = name;
    }
    qsort(private->directories, directories, sizeof(*names), compare_strings);
    qsort(names, files, sizeof(*names), compare_strings);
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
    struct listing *listing = calloc(1, sizeof(*listing));
    errint_t error = -ENOMEM;
    struct stat st = {0};

    if (listing)
        listing->private = calloc(1, sizeof(*listing->private));
    if (!listing || !listing->private) {
        free(listing);
        return -ENOMEM;
    }
    atomic_init(&listing->references, 1);
    listing->private->catalog = dir->catalog;
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
    file_identity_from_stat(&listing->private->directory, &st);
    listing->private->unsettled = timestamp_settle_ns(&st.st_ctim, true) > 0;
    listing->private->checked = monotonic_ms();
    atomic_fetch_add(&dir->catalog->listings, 1);
    *out = listing;
    return 0;
}

/* Whether something came to where a link of the directory led, which does not change it. */
static bool
link_leads_somewhere(struct source_dir *dir, const char *dangling)
{
    struct source_file file;

    for (const char *name = dangling; name && *name; name += strlen(name) + 1)
        if (source_dir_file(dir, name, &file) != -ENOENT)
            return true;
    return false;
}

/* Whether the listing still tells the truth. */
static bool
listing_holds(struct source_dir *dir, const struct listing *listing)
{
    const struct listing_private *private = listing->private;
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
    uint64_t checked = dir->listing->private->checked;

    return source_dir_check_is_due(dir, checked) || checked <= atomic_load(&dir->listing_expired);
}

errint_t
source_dir_listing(struct source_dir *dir, struct listing **out)
{
    struct listing *listing = NULL;
    errint_t error = 0;

    pthread_mutex_lock(&dir->lock);
    if (dir->listing && listing_check_is_due(dir)) {
        if (listing_holds(dir, dir->listing)) {
            dir->listing->private->checked = monotonic_ms();
        } else {
            source_dir_expire(dir); /* a shard may have another file by now */
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
