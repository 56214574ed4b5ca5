/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: the headers of their shards, read when first needed, in parallel,
 * and put together by name.
 */
#include "base/parallel.h"
#include "base/text.h"
#include "catalog/catalog.h"
#include "catalog/pieces.h"
#include "catalog/private.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Headers read at the same time: enough to hide the latency of network storage. */
enum { READERS = 16 };

struct checkpoint_private {
    char *directory, *stem;
    struct file_identity index; /* all zero: none */
    char *index_name;
    struct family *family; /* of its shards, and of those of the next version */
};

/* ---- shards ---- */

static struct shard *
shard_new(const char *name)
{
    struct shard *shard = calloc(1, sizeof(*shard) + strlen(name) + 1);

    if (!shard)
        return NULL;
    atomic_init(&shard->references, 1);
    shard->name = strcpy((char *)(shard + 1), name);
    return shard;
}

static void
shard_unref(struct shard *shard)
{
    if (!shard || atomic_fetch_sub(&shard->references, 1) > 1)
        return;
    backing_unref(shard->backing);
    st_table_free(shard->table);
    free(shard->refusal);
    free(shard);
}

static void
wait_for_tick(const struct timespec *modified)
{
    /* What was written just now may be written again without a new time stamp;
     * after a moment a second write would show. */
    if (changed_just_now(modified))
        nanosleep(&(struct timespec){0, 25000000}, NULL);
}

/* -EAGAIN: the open file is another than the shard's, or another version. */
static errint_t
check_unchanged(int fd, const struct shard *shard, struct reason *reason)
{
    struct file_identity now;
    errint_t error = file_identity_from_fd(&now, fd);

    if (error)
        return reason_set(reason, error, "IoError", "stat: %s", strerror(-error));
    return file_identity_equal(&now, &shard->file.identity) ? 0 : -EAGAIN;
}

/*
 * Headers of this size and more are read one after another, in the whole process, so
 * that a source full of the largest (100 MB, and more when parsed) does not take the
 * memory of all that could be read at once. Whoever has the turn may be waiting for
 * storage that hangs: when one takes that long, the others do without.
 */
static const uint64_t large_header = 8 << 20;
enum { TURN_SECONDS = 10 };

static struct {
    pthread_once_t once;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended;
    bool taken;
    uint64_t number; /* of the turn that is taken, or was last */
} turn = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void
turn_init(void)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&turn.ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Waits for its turn; false where another's does not end. */
static bool
turn_begin(void)
{
    struct timespec until = {0, 0};
    uint64_t other = 0;
    bool mine;

    pthread_once(&turn.once, turn_init);
    pthread_mutex_lock(&turn.lock);
    while (turn.taken) {
        if (other != turn.number) {
            other = turn.number;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_sec += TURN_SECONDS;
        }
        if (pthread_cond_timedwait(&turn.ended, &turn.lock, &until) == ETIMEDOUT &&
            other == turn.number)
            break;
    }
    mine = !turn.taken;
    if (mine) {
        turn.taken = true;
        turn.number++;
    }
    pthread_mutex_unlock(&turn.lock);
    return mine;
}

static void
turn_end(void)
{
    pthread_mutex_lock(&turn.lock);
    turn.taken = false;
    pthread_cond_signal(&turn.ended);
    pthread_mutex_unlock(&turn.lock);
}

static bool
is_large(int fd, uint64_t file_size)
{
    uint64_t length;

    return file_size > large_header && pread(fd, &length, sizeof(length), 0) == sizeof(length) &&
           le64toh(length) >= large_header;
}

static errint_t
read_in_turn(int fd, struct shard *shard, struct reason *reason)
{
    bool mine = is_large(fd, shard->file.identity.size) && turn_begin();
    errint_t error = st_table_read(fd, shard->file.identity.size, &shard->table, reason);

    if (mine)
        turn_end();
    return error;
}

/* Reads the header of an open shard. -EAGAIN: it changed meanwhile. */
static errint_t
read_table(int fd, struct shard *shard, struct reason *reason)
{
    errint_t error = check_unchanged(fd, shard, reason), changed;

    if (error)
        return error;
    error = read_in_turn(fd, shard, reason);
    changed = check_unchanged(fd, shard, reason);
    if (!changed)
        return error;
    st_table_free(shard->table);
    shard->table = NULL;
    return changed;
}

