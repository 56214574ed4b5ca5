/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"

#include "base/file_system.h"
#include "base/lease.h"
#include "base/open.h"
#include "base/timestamp.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

/* How long to wait for a writer to close the file: a process that has just written it, or its child
 * process, which holds the descriptor until it executes a program. */
enum { WRITER_TRIES = 20, WRITER_PAUSE_NS = 5000000 };

/* Traits of a backing. */
enum {
    TRAIT_KNOWN = 1, /* the traits of its file system are set */
    TRAIT_LOCAL = 2, /* time stamps come from this machine's clock */
    TRAIT_EXACT = 4, /* every write changes the change time */
    TRAIT_NO_LEASE = 8, /* this file has no leases */
    TRAIT_WRITER = 16, /* it was opened for writing while it had a lease */
};

static pthread_mutex_t accepted_lock = PTHREAD_MUTEX_INITIALIZER; /* guards backing->accepted */

static bool
has_trait(struct backing *backing, unsigned trait)
{
    return atomic_load(&backing->traits) & trait;
}

static void
learn_traits(struct backing *backing, int fd)
{
    unsigned traits = TRAIT_KNOWN | TRAIT_NO_LEASE;
    struct statfs fs;

    if (has_trait(backing, TRAIT_KNOWN))
        return;
    if (fstatfs(fd, &fs) == 0)
        switch ((unsigned long)fs.f_type) {
        case EXT4_SUPER_MAGIC:
        case XFS_SUPER_MAGIC:
        case BTRFS_SUPER_MAGIC:
        case F2FS_SUPER_MAGIC:
            traits = TRAIT_KNOWN | TRAIT_LOCAL | TRAIT_EXACT;
            break;
        case TMPFS_MAGIC:
            traits = TRAIT_KNOWN | TRAIT_LOCAL;
            break;
        }
    atomic_fetch_or(&backing->traits, traits);
}

static errint_t
mark_stale(struct backing *backing)
{
    atomic_store(&backing->stale, true);
    return -ESTALE;
}

/* ---- identity ---- */

/* Whether the only change is the loss of a name, by unlink or by a rename over it. Both update the
 * change time. */
static bool
lost_a_name(const struct file_identity *then, const struct file_identity *now)
{
    struct file_identity renamed = *then;

    renamed.changed = now->changed;
    return now->links < then->links && now->mode == then->mode && now->owner == then->owner &&
           now->group == then->group && file_identity_same_content(&renamed, now);
}

/* False for a backing that version_open() was never called for, such as those of libfstfs. */
static bool
may_have_lease(struct backing *backing)
{
    return has_trait(backing, TRAIT_KNOWN) && !has_trait(backing, TRAIT_NO_LEASE);
}

/* Whether the identity belongs to this version. Without leases, the loss of a name counts as
 * harmless, so that a reader can continue after the file was replaced. An earlier write whose
 * modification time was restored goes unnoticed. */
static bool
identity_is_accepted(struct backing *backing, const struct file_identity *now)
{
    bool accepted;

    if (file_identity_same_content(&backing->identity, now))
        return true;
    pthread_mutex_lock(&accepted_lock);
    accepted = file_identity_same_content(&backing->accepted, now);
    if (!accepted && !may_have_lease(backing) && lost_a_name(&backing->accepted, now)) {
        backing->accepted = *now;
        accepted = true;
    }
    pthread_mutex_unlock(&accepted_lock);
    return accepted;
}

/* Marks the backing stale unless the open file is this version. */
static errint_t
check_identity(struct backing *backing, int fd)
{
    struct file_identity now;
    errint_t error = file_identity_from_fd(&now, fd);

    if (error)
        return error;
    return S_ISREG(now.mode) && identity_is_accepted(backing, &now) ? 0 : mark_stale(backing);
}

/* ---- leases ---- */

/* Called before a writer can open the file, so nothing has been written so far, whatever the change
 * time is. From now on the time stamps must reveal writes. If they cannot, the version ends. */
static void
lease_has_ended(struct backing *backing, int fd, enum lease_end how)
{
    struct file_identity now;

    if (how == LEASE_BROKEN)
        atomic_fetch_or(&backing->traits, TRAIT_WRITER);
    if (!has_trait(backing, TRAIT_EXACT) || file_identity_from_fd(&now, fd) < 0 ||
        timestamp_settle_ns(&now.changed, true) > 0) {
        mark_stale(backing);
        return;
    }
    pthread_mutex_lock(&accepted_lock);
    backing->accepted = now;
    pthread_mutex_unlock(&accepted_lock);
}

errint_t
version_start(bool keeps_idle_leases)
{
    return lease_start(keeps_idle_leases, lease_has_ended);
}

void
version_stop(void)
{
    lease_stop();
}

void
version_after_fork(void)
{
    pthread_mutex_init(&accepted_lock, NULL);
    lease_after_fork();
}

/* 0: a lease is held, or no process had the file open for writing, or that cannot be determined, or
 * it does not matter, since the time stamps reveal every write (settled and TRAIT_EXACT). */
static errint_t
take_lease(struct backing *backing, int fd)
{
    bool wait = !atomic_load(&backing->settled) || !has_trait(backing, TRAIT_EXACT);
    errint_t error = 0;

    for (int tries = 0; tries < WRITER_TRIES && !has_trait(backing, TRAIT_NO_LEASE); tries++) {
        error = lease_take(backing, fd);
        if (error != -EAGAIN && error)
            atomic_fetch_or(&backing->traits, TRAIT_NO_LEASE);
        if (error != -EAGAIN || !wait)
            return 0;
        nanosleep(&(struct timespec){0, WRITER_PAUSE_NS}, NULL);
    }
    return error ? -ETXTBSY : 0;
}

