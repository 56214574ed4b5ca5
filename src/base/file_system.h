/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of file systems, by the magic numbers of statfs(2). */
#ifndef FSTFS_BASE_FILE_SYSTEM_H
#define FSTFS_BASE_FILE_SYSTEM_H

#include <linux/magic.h>
#include <stdbool.h>
#include <sys/vfs.h>

/* Missing from some versions of linux/magic.h. */
#ifndef F2FS_SUPER_MAGIC
#define F2FS_SUPER_MAGIC 0xF2F52010
#endif
#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#ifndef EROFS_SUPER_MAGIC_V1
#define EROFS_SUPER_MAGIC_V1 0xE0F5E1E2
#endif
#define ZFS_SUPER_MAGIC 0x2FC12FC1

/* Whether fstat(2) and close(2) do not wait for a server. Returns false if unknown. */
static inline bool
file_system_is_local(const struct statfs *fs)
{
    switch ((unsigned long)fs->f_type) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case TMPFS_MAGIC:
    case SQUASHFS_MAGIC:
    case EROFS_SUPER_MAGIC_V1:
    case ZFS_SUPER_MAGIC:
        return true;
    default:
        return false;
    }
}

#endif