/* One look at the file: stat, open, header. -EAGAIN: it changed meanwhile. */
static errint_t
load_shard_once(struct source_dir *dir, struct shard *shard, struct reason *reason)
{
    errint_t error = source_dir_file(dir, shard->name, &shard->file);
    int fd;

    if (error)
        return reason_set(reason, error, "IoError", "%s", strerror(-error));
    wait_for_tick(&shard->file.identity.modified);
    fd = source_dir_open(dir, shard->name);
    if (fd < 0)
        return reason_set(reason, fd, "IoError", "open: %s", strerror(-fd));
    error = read_table(fd, shard, reason);
    close(fd);
    return error;
}

/* NULL only for want of memory: what is wrong with the file is its refusal. */
static struct shard *
load_shard(struct source_dir *dir, const char *name, struct family *family)
{
    struct shard *shard = shard_new(name);
    struct reason reason = {"IoError", "it changes faster than it can be read"};
    errint_t error = -EAGAIN;

    if (!shard)
        return NULL;
    for (int tries = 0; error == -EAGAIN && tries < 5; tries++)
        error = load_shard_once(dir, shard, &reason);
    if (error == -ENOMEM)
        goto fail;
    if (error && asprintf(&shard->refusal, "%s: %s", reason.rule, reason.text) < 0) {
        shard->refusal = NULL;
        goto fail;
    }
    if (!error) {
        shard->backing = source_dir_backing(dir, name, &shard->file);
        if (!shard->backing)
            goto fail;
        shard->backing->layout = pieces_of_table(shard->table);
        shard->backing->family = family_ref(family);
        atomic_fetch_add(&dir->catalog->headers, 1);
        atomic_fetch_add(&dir->catalog->header_bytes, shard->table->data_start);
    }
    return shard;

fail:
    shard_unref(shard);
    return NULL;
}

/* Whether the file is what it was when the shard was loaded, and for the same readers,
 * which the way that a link leads may change, too; and readers of it have not been told
 * otherwise: a backing that went stale stays so, and whoever comes when the file is well
 * again needs another. */
static bool
shard_holds(struct source_dir *dir, const struct shard *shard)
{
    struct source_file now;

    return source_dir_file(dir, shard->name, &now) == 0 &&
           file_identity_equal(&now.identity, &shard->file.identity) &&
           access_equal(now.access, shard->file.access) &&
           !(shard->backing && atomic_load(&shard->backing->stale));
}

/* ---- loading all shards ---- */

struct load {
    struct source_dir *dir;
    const struct group *group;
    const struct checkpoint *before;
    struct family *family; /* of the shards */
    struct shard **shards;
};

/* The shard of the version before, if its file is still the same. */
static struct shard *
reuse_shard(const struct load *load, const char *name)
{
    for (uint32_t i = 0; load->before && i < load->before->shard_count; i++) {
        struct shard *shard = load->before->shards[i];

        if (strcmp(shard->name, name) != 0 || shard->refusal)
            continue;
        if (!shard_holds(load->dir, shard))
            return NULL;
        atomic_fetch_add(&shard->references, 1);
        return shard;
    }
    return NULL;
}

static void
load_one(void *arg, size_t i)
{
    struct load *load = arg;
    const char *name = load->group->members[i];

    load->shards[i] = reuse_shard(load, name);
    if (!load->shards[i])
        load->shards[i] = load_shard(load->dir, name, load->family);
}

/* ---- putting together ---- */

/* A shard's name for a message. */
static char *
quoted_shard(char out[QUOTED_SIZE], const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    const char *name = checkpoint->shards[ref.shard]->name;

    return quoted(out, name, strlen(name));
}

struct named_tensor {
    const char *name;
    uint32_t length;
    struct tensor_ref ref;
};

static int
compare_tensors(const void *a, const void *b)
{
    const struct named_tensor *x = a, *y = b;
    int order = text_compare(x->name, x->length, y->name, y->length);

    if (order)
        return order;
    return x->ref.shard < y->ref.shard ? -1 : x->ref.shard > y->ref.shard;
}

