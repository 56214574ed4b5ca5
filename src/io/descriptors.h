/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of backing files: opened on demand, cached, limited in number.
 *
 * Owned by the engine, called from any thread. The state of a backing (its descriptors, whether
 * O_DIRECT works, what was logged, the engine's attachment) is stored in backing->io_state from the
 * first read until the last unref or descriptors_free(), whichever comes first.
 */
#ifndef FSTFS_IO_DESCRIPTORS_H
#define FSTFS_IO_DESCRIPTORS_H

#include "base/error.h"
#include "base/extent.h"
#include "io/workers.h"

struct descriptors;

/* A file has up to two descriptors: one with O_DIRECT, and one for buffered reads, used if O_DIRECT
 * is not supported or if the bytes are in the page cache. */
enum access { ACCESS_DIRECT, ACCESS_BUFFERED, ACCESS_COUNT };

/* The engine's data of a backing, guarded by the engine's lock. `forget` is called once, when the
 * backing or the engine is freed, with a lock of this module held. So it must not call this module,
 * and no function of this module may be called with a lock that `forget` takes, except
 * descriptors_attachment() of a backing that has an attachment. */
struct attachment {
    void *data;
    void (*forget)(void *data);
};

/* `most`: limit of open descriptors; 0: half of RLIMIT_NOFILE, at most 4096. `direct`: use
 * O_DIRECT. */
errint_t descriptors_new(unsigned most, bool direct, struct descriptors **descriptors);

/* Sets the workers that close descriptors where close() may wait for a server: of files that are
 * not known to be on a local file system. NULL, before workers_free(): none from now on. */
void descriptors_use_workers(struct descriptors *descriptors, struct workers *workers);

/* Call it in the child of fork(): reinitializes the global lock, which another thread of the parent
 * may have held. The child must not use objects of the parent. */
void descriptors_after_fork(void);

/* Closes all descriptors, and drops the state of all backings. No descriptor may be held. */
void descriptors_free(struct descriptors *descriptors); /* NULL is allowed */

/* The attachment of a backing, all zero if it is new; NULL: out of memory. Valid as long as the
 * caller has a reference to the backing. */
struct attachment *descriptors_attachment(struct descriptors *descriptors, struct backing *backing);

/* ACCESS_DIRECT, unless O_DIRECT is not to be used or the file is known to refuse it. */
enum access descriptors_access(struct descriptors *descriptors, struct backing *backing);

/*
 * Both return a descriptor of this version of the file, held until descriptors_release(), or a
 * negative errno. -ESTALE: the path refers to another version, and the backing is marked stale, or
 * was before. -EOPNOTSUPP: the file refuses ACCESS_DIRECT; descriptors_access() then returns
 * ACCESS_BUFFERED.
 *
 * descriptors_try() never blocks; it returns -EAGAIN instead. descriptors_acquire() may block on
 * storage, and waits while the limit is reached: the holders of other descriptors must not depend
 * on its caller to release them.
 */
int descriptors_try(struct descriptors *descriptors, struct backing *backing, enum access access);
int descriptors_acquire(struct descriptors *descriptors, struct backing *backing,
                        enum access access);
void descriptors_release(struct descriptors *descriptors, struct backing *backing,
                         enum access access);

/*
 * Serializes opens, so that a file whose open() hangs blocks one thread, not all.
 * descriptors_may_acquire() returns false if another thread is already opening this file; the job
 * is then queued behind it. If it returns true, the caller calls descriptors_acquire(), and then
 * takes the queued jobs with descriptors_acquired(), also after an error.
 */
bool descriptors_may_acquire(struct descriptors *descriptors, struct backing *backing,
                             enum access access, struct job *job);
struct fifo descriptors_acquired(struct descriptors *descriptors, struct backing *backing,
                                 enum access access);

/* Whether fstat(2), or a read of cached pages, may wait for a server. True for file systems that
 * are not known to be local, and for a backing that was never opened. */
bool descriptors_may_wait(struct descriptors *descriptors, struct backing *backing);

/* Uses buffered reads for this file from now on, since a direct read was refused. `why`: static
 * text. */
void descriptors_refuse_direct(struct descriptors *descriptors, struct backing *backing,
                               const char *why);

/* Opens another descriptor of this version of the file, with O_NONBLOCK, which the caller closes.
 * Errors as above. May block on storage. */
int descriptors_fresh(struct backing *backing);

/* Verifies, after a read of `fd`, that the file is still the version of the backing. Else marks the
 * backing stale and returns -ESTALE. */
errint_t descriptors_verify(struct backing *backing, int fd);

/*
 * Shares verifications where fstat(2) may wait for a server: one verifies all reads that had ended
 * when it began, so that the number of reads in flight does not multiply the requests.
 * descriptors_may_verify() returns false if a job that verifies this file is queued or runs; the
 * new job, of a read of this file, then waits for the next one. If it returns true, the caller runs
 * the job. Before the verification the job takes those that wait with descriptors_begin_verify(),
 * and after it, it ends them with its own result, and runs the job that descriptors_end_verify()
 * returns, unless it is NULL.
 */
bool descriptors_may_verify(struct backing *backing, enum access access, struct job *job);
struct fifo descriptors_begin_verify(struct backing *backing, enum access access);
struct job *descriptors_end_verify(struct backing *backing, enum access access);

/*
 * Closes descriptors that are not held: those of stale backings, and those of backings without open
 * files (backing->readers) that were not read since the last call. Such descriptors would keep
 * removed files alive and file systems busy. Returns the number of descriptors left. Call it
 * periodically.
 */
unsigned descriptors_tidy(struct descriptors *descriptors);

/* Marks the backing stale and logs this, unless a message about the backing was logged before.
 * Returns -ESTALE. */
errint_t descriptors_stale(struct backing *backing);

/* Logs a failed read, unless a message about the backing was logged before. Returns `error`. */
errint_t descriptors_failed(struct descriptors *descriptors, struct backing *backing,
                            uint64_t offset, errint_t error);

struct descriptors_state {
    unsigned open; /* now */
    unsigned most; /* the limit of `open` */
    const char *direct_refused; /* why the first file that refused O_DIRECT did so; NULL: none */
};

struct descriptors_state descriptors_state(struct descriptors *descriptors);

#endif
