/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The current version of a checkpoint. It is checked on request, at most once in CATALOG_CHECK_MS,
 * by one thread, without a lock. During a check, other callers get the known version if its last
 * check was less than CATALOG_CHECK_MS + CATALOG_LOOKING_MS ago; otherwise they wait.
 */
#include "base/clock.h"
#include "base/parallel.h"
#include "base/version.h"
#include "catalog/private.h"

#include <errno.h>
#include <stdlib.h>

/* Up to this number of files are checked sequentially, which is faster than starting threads. */
enum { FEW_SHARDS = 8 };

/* ---- checks ---- */

struct freshness_check {
    struct source_dir *dir;
    const struct checkpoint *checkpoint;
    atomic_bool differs; /* a file has changed; the rest is not checked */
};

static void
check_shard(void *arg, size_t i)
{
    struct freshness_check *check = arg;

    if (!atomic_load(&check->differs) &&
        !shard_is_current(check->dir, check->checkpoint->shards[i]))
        atomic_store(&check->differs, true);
}

/* Whether it must be loaded again although its files are unchanged: a refused shard may be readable
 * now, or the budget may have room. */
static bool
is_temporary(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->temporary)
            return true;
    return checkpoint->has_no_room;
}

/* Whether all files of this version are unchanged. Waits for storage; no lock is held. */
static bool
files_are_unchanged(struct source_dir *dir, const struct checkpoint *checkpoint)
{
    struct freshness_check check = {.dir = dir, .checkpoint = checkpoint};
    struct file_identity now;

    if (is_temporary(checkpoint))
        return false;
    atomic_init(&check.differs, false);
    parallel_for(checkpoint->shard_count,
                 checkpoint->shard_count <= FEW_SHARDS ? 1 : CHECKPOINT_THREADS, check_shard,
                 &check);
    if (atomic_load(&check.differs))
        return false;
    return !checkpoint->index_name || (source_dir_file(dir, checkpoint->index_name, &now) == 0 &&
                                       file_identity_equal(&now, &checkpoint->index_identity));
}

/* Whether the cached checkpoint can be used: none of its shards is known to be stale. Does not
 * access the files. */
static bool
is_usable(const struct group_state *state)
{
    const struct checkpoint *checkpoint = state->checkpoint;

    for (uint32_t i = 0; checkpoint && i < checkpoint->shard_count; i++)
        if (!checkpoint->shards[i]->refusal && !version_is_current(checkpoint->shards[i]->backing))
            return false;
    return checkpoint != NULL;
}

enum check_result { CHECK_UNCHANGED, CHECK_CHANGED, CHECK_REPLACED };

/* Checks the files of the checkpoint. The caller's lock is released during the check, so another
 * thread may replace the checkpoint. */
static enum check_result
check_files_locked(struct source_dir *dir, struct group_state *state)
{
    struct checkpoint *checkpoint = checkpoint_ref(state->checkpoint);
    uint64_t began = monotonic_ms();
    enum check_result result;

    state->is_checking = true;
    pthread_mutex_unlock(&state->lock);
    result = files_are_unchanged(dir, checkpoint) ? CHECK_UNCHANGED : CHECK_CHANGED;
    pthread_mutex_lock(&state->lock);
    state->is_checking = false;
    pthread_cond_broadcast(&state->check_ended);
    if (state->checkpoint != checkpoint)
        result = CHECK_REPLACED;
    else
        state->checked = source_dir_checked(dir, began);
    checkpoint_unref(checkpoint);
    return result;
}

/* ---- requests ---- */

static errint_t
reload_locked(struct source_dir *dir, const struct group *group, struct group_state *state)
{
    struct checkpoint *checkpoint, *before;
    struct problem_set *problems;
    uint64_t began = monotonic_ms();
    errint_t error =
        checkpoint_load(dir, group, state->checkpoint, CHECKPOINT_THREADS, &checkpoint);

    if (!error) {
        before = state->checkpoint;
        pthread_mutex_lock(&state->known_lock);
        state->checkpoint = checkpoint;
        problems = state->problems;
        state->problems = NULL;
        pthread_mutex_unlock(&state->known_lock);
        checkpoint_unref(before);
        problem_set_unref(problems);
    }
    state->checked = source_dir_checked(dir, began);
    return error;
}

