/* SPDX-License-Identifier: Apache-2.0 */
#include "view/survey.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/thread.h"
#include "view/derived.h"
#include "view/listing.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct directories {
    struct source_dir **all; /* counted references */
    size_t count;
};

struct survey {
    struct catalog *catalog;
    struct view_options options;
    atomic_bool stop; /* set with `lock` held, read without */
    struct directories held; /* used only by the thread */
    pthread_mutex_t lock; /* guards the rest; never held across storage access */
    pthread_cond_t changed;
    uint64_t wanted, done; /* surveys, by number */
    unsigned waiters;
    bool has_thread, is_running;
    pthread_t thread;
    struct source_dir *at; /* the directory being surveyed, or NULL */
    uint64_t since; /* monotonic_ms() when that began */
    uint64_t directories_read, queued, left_out; /* directories of the running or last survey */
};

/* ---- directories ---- */

/* Takes ownership of the reference, also on failure (out of memory). */
static bool
directories_add(struct directories *directories, struct source_dir *dir)
{
    if (array_add(directories->all, directories->count, dir))
        return true;
    source_dir_unref(dir);
    return false;
}

static void
directories_free(struct directories *directories)
{
    for (size_t i = 0; i < directories->count; i++)
        source_dir_unref(directories->all[i]);
    free(directories->all);
    *directories = (struct directories){0};
}

/* ---- one directory ---- */

static bool
has_view(const struct survey *survey, enum view_kind view)
{
    return survey->options.root < 0 || survey->options.root == (int)view;
}

/* Computes the merged file and the re-cut shards of a checkpoint, which adds their problems. */
static void
survey_checkpoint(const struct survey *survey, struct source_dir *dir, const struct group *group)
{
    const struct made merged = {MADE_MERGED, 0};
    struct checkpoint *checkpoint;
    uint64_t size;
    uint32_t parts;

    if ((group->lane ? group_known_checkpoint(group, &checkpoint)
                     : group_checkpoint(dir, group, &checkpoint)) != 0)
        return;
    if (has_view(survey, VIEW_MERGED) && !group->shadowed && !group->is_unchanged)
        (void)derived_size(checkpoint, &survey->options, &merged, &size);
    if (has_view(survey, VIEW_SHARDS) && !group->is_unchanged &&
        (survey->options.shards || survey->options.shard_size))
        (void)derived_parts(checkpoint, &survey->options, &parts);
    checkpoint_unref(checkpoint);
}

static void
survey_names(const struct survey *survey, struct listing *listing)
{
    for (int view = 0; view < VIEW_KINDS; view++)
        if (has_view(survey, (enum view_kind)view))
            dir_listing_unref(
                dir_listing_new(listing_ref(listing), (enum view_kind)view, &survey->options));
}

/* Surveys a directory and adds its subdirectories to `queue`. Returns whether to keep a reference
 * to it until the next survey. */
static bool
survey_directory(struct survey *survey, struct source_dir *dir, struct directories *queue)
{
    struct listing *listing;
    errint_t error = source_dir_listing(dir, &listing);
    uint64_t left_out = 0;
    bool hold;

    if (error == -ENOENT || error == -ENOTDIR)
        return false;
    if (error) {
        source_dir_report_list_error(dir, error);
        return true;
    }
    groups_load(dir, listing, NULL);
    for (uint32_t i = 0; i < listing->group_count && !atomic_load(&survey->stop); i++)
        survey_checkpoint(survey, dir, &listing->groups[i]);
    survey_names(survey, listing);
    for (uint32_t i = 0; i < listing->directory_count; i++) {
        struct source_dir *child = queue->count < SURVEY_DIRECTORIES
                                       ? source_dir_child(dir, listing->directories[i])
                                       : NULL;

        if (!child || !directories_add(queue, child))
            left_out++;
    }
    hold = listing->group_count > 0 || problem_set_count(listing->problems) > 0;
    listing_unref(listing);
    pthread_mutex_lock(&survey->lock);
    survey->left_out += left_out;
    pthread_mutex_unlock(&survey->lock);
    return hold;
}

/* ---- a survey ---- */

static void
set_progress(struct survey *survey, struct source_dir *dir, uint64_t directories_read,
             uint64_t queued)
{
    pthread_mutex_lock(&survey->lock);
    survey->at = dir;
    survey->since = monotonic_ms();
    survey->directories_read = directories_read;
    survey->queued = queued;
    if (directories_read == 0)
        survey->left_out = 0;
    pthread_mutex_unlock(&survey->lock);
}