static void
say_unsound(struct checkpoint *checkpoint, const char *why)
{
    if (!checkpoint->unsound)
        checkpoint->unsound = why;
}

static void
count_dtypes(struct checkpoint *checkpoint, const struct shard *shard)
{
    const struct st_table *table = shard->table;
    const struct st_tensor *first = NULL;
    char name[QUOTED_SIZE], dtype[QUOTED_SIZE];
    uint32_t unknown = 0;

    for (uint32_t i = 0; i < table->count; i++) {
        if (table->tensors[i].dtype != DTYPE_UNKNOWN)
            continue;
        if (!first)
            first = &table->tensors[i];
        unknown++;
    }
    if (unknown)
        problem_set_add(checkpoint->problems, checkpoint->directory, shard->name,
                        "%u tensors of a dtype this fstfs does not know (the first is %s, %s): "
                        "served as bytes, and not in npy/",
                        unknown, quoted(name, table->text + first->name, first->name_length),
                        quoted(dtype, table->text + first->dtype_text, first->dtype_text_length));
}

/* Drops names that stand in more than one shard, says so, and gives how many
 * tensors are left. */
static size_t
drop_duplicates(struct checkpoint *checkpoint, struct named_tensor *all, size_t count)
{
    size_t kept = 0, dropped = 0, end, named = problem_set_named(checkpoint->problems);
    char name[QUOTED_SIZE], shard[QUOTED_SIZE];

    for (size_t i = 0; i < count; i = end) {
        for (end = i + 1; end < count && text_compare(all[i].name, all[i].length, all[end].name,
                                                      all[end].length) == 0;
             end++)
            ;
        if (end == i + 1) {
            all[kept++] = all[i];
            continue;
        }
        say_unsound(checkpoint, "a tensor stands in two shards");
        if (dropped++ < named)
            problem_set_add(checkpoint->problems, checkpoint->directory,
                            checkpoint->shards[all[i + 1].ref.shard]->name,
                            "DuplicateTensorName: tensor %s stands in %s too: shown from neither",
                            quoted(name, all[i].name, all[i].length),
                            quoted_shard(shard, checkpoint, all[i].ref));
    }
    if (dropped > named)
        problem_set_add(checkpoint->problems, checkpoint->directory, checkpoint->shards[0]->name,
                        "%zu tensors of this checkpoint stand in more than one shard", dropped);
    return kept;
}

/* Both sorted by name: what the index says against what the shards hold. */
static void
compare_with_index(struct checkpoint *checkpoint, const char *file, const struct st_index *index,
                   const struct named_tensor *all, size_t count)
{
    size_t absent = 0, unlisted = 0, elsewhere = 0, t = 0;
    struct problem_set *set = checkpoint->problems;
    const size_t named = problem_set_named(set);
    const char *dir = checkpoint->directory;
    char name[QUOTED_SIZE], shard[QUOTED_SIZE], actual[QUOTED_SIZE];

    for (uint32_t i = 0; i <= index->count; i++) {
        const struct st_index_entry *entry = i < index->count ? &index->entries[i] : NULL;
        const char *text = entry ? index->text + entry->name : NULL;
        int order = 1;

        while (t < count && (!entry || (order = text_compare(text, entry->name_length, all[t].name,
                                                             all[t].length)) > 0)) {
            if (unlisted++ < named)
                problem_set_add(set, dir, file, "tensor %s of %s is not in the index",
                                quoted(name, all[t].name, all[t].length),
                                quoted_shard(shard, checkpoint, all[t].ref));
            t++;
        }
        if (!entry)
            break;
        if (t < count && order == 0) {
            const char *said = index->shards[entry->shard];

            if (strcmp(said, checkpoint->shards[all[t].ref.shard]->name) != 0 &&
                elsewhere++ < named)
                problem_set_add(set, dir, file, "the index says tensor %s is in %s; it is in %s",
                                quoted(name, text, entry->name_length),
                                quoted(shard, said, strlen(said)),
                                quoted_shard(actual, checkpoint, all[t].ref));
            t++;
        } else if (absent++ < named) {
            problem_set_add(set, dir, file, "the index names tensor %s, which no sound shard holds",
                            quoted(name, text, entry->name_length));
        }
    }
    if (absent)
        say_unsound(checkpoint, "the index names tensors that no sound shard holds");
    if (absent > named || unlisted > named || elsewhere > named)
        problem_set_add(set, dir, file,
                        "index and shards disagree: %zu tensors named and not there, %zu there and "
                        "not named, %zu in another shard",
                        absent, unlisted, elsewhere);
}

