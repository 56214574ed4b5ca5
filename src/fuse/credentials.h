/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The credentials of a caller of the mount. A thread of the opener (opener.h) assumes them to ask
 * the kernel what the caller may access.
 *
 * FUSE reports user and group. The supplementary groups are read from /proc if the caller's PID is
 * visible there and not that of a worker thread of io_uring; the caller waits for its request
 * meanwhile, so the PID is not reused. If the groups are unknown, nothing is granted that they
 * could deny: even a right of "others" does not count if one of the groups may lack it (see
 * credentials_permit()). Capabilities are ignored, with one exception: user 0 with CAP_DAC_OVERRIDE
 * or CAP_DAC_READ_SEARCH, in a user namespace with the same IDs as this process, has the rights of
 * this process.
 */
#ifndef FSTFS_FUSE_CREDENTIALS_H
#define FSTFS_FUSE_CREDENTIALS_H

#include "base/error.h"
#include "view/permission.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct credentials {
    uid_t uid;
    gid_t gid;
    gid_t *groups; /* supplementary; owned */
    size_t group_count;
    bool groups_known;
    bool overrides; /* ignores permissions of files, as root does */
};

/* Finds out whether PIDs in /proc are those of this process's namespace. Must be called before any
 * function that reads /proc, while there is one thread. */
void credentials_init(void);

enum { COMMAND_SIZE = 16 }; /* TASK_COMM_LEN of Linux */

/* The name of the program that a thread runs; "" if it is not known. */
void credentials_command(pid_t thread, char name[COMMAND_SIZE]);

/* This process's own. -ENOMEM, -EIO. */
errint_t credentials_of_process(struct credentials *credentials);
errint_t credentials_of_caller(const struct caller *caller, struct credentials *credentials);
/* Whether the caller's capabilities override permissions of files: see above. */
bool credentials_may_override(const struct caller *caller);
/* Like credentials_of_caller(), but from the text of /proc/PID/status. Its groups are used only if
 * its user and group are the caller's: the kernel may act for another user in that thread.
 * -ENOMEM. */
errint_t credentials_from_status(const char *status, const struct caller *caller,
                                 struct credentials *credentials);
void credentials_free(struct credentials *credentials);
/* Whether the text of /proc/PID/stat is that of a worker thread of io_uring. */
bool credentials_is_io_worker(const char *stat);

/* Sets the file system credentials of this thread. Returns false if this process may not; the
 * thread then has those of the process. */
bool credentials_assume(const struct credentials *credentials, const struct credentials *process);

/* Whether not all groups are known: overflow IDs (base/overflow_ids.h) may be any groups.
 * credentials_permit() must then permit the access in addition to the kernel. */
bool credentials_have_unknown_groups(const struct credentials *credentials);

/*
 * Decides by modes, if credentials cannot be assumed or groups are unknown: returns 0 if the file
 * open as `fd` (O_PATH suffices) grants `mask` (R_OK, X_OK) to `credentials` (a struct credentials)
 * for every possible set of unknown groups and whoever has an overflow ID, else -EACCES. A file
 * with an access control list grants nothing.
 */
errint_t credentials_permit(void *credentials, int fd, int mask);

#endif
