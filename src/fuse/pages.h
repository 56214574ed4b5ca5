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

/* What the pages describe. Constant, except that main() sets `view` and `survey` before serving. */
struct pages {
    const struct options *options;
    const char *mountpoint;
    struct catalog *catalog;
    struct io *io;
    struct loads *loads;
    struct view *view;
    struct survey *survey;
    struct session *session;
    const struct sandbox *sandbox;
    time_t started;
};

/* Fills what view_options.pages needs; `pages` must outlive the view. */
void pages_list(struct pages *pages, struct view_page list[PAGES]);

#endif