/* Fails only for want of memory. */
static errint_t
check_index(struct checkpoint *checkpoint, struct source_dir *dir, const char *file,
            const struct named_tensor *all, size_t count)
{
    struct checkpoint_private *private = checkpoint->private;
    struct st_index *index;
    struct reason reason;
    errint_t error = source_dir_index(dir, file, &index, &private->index, &reason);

    if (error == -ENOMEM)
        return error;
    if (error) {
        problem_set_add(checkpoint->problems, checkpoint->directory, file, "refused: %s: %s",
                        reason.rule, reason.text);
        return 0;
    }
    /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): 0 means that index is set */
    compare_with_index(checkpoint, file, index, all, count);
    checkpoint->has_total_size = index->has_total_size;
    checkpoint->total_size = index->total_size;
    st_index_free(index);
    return 0;
}

/* Sorts the tensors of all sound shards by name. */
static errint_t
gather_tensors(struct checkpoint *checkpoint, struct source_dir *dir, const char *index)
{
    struct named_tensor *all;
    struct tensor_ref *refs;
    size_t count = 0, at = 0;

    for (uint32_t s = 0; s < checkpoint->shard_count; s++)
        if (checkpoint->shards[s]->table)
            count += checkpoint->shards[s]->table->count;
    if (count > UINT32_MAX / 2)
        return -EOVERFLOW;
    all = malloc((count + 1) * sizeof(*all));
    if (!all)
        return -ENOMEM;
    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct st_table *table = checkpoint->shards[s]->table;

        for (uint32_t i = 0; table && i < table->count; i++)
            all[at++] = (struct named_tensor){
                table->text + table->tensors[i].name, table->tensors[i].name_length, {s, i}};
    }
    qsort(all, count, sizeof(*all), compare_tensors);
    if (index && check_index(checkpoint, dir, index, all, count) < 0) {
        free(all);
        return -ENOMEM;
    }
    count = drop_duplicates(checkpoint, all, count);
    refs = malloc((count + 1) * sizeof(*refs));
    if (refs)
        for (size_t i = 0; i < count; i++)
            refs[i] = all[i].ref;
    free(all);
    checkpoint->tensors = refs;
    checkpoint->tensor_count = (uint32_t)count;
    return refs ? 0 : -ENOMEM;
}

static bool
later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* Who may read it, how new it is, and what is wrong with its shards. */
static void
sum_up_shards(struct checkpoint *checkpoint)
{
    bool any = false;

    checkpoint->access = (struct access){geteuid(), getegid(), 0444};
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (shard->refusal) {
            problem_set_add(checkpoint->problems, checkpoint->directory, shard->name, "refused: %s",
                            shard->refusal);
            say_unsound(checkpoint, "a shard is refused");
            continue;
        }
        checkpoint->access =
            any ? access_meet(checkpoint->access, shard->file.access) : shard->file.access;
        if (!any || later(&shard->file.identity.modified, &checkpoint->modified))
            checkpoint->modified = shard->file.identity.modified;
        any = true;
        count_dtypes(checkpoint, shard);
    }
}

static void
count_held(struct checkpoint *checkpoint, bool add)
{
    struct catalog *catalog = checkpoint->catalog;
    unsigned long long bytes = sizeof(*checkpoint) +
                               checkpoint->tensor_count * sizeof(*checkpoint->tensors) +
                               checkpoint->shard_count * sizeof(void *);

    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i] && checkpoint->shards[i]->table)
            bytes += checkpoint->shards[i]->table->bytes;
    if (add) {
        atomic_fetch_add(&catalog->checkpoints, 1);
        atomic_fetch_add(&catalog->tensors, checkpoint->tensor_count);
        atomic_fetch_add(&catalog->table_bytes, bytes);
    } else {
        atomic_fetch_sub(&catalog->checkpoints, 1);
        atomic_fetch_sub(&catalog->tensors, checkpoint->tensor_count);
        atomic_fetch_sub(&catalog->table_bytes, bytes);
    }
}

