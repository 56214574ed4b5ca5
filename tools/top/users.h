/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that have files of a mount open or mapped, as far as /proc shows them. */
#ifndef FSTFS_TOP_USERS_H
#define FSTFS_TOP_USERS_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

enum { USERS_MOST = 8, USER_FILES = 2 };

struct user {
    pid_t pid;
    char name[64]; /* of the program */
    char files[USER_FILES][PATH_MAX]; /* the first files, relative to the mount */
    size_t file_count; /* of all files; a file with several descriptors may count more than once */
};

struct users {
    struct user
        *list; /* USERS_MOST entries, and one for temporary use; NULL before the first scan */
    size_t count; /* processes in the list */
    size_t left_out; /* processes that did not fit */
    double scanned, scan_seconds; /* monotonic_seconds() of the last scan, and its duration */
};

/* Scans /proc, unless the last scan began less than ten times its own duration ago. All zero is
 * valid. */
void users_scan(const char *point, struct users *users);
void users_free(struct users *users);

#endif
