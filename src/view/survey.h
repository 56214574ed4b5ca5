/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at all of the source, so that .fstfs/problems has what nobody has asked for yet.
 *
 * One thread, which exists while it is at work, lists every directory, reads the headers of every
 * checkpoint and works out what the views make of it; what is wrong is then in the catalog's
 * problems. Directories that have a checkpoint or a problem are held until the next survey, so
 * that their lines stay and only changes are read again. Storage that does not answer holds up
 * that thread and nobody else.
 */
#ifndef FSTFS_VIEW_SURVEY_H
#define FSTFS_VIEW_SURVEY_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "view/view.h"

enum {
    SURVEY_WAIT_MS = 1000, /* the longest that a caller waits for one */
    SURVEY_WAITERS = 8, /* callers that wait at the same time; others do not wait */
    SURVEY_DIRECTORIES = 20000, /* that one survey looks at */
};

struct survey;

/* `catalog` must outlive it. NULL: out of memory. */
struct survey *survey_new(struct catalog *catalog, const struct view_options *options);
/* Waits until the thread has ended: for storage, if that is where it is. NULL is allowed. */
void survey_free(struct survey *survey);

/* Begins a survey, or one after that which is under way, and waits for it as long as a caller
 * may; false: it has not ended. Any thread. */
bool survey_refresh(struct survey *survey);

/* Adds a line for what has not been looked at, if anything; `complete` is what survey_refresh()
 * returned. Any thread; does not wait. */
void survey_write(struct survey *survey, bool complete, struct buffer *out);

#endif