uint64_t
checkpoint_version(const struct checkpoint *checkpoint)
{
    uint64_t version = 0;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        version = file_identity_hash(&checkpoint->shards[i]->file.identity, version);
    return version;
}

struct checkpoint *
checkpoint_ref(struct checkpoint *checkpoint)
{
    atomic_fetch_add(&checkpoint->references, 1);
    return checkpoint;
}

static void
checkpoint_free(struct checkpoint *checkpoint)
{
    void *derived = atomic_load(&checkpoint->derived);

    if (derived)
        checkpoint->catalog->derived_free(derived);
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        shard_unref(checkpoint->shards[i]);
    if (checkpoint->private) {
        free(checkpoint->private->directory);
        free(checkpoint->private->stem);
        free(checkpoint->private->index_name);
        family_unref(checkpoint->private->family);
    }
    problem_set_free(checkpoint->problems);
    free(checkpoint->private);
    free((void *)checkpoint->tensors);
    free(checkpoint->shards);
    free(checkpoint);
}

void
checkpoint_unref(struct checkpoint *checkpoint)
{
    if (!checkpoint || atomic_fetch_sub(&checkpoint->references, 1) > 1)
        return;
    count_held(checkpoint, false);
    checkpoint_free(checkpoint);
}

static struct checkpoint *
checkpoint_new(struct source_dir *dir, const struct group *group, const struct checkpoint *before)
{
    struct checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    struct checkpoint_private *private;

    if (!checkpoint)
        return NULL;
    atomic_init(&checkpoint->references, 1);
    checkpoint->catalog = dir->catalog;
    checkpoint->serial = atomic_fetch_add(&dir->catalog->serial, 1) + 1;
    checkpoint->shards = calloc(group->member_count + 1, sizeof(*checkpoint->shards));
    checkpoint->problems = problem_set_new(dir->catalog->problems);
    checkpoint->private = private = calloc(1, sizeof(*private));
    if (!checkpoint->shards || !checkpoint->problems || !private)
        goto fail;
    private->directory = strdup(dir->path);
    private->stem = strdup(group->stem);
    private->index_name = group->index ? strdup(group->index) : NULL;
    private->family = before ? family_ref(before->private->family) : family_new();
    if (!private->directory || !private->stem || !private->family ||
        (group->index && !private->index_name))
        goto fail;
    checkpoint->directory = private->directory;
    checkpoint->stem = private->stem;
    return checkpoint;

fail:
    checkpoint_free(checkpoint);
    return NULL;
}

static errint_t
load_checkpoint(struct source_dir *dir, const struct group *group, const struct checkpoint *before,
                struct checkpoint **out)
{
    struct checkpoint *checkpoint = checkpoint_new(dir, group, before);
    struct load load = {.dir = dir, .group = group, .before = before};
    errint_t error = 0;

    if (!checkpoint)
        return -ENOMEM;
    load.shards = checkpoint->shards;
    load.family = checkpoint->private->family;
    checkpoint->shard_count = group->member_count;
    parallel_for(group->member_count, READERS, load_one, &load);
    for (uint32_t i = 0; i < group->member_count; i++)
        if (!checkpoint->shards[i])
            error = -ENOMEM;
    if (!error) {
        if (group->missing_count)
            say_unsound(checkpoint, "shards are missing");
        sum_up_shards(checkpoint);
        error = gather_tensors(checkpoint, dir, group->index);
    }
    if (error) {
        checkpoint_free(checkpoint);
        return error;
    }
    count_held(checkpoint, true);
#ifdef __GLIBC__
    /* Parsing leaves holes in every thread's heap, as big as the tables. */
    if (checkpoint->tensor_count > 4096)
        malloc_trim(0);
#endif
    *out = checkpoint;
    return 0;
}