/* Whether the checkpoint can be returned without a check. If the last check is too old and another
 * thread is checking, waits for that thread. */
static bool
is_fresh_locked(struct source_dir *dir, struct group_state *state)
{
    while (state->is_checking && is_usable(state) &&
           source_dir_is_older(dir, state->checked, CATALOG_CHECK_MS + CATALOG_LOOKING_MS))
        pthread_cond_wait(&state->check_ended, &state->lock);
    return is_usable(state) &&
           (state->is_checking || !source_dir_is_older(dir, state->checked, CATALOG_CHECK_MS));
}

errint_t
group_checkpoint(struct source_dir *dir, const struct group *group, struct checkpoint **out)
{
    struct group_state *state = group->state;
    errint_t error = 0;

    pthread_mutex_lock(&state->lock);
    while (!is_fresh_locked(dir, state)) {
        enum check_result result =
            is_usable(state) ? check_files_locked(dir, state) : CHECK_CHANGED;

        if (result == CHECK_REPLACED)
            continue;
        if (result == CHECK_CHANGED)
            error = reload_locked(dir, group, state);
        break;
    }
    if (!error)
        *out = checkpoint_ref(state->checkpoint);
    pthread_mutex_unlock(&state->lock);
    return error;
}

errint_t
group_known_checkpoint(const struct group *group, struct checkpoint **out)
{
    struct group_state *state = group->state;
    errint_t error = -EAGAIN;

    pthread_mutex_lock(&state->known_lock);
    if (state->checkpoint) {
        *out = checkpoint_ref(state->checkpoint);
        error = 0;
    }
    pthread_mutex_unlock(&state->known_lock);
    return error;
}

bool
group_state_is_fresh(struct source_dir *dir, struct group_state *state)
{
    bool fresh;

    if (pthread_mutex_trylock(&state->lock) != 0)
        return false;
    fresh = is_usable(state) && !source_dir_is_older(dir, state->checked, CATALOG_CHECK_MS);
    pthread_mutex_unlock(&state->lock);
    return fresh;
}

/* ---- states ---- */

struct checkpoint *
group_state_take_idle(struct group_state *state)
{
    struct checkpoint *checkpoint = NULL;

    if (pthread_mutex_trylock(&state->lock) != 0)
        return NULL;
    pthread_mutex_lock(&state->known_lock);
    if (state->checkpoint && checkpoint_has_table(state->checkpoint) &&
        atomic_load(&state->checkpoint->references) == 1) {
        checkpoint = state->checkpoint;
        state->checkpoint = NULL;
        problem_set_unref(state->problems);
        state->problems = checkpoint->problems;
        checkpoint->problems = NULL;
    }
    pthread_mutex_unlock(&state->known_lock);
    pthread_mutex_unlock(&state->lock);
    return checkpoint;
}

struct problem_set *
group_state_problems(struct group_state *state)
{
    struct problem_set *set;

    pthread_mutex_lock(&state->known_lock);
    set = problem_set_ref(state->checkpoint ? state->checkpoint->problems : state->problems);
    pthread_mutex_unlock(&state->known_lock);
    return set;
}

struct group_state *
group_state_new(void)
{
    struct group_state *state = calloc(1, sizeof(*state));

    if (state) {
        atomic_init(&state->references, 1);
        pthread_mutex_init(&state->lock, NULL);
        pthread_mutex_init(&state->known_lock, NULL);
        pthread_cond_init(&state->check_ended, NULL);
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
    problem_set_unref(state->problems);
    pthread_cond_destroy(&state->check_ended);
    pthread_mutex_destroy(&state->known_lock);
    pthread_mutex_destroy(&state->lock);
    free(state);
}
