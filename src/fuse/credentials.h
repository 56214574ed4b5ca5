/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The credentials of a caller of the mount, taken on by a thread of the opener
 * (opener.h) to ask the kernel what they permit.
 *
 * FUSE reports user and group. The supplementary groups are read from /proc, where the
 * caller's PID is visible; his request is waiting meanwhile, so the PID is still his.
 * Where they are not known, a right must not depend on them: a group may be what is
 * denied a right that all others have. See credentials_permit().
 * Capabilities are not taken over, with one exception: user 0 with CAP_DAC_OVERRIDE or
 * CAP_DAC_READ_SEARCH, in a user namespace with the same IDs as this process, may do
 * what this process may.
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
    gid_t *groups; /* supplementary; malloc'ed, owned */
    size_t group_count;
    bool groups_known;
    bool overrides; /* permissions of files, as root does */
};

/* Those of this process. -ENOMEM, -EIO. */
errint_t credentials_of_process(struct credentials *credentials);
errint_t credentials_of_caller(const struct caller *caller, struct credentials *credentials);
/* Whether his capabilities override permissions of files: see above. */
bool credentials_may_override(const struct caller *caller);
/* As credentials_of_caller(), from the text of /proc/PID/status. The groups there are those of the
 * caller only if it has his user and group too: the kernel may act for others in a thread. -ENOMEM.
 */
errint_t credentials_from_status(const char *status, const struct caller *caller,
                                 struct credentials *credentials);
void credentials_free(struct credentials *credentials);

/* Makes them the file system credentials of this thread, until it takes on others. False: this
 * process is not allowed to, and the thread has those of the process. */
bool credentials_assume(const struct credentials *credentials, const struct credentials *process);

/*
 * Where they cannot be assumed, or the groups are not known: whether the mode of the
 * file behind `fd` (O_PATH is enough) permits `mask` (R_OK, X_OK) to `credentials` (a
 * struct credentials), whatever groups there may be that are not known. 0 or -EACCES.
 * A file with an access control list permits nothing.
 */
errint_t credentials_permit(void *credentials, int fd, int mask);

#endif
