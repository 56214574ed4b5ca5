/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of .fstfs: loads, metrics, problems, status. */
#ifndef FSTFS_FUSE_PAGES_H
#define FSTFS_FUSE_PAGES_H

#include "catalog/catalog.h"
#include "fuse/loads.h"
#include "fuse/options.h"
#include "io/io.h"
#include "view/survey.h"
#include "view/view.h"

#include <time.h>

struct sandbox;
struct session;

enum { PAGES = 4 };

/* The parts of a mount, in the order in which main.c creates them. The pages show their state. */
struct mount_parts {
    const struct options *options;
    const char *mountpoint; /* absolute */
    const struct sandbox *sandbox;
    struct catalog *catalog;
    struct session *session;
    struct io *io;
    struct loads *loads;
    time_t started;
    uint64_t started_ms; /* monotonic_ms(); `started` is wrong if the clock is set later */
    struct view *view;
    struct survey *survey;
};

/* Fills what view_options.pages needs; `parts` must outlive the view. */
void pages_list(struct mount_parts *parts, struct view_page list[PAGES]);

#endif
