/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processes have files of a mount open or mapped, by what /proc tells this user.
 */
#ifndef FSTFS_TOP_USERS_H
#define FSTFS_TOP_USERS_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

enum { USERS_MOST = 8, USER_FILES = 2 };

struct user {
    pid_t pid;
    char name[64]; /* of the program */
    char files[USER_FILES][PATH_MAX]; /* the first of them, below the mount */
    size_t file_count; /* of all, and may count one twice that was opened twice */
};

struct users {
    struct user *list; /* USERS_MOST of them; made at the first look */
    size_t count; /* of those that are in the list */
    size_t left_out; /* more of them than it has room for */
    double looked, took; /* when, and for how many seconds */
};

/* All zero is a list that was not made yet. Looks anew, but where that is slow not
 * at every call: it takes a tenth of the time at most. */
void users_look(const char *point, struct users *users);
void users_free(struct users *users);

#endif