/* Whether all files of this version are still what they were. */
static bool
checkpoint_holds(struct source_dir *dir, const struct checkpoint *checkpoint)
{
    const struct checkpoint_private *private = checkpoint->private;
    struct source_file now;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (!shard_holds(dir, shard))
            return false;
        /* A shard that could not be opened may be allowed by now. */
        if (shard->refusal && !shard->table && strncmp(shard->refusal, "IoError", 7) == 0)
            return false;
    }
    return !private->index_name || (source_dir_file(dir, private->index_name, &now) == 0 &&
                                    file_identity_equal(&now.identity, &private->index));
}

errint_t
group_checkpoint(struct source_dir *dir, const struct group *group, struct checkpoint **out)
{
    struct group_state *state = group->state;
    struct checkpoint *checkpoint;
    errint_t error = 0;

    pthread_mutex_lock(&state->lock);
    if (!state->checkpoint || now_ms() - state->checked >= CATALOG_CHECK_MS) {
        if (!state->checkpoint || !checkpoint_holds(dir, state->checkpoint)) {
            error = load_checkpoint(dir, group, state->checkpoint, &checkpoint);
            if (!error) {
                checkpoint_unref(state->checkpoint);
                state->checkpoint = checkpoint;
            }
        }
        state->checked = now_ms();
    }
    if (!error)
        *out = checkpoint_ref(state->checkpoint);
    pthread_mutex_unlock(&state->lock);
    return error;
}

/* ---- states ---- */

struct group_state *
group_state_new(void)
{
    struct group_state *state = calloc(1, sizeof(*state));

    if (state) {
        atomic_init(&state->references, 1);
        pthread_mutex_init(&state->lock, NULL);
    }
    return state;
}

struct group_state *
group_state_ref(struct group_state *state)
{
    atomic_fetch_add(&state->references, 1);
    return state;
}

void
group_state_unref(struct group_state *state)
{
    if (!state || atomic_fetch_sub(&state->references, 1) > 1)
        return;
    checkpoint_unref(state->checkpoint);
    pthread_mutex_destroy(&state->lock);
    free(state);
}

/* ---- index files ---- */

static errint_t
read_whole(int fd, char *text, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(fd, text + done, length - done, (off_t)done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return -EIO;
        done += (size_t)got;
    }
    return 0;
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
    st_index_free(before);
}

/* The kept index, if it is of this file; the caller's then. */
static struct st_index *
take_index(struct catalog *catalog, const struct file_identity *identity)
{
    struct st_index *index = NULL;

    pthread_mutex_lock(&catalog->lock);
    if (catalog->kept_index && file_identity_equal(&catalog->kept_identity, identity)) {
        index = catalog->kept_index;
        catalog->kept_index = NULL;
    }
    pthread_mutex_unlock(&catalog->lock);
    return index;
}

static errint_t
index_load(struct source_dir *dir, const char *name, struct st_index **index,
           struct file_identity *identity, struct reason *reason)
{
    int fd = source_dir_open(dir, name);
    struct stat st;
    char *text;
    errint_t error;

    if (fd < 0)
        return reason_set(reason, fd, "IoError", "open: %s", strerror(-fd));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return reason_set(reason, -EIO, "IoError", "not a regular file any more");
    }
    file_identity_from_stat(identity, &st);
    *index = take_index(dir->catalog, identity);
    if (*index) {
        close(fd);
        return 0;
    }
    wait_for_tick(&st.st_mtim);
    if (st.st_size > ST_MAX_INDEX) {
        close(fd);
        return reason_set(reason, -EBADMSG, "InvalidIndex", "%lld bytes, at most %u are read",
                          (long long)st.st_size, ST_MAX_INDEX);
    }
    text = malloc((size_t)st.st_size + 1);
    error = text ? read_whole(fd, text, (size_t)st.st_size) : -ENOMEM;
    close(fd);
    if (error)
        reason_set(reason, error, "IoError", "%s", strerror(-error));
    else
        error = st_index_parse(text, (size_t)st.st_size, index, reason);
    free(text);
    return error;
}

errint_t
source_dir_index(struct source_dir *dir, const char *name, struct st_index **index,
                 struct file_identity *identity, struct reason *reason)
{
    errint_t error;

    memset(identity, 0, sizeof(*identity));
    error = index_load(dir, name, index, identity, reason);
    /* What the storage said of it may be another thing the next time. */
    if (error && error != -EBADMSG)
        memset(identity, 0, sizeof(*identity));
    return error;
}
