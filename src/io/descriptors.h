/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of backing files: opened when a read needs one, kept for the
 * next, limited in number.
 *
 * Owned by the engine, called from any thread. What is known of a backing (its
 * descriptors, whether it can be read directly, what was logged of it, what the
 * engine has of it in memory) hangs on backing->io_state from its first read to
 * its last unref or to descriptors_free(), whichever is first.
 */
#ifndef FSTFS_IO_DESCRIPTORS_H
#define FSTFS_IO_DESCRIPTORS_H

#include "base/error.h"
#include "base/extent.h"
#include "io/workers.h"

struct descriptors;

/* A file is read past the page cache (O_DIRECT) where it can be, and through it
 * where it cannot or where it already lies there: two descriptors. */
enum access { ACCESS_DIRECT, ACCESS_BUFFERED, ACCESS_COUNT };

/* What else hangs on a backing; guarded by its user's lock. `forget` is called
 * once, when the backing or the engine goes, whichever is first, with a lock of
 * this module held: it must call nothing here, and nothing here may be called
 * with a lock that it takes (descriptors_attachment() may, of a backing that has
 * one already). */
struct attachment {
    void *data;
    void (*forget)(void *data);
};

/* `most` descriptors open at once; 0: a share of RLIMIT_NOFILE. */
errint_t descriptors_new(unsigned most, bool direct, struct descriptors **descriptors);

/* Closes every descriptor and lets go of every backing. None may be held. */
void descriptors_free(struct descriptors *descriptors); /* NULL is allowed */

/* The attachment of a backing, zeroed when it is new; NULL: out of memory. It
 * stays where it is as long as the caller has a reference to the backing. */
struct attachment *descriptors_attachment(struct descriptors *descriptors, struct backing *backing);

/* How the file can be read, as far as is known. */
enum access descriptors_access(struct descriptors *descriptors, struct backing *backing);

/*
 * An open descriptor of this version of the file, held until
 * descriptors_release(); or a negative errno: -ESTALE when the path has come to
 * mean something else (the backing is then marked stale) or was marked before;
 * -EOPNOTSUPP when ACCESS_DIRECT is refused for this file, which
 * descriptors_access() then knows.
 *
 * descriptors_try() never blocks and answers -EAGAIN when it would have to.
 * descriptors_acquire() may block on storage, and waits while as many as are
 * allowed are held: what it waits for must be able to end without its caller.
 */
int descriptors_try(struct descriptors *descriptors, struct backing *backing, enum access access);
int descriptors_acquire(struct descriptors *descriptors, struct backing *backing,
                        enum access access);
void descriptors_release(struct descriptors *descriptors, struct backing *backing,
                         enum access access);

/*
 * So that a file whose open() hangs takes one thread, not all: whether the caller may
 * acquire now. False while another, who was told that he may, is opening the same; the
 * job is then kept for him. Who acquired, or failed to, takes what was kept so.
 */
bool descriptors_may_acquire(struct descriptors *descriptors, struct backing *backing,
                             enum access access, struct job *job);
struct fifo descriptors_acquired(struct descriptors *descriptors, struct backing *backing,
                                 enum access access);

/* Whether fstat(2), or a read of what is in the page cache, may wait for storage: on a file system
 * that asks a server, or is not known to ask none. For a backing that was open. */
bool descriptors_may_wait(struct descriptors *descriptors, struct backing *backing);

/* A direct read was refused: this file is read through the page cache from now on. */
void descriptors_refuse_direct(struct descriptors *descriptors, struct backing *backing,
                               const char *why);

/* A new descriptor of this version of the file, the caller's own to close; errors
 * as above. O_NONBLOCK is set. May block on storage. */
int descriptors_fresh(struct backing *backing);

/*
 * After a read through `fd`: 0 when the file is still the version `backing`
 * names, else -ESTALE, and the backing is marked stale.
 */
errint_t descriptors_verify(struct backing *backing, int fd);

/*
 * Closes what keeps removed files alive, or file systems in use, for nothing: the
 * descriptors that nobody holds of backings that are stale, and of those that
 * nobody has open and nobody has read since the call before. To be called now and
 * then; the number of descriptors left.
 */
unsigned descriptors_tidy(struct descriptors *descriptors);

/* Marks the backing stale, saying so in the log unless it has a line of it; -ESTALE. */
errint_t descriptors_stale(struct backing *backing);

/* Logs a failed read, unless the log has a line of this backing; returns `error`. */
errint_t descriptors_failed(struct descriptors *descriptors, struct backing *backing,
                            uint64_t offset, errint_t error);

unsigned descriptors_open(struct descriptors *descriptors); /* how many now */
unsigned descriptors_most(struct descriptors *descriptors);
/* Why the first file that could not be read directly could not; NULL: none yet. */
const char *descriptors_direct_refused(struct descriptors *descriptors);

#endif
