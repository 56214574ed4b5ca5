/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of backing files: opened when a read needs one, kept for the
 * next, limited in number.
 *
 * Owned by the engine, called from its threads. What is known of a backing
 * (its descriptor, what was logged of it) hangs on backing->io_state from its
 * first read to its last unref or to descriptors_free(), whichever is first.
 */
#ifndef FSTFS_IO_DESCRIPTORS_H
#define FSTFS_IO_DESCRIPTORS_H

#include "base/error.h"
#include "base/extent.h"

struct descriptors;

/* `most` files open at once; 0: a share of RLIMIT_NOFILE. */
errint_t descriptors_new(unsigned most, struct descriptors **descriptors);

/* Closes every descriptor and lets go of every backing. None may be held. */
void descriptors_free(struct descriptors *descriptors); /* NULL is allowed */

/*
 * An open descriptor of this version of the file, held until
 * descriptors_release(); or a negative errno: -ESTALE when the path has come to
 * mean something else (the backing is then marked stale) or was marked before.
 * Waits while as many as allowed are held by others, so a thread holds at most
 * one. May block on storage.
 */
int descriptors_acquire(struct descriptors *descriptors, struct backing *backing);
void descriptors_release(struct descriptors *descriptors, struct backing *backing);

/*
 * After a read through `fd`: 0 when the file is still the version `backing`
 * names, else -ESTALE, and the backing is marked stale.
 */
errint_t descriptors_verify(struct backing *backing, int fd);

/* Marks the backing stale, saying so in the log the first time; -ESTALE. */
errint_t descriptors_stale(struct backing *backing);

/* Logs a failed read of this backing, the first time only; returns `error`. */
errint_t descriptors_failed(struct backing *backing, uint64_t offset, errint_t error);

unsigned descriptors_open(struct descriptors *descriptors); /* how many now */
unsigned descriptors_most(struct descriptors *descriptors);

#endif
