/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Surveys: scans of the whole source, so that .fstfs/problems also lists problems of files that
 * were never accessed.
 *
 * A thread, which ends with the survey, lists every directory, reads the headers of every
 * checkpoint and computes its merged file and re-cut shards; problems are added to the catalog's.
 * Directories with a checkpoint or a problem are referenced until the next survey, so that their
 * problems stay listed and only changes are read again. Storage that does not respond blocks only
 * this thread.
 */
#ifndef FSTFS_VIEW_SURVEY_H
#define FSTFS_VIEW_SURVEY_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "view/view.h"

enum {
    SURVEY_WAIT_MS = 1000, /* how long a caller waits for a survey */
    SURVEY_WAITERS = 8, /* callers that may wait at the same time; others do not wait */
    SURVEY_DIRECTORIES = 20000, /* limit of directories in one survey */
};

struct survey;

/* `catalog` must outlive it. NULL: out of memory. */
struct survey *survey_new(struct catalog *catalog, const struct view_options *options);
/* Waits for the thread to end, and so for storage if the thread does. NULL is allowed. */
void survey_free(struct survey *survey);

/* Starts a survey, or queues one behind the survey that is running, and waits for it for up to
 * SURVEY_WAIT_MS. Returns whether it has ended. Any thread. */
bool survey_refresh(struct survey *survey);

/* Adds at most two lines: how far the survey is, unless it is `complete` (what survey_refresh()
 * returned), and how many directories were left out. Any thread; does not wait for storage. */
void survey_write(struct survey *survey, bool complete, struct buffer *out);

#endif