static void
survey_source(struct survey *survey)
{
    struct directories queue = {0}, held = {0};
    struct source_dir *dir = catalog_root(survey->catalog);
    size_t at = 0;

    if (dir)
        directories_add(&queue, dir);
    for (; at < queue.count && !atomic_load(&survey->stop); at++) {
        dir = queue.all[at];
        set_progress(survey, dir, at, queue.count - at);
        if (survey_directory(survey, dir, &queue))
            directories_add(&held, source_dir_ref(dir));
    }
    set_progress(survey, NULL, at, queue.count - at);
    directories_free(&queue);
    directories_free(&survey->held);
    survey->held = held;
}

static void *
run_surveys(void *arg)
{
    struct survey *survey = arg;
    uint64_t wanted;

    pthread_setname_np(pthread_self(), "fstfs-survey");
    pthread_mutex_lock(&survey->lock);
    while (survey->done < survey->wanted && !atomic_load(&survey->stop)) {
        wanted = survey->wanted;
        pthread_mutex_unlock(&survey->lock);
        survey_source(survey);
        pthread_mutex_lock(&survey->lock);
        survey->done = wanted;
        pthread_cond_broadcast(&survey->changed);
    }
    survey->is_running = false;
    pthread_mutex_unlock(&survey->lock);
    return NULL;
}

/* survey->lock is held. */
static void
survey_start_thread(struct survey *survey)
{
    if (survey->is_running || atomic_load(&survey->stop))
        return;
    if (survey->has_thread)
        pthread_join(survey->thread, NULL); /* it is ending */
    survey->has_thread = thread_start(&survey->thread, run_surveys, survey) == 0;
    survey->is_running = survey->has_thread;
}

bool
survey_refresh(struct survey *survey)
{
    uint64_t until = monotonic_ms() + SURVEY_WAIT_MS, number;
    bool complete;

    pthread_mutex_lock(&survey->lock);
    number = ++survey->wanted;
    survey_start_thread(survey);
    if (survey->waiters < SURVEY_WAITERS) {
        survey->waiters++;
        while (survey->is_running && survey->done < number &&
               condition_wait(&survey->changed, &survey->lock, until * 1000000))
            ;
        survey->waiters--;
    }
    complete = survey->done >= number;
    pthread_mutex_unlock(&survey->lock);
    return complete;
}

/* survey->lock is held. */
static void
write_progress(const struct survey *survey, struct buffer *out)
{
    const char *path;

    if (!survey->at) {
        buffer_add_text(out, ".: incomplete: the survey of the source has not begun; read this "
                             "file again\n");
        return;
    }
    path = source_dir_path(survey->at);
    buffer_addf(out,
                ".: incomplete: %" PRIu64 " directories have been read, %" PRIu64
                " and those below them have not; reading ",
                survey->directories_read, survey->queued);
    buffer_add_quoted(out, *path ? path : ".", *path ? strlen(path) : 1, SIZE_MAX);
    buffer_addf(out, " for %" PRIu64 " s; read this file again\n",
                (monotonic_ms() - survey->since) / 1000);
}

void
survey_write(struct survey *survey, bool complete, struct buffer *out)
{
    pthread_mutex_lock(&survey->lock);
    if (!complete)
        write_progress(survey, out);
    if (survey->left_out)
        buffer_addf(out,
                    ".: incomplete: %" PRIu64 " directories and those below them are not read: the "
                    "source has more than %d\n",
                    survey->left_out, SURVEY_DIRECTORIES);
    pthread_mutex_unlock(&survey->lock);
}

struct survey *
survey_new(struct catalog *catalog, const struct view_options *options)
{
    struct survey *survey = calloc(1, sizeof(*survey));

    if (!survey)
        return NULL;
    survey->catalog = catalog;
    survey->options = *options;
    pthread_mutex_init(&survey->lock, NULL);
    condition_init(&survey->changed);
    return survey;
}

void
survey_free(struct survey *survey)
{
    if (!survey)
        return;
    pthread_mutex_lock(&survey->lock);
    atomic_store(&survey->stop, true);
    pthread_mutex_unlock(&survey->lock);
    if (survey->has_thread)
        pthread_join(survey->thread, NULL);
    directories_free(&survey->held);
    pthread_cond_destroy(&survey->changed);
    pthread_mutex_destroy(&survey->lock);
    free(survey);
}
