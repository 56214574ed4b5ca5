/* SPDX-License-Identifier: Apache-2.0 */
/* Reads pages of .fstfs. */
#ifndef FSTFS_TOP_PAGE_H
#define FSTFS_TOP_PAGE_H

#include "base/buffer.h"
#include "base/error.h"

/* Appends the page `name` of the mount at `point`; blocks while the daemon does not reply. */
errint_t page_read(const char *point, const char *name, struct buffer *page, struct reason *reason);

#endif