/* ---- open, close ---- */

static void
wait_until_settled(const struct backing *backing, bool local)
{
    uint64_t ns = timestamp_settle_ns(&backing->identity.changed, local);

    if (ns)
        nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

/* Sets backing->crossed_mount. Fails only for lack of memory or descriptors. */
static errint_t
learn_path(struct backing *backing)
{
    uint64_t refused = 0;
    int fd = open_at_mount(backing->directory, backing->path, O_PATH | O_CLOEXEC,
                           backing->identity.mount, &refused);

    if (fd >= 0)
        close(fd);
    atomic_store(&backing->crossed_mount, fd == -EREMOTE ? refused : 0);
    return error_is_lack(fd) ? fd : 0;
}

/* Begins the version. */
static errint_t
version_begin(struct backing *backing, int fd)
{
    errint_t error = learn_path(backing);

    if (error)
        return error;
    learn_traits(backing, fd);
    wait_until_settled(backing, has_trait(backing, TRAIT_LOCAL));
    error = take_lease(backing, fd);
    if (!error)
        error = check_identity(backing, fd);
    if (error)
        return error;
    lease_confirm(backing);
    if (has_trait(backing, TRAIT_NO_LEASE) &&
        timestamp_is_recent(&backing->identity.changed, VERSION_YOUNG_SECONDS))
        atomic_store(&backing->replace_at, monotonic_ms() + 1000ull * VERSION_YOUNG_SECONDS);
    atomic_store(&backing->settled, true);
    return 0;
}

static errint_t
open_with(struct backing *backing, int fd)
{
    errint_t error;

    if (!atomic_load(&backing->settled))
        return version_begin(backing, fd);
    /* First, because the path may lead to another file now: an error must not tell that a process
     * has that one open for writing. */
    error = check_identity(backing, fd);
    if (!error)
        error = take_lease(backing, fd);
    if (!error)
        error = check_identity(backing, fd);
    if (!error)
        lease_confirm(backing);
    return error;
}

static errint_t
open_by_path(struct backing *backing)
{
    int fd =
        open_at(backing->directory, backing->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    errint_t error;

    if (fd >= 0) {
        error = open_with(backing, fd);
        close(fd);
        return error;
    }
    switch (fd) {
    case -ENOENT:
    case -ENOTDIR:
    case -ELOOP:
    case -ENXIO:
    case -ESTALE:
        return mark_stale(backing);
    }
    return fd;
}

/* Whether time stamps alone identify the version, so that the file need not be opened. */
static bool
needs_no_lease(struct backing *backing)
{
    return atomic_load(&backing->settled) && has_trait(backing, TRAIT_NO_LEASE | TRAIT_WRITER);
}

errint_t
version_open(struct backing *backing, int fd)
{
    errint_t error = 0;

    if (atomic_load(&backing->stale))
        return -ESTALE;
    if (!lease_use(backing) && !needs_no_lease(backing))
        error = fd >= 0 ? open_with(backing, fd) : open_by_path(backing);
    /* Out of descriptors: reads are verified by time stamps, as without leases. */
    if (error_is_no_descriptor(error) && atomic_load(&backing->settled))
        error = 0;
    if (!error && atomic_load(&backing->stale))
        error = -ESTALE;
    if (error)
        lease_release(backing);
    return error;
}

void
version_close(struct backing *backing)
{
    lease_release(backing);
}

errint_t
version_verify(struct backing *backing, int fd)
{
    struct file_identity now;
    errint_t error = file_identity_from_fd(&now, fd);

    if (error)
        return error;
    if (!S_ISREG(now.mode) || now.mount != backing->identity.mount ||
        now.device != backing->identity.device || now.inode != backing->identity.inode)
        return mark_stale(backing);
    /* The order matters: a lease that ends in between marks the backing stale if the time stamps
     * cannot identify the version. */
    if (!lease_holds(backing) && !identity_is_accepted(backing, &now))
        return mark_stale(backing);
    return atomic_load(&backing->stale) ? -ESTALE : 0;
}

bool
version_is_current(const struct backing *backing)
{
    uint64_t replace_at = atomic_load(&backing->replace_at);

    return !atomic_load(&backing->stale) && (replace_at == 0 || monotonic_ms() < replace_at);
}

/* ---- lists ---- */

/* The backing of extent i; NULL if the previous extent has the same one. */
static struct backing *
other_backing(const struct extent_list *list, uint32_t i)
{
    struct backing *backing = list->extents[i].backing;

    return i > 0 && backing == list->extents[i - 1].backing ? NULL : backing;
}

static void
close_extents(const struct extent_list *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct backing *backing = other_backing(list, i);

        if (backing)
            version_close(backing);
    }
}

errint_t
version_open_list(const struct extent_list *list, const struct backing **failed)
{
    for (uint32_t i = 0; i < list->count; i++) {
        struct backing *backing = other_backing(list, i);
        errint_t error = backing ? version_open(backing, -1) : 0;

        if (error) {
            close_extents(list, i);
            if (failed)
                *failed = backing;
            return error;
        }
    }
    return 0;
}

void
version_close_list(const struct extent_list *list)
{
    close_extents(list, list->count);
}

bool
version_list_is_kept(const struct extent_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->extents[i].backing && atomic_load(&list->extents[i].backing->replace_at))
            return false;
    return true;
}
