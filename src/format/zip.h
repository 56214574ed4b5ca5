/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the central directory of a zip archive and finds the bytes of stored members in the file,
 * for checkpoints of PyTorch. No state; only zip_locate_all() starts threads. Nothing is
 * decompressed.
 *
 * Libraries such as libzip do not report the offset of a member's data, and accept archives that
 * other readers interpret differently. This reader refuses such archives: there must be one central
 * directory, directly before its end record, and local headers must agree with it. It also refuses
 * members that miniz, which PyTorch uses, would refuse or return without reading them. Format:
 * APPNOTE.TXT 6.3 (PKWARE), with zip64.
 */
#ifndef FSTFS_FORMAT_ZIP_H
#define FSTFS_FORMAT_ZIP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define ZIP_MAX_DIRECTORY (UINT64_C(64) << 20) /* bytes of a central directory */

/* Reading a central directory of N bytes takes at most ZIP_FACTOR * N bytes of memory: for its
 * text, and for each entry, of at least 46 bytes, a struct zip_member and the memory to sort it. */
#define ZIP_FACTOR UINT64_C(4)

enum { ZIP_STORED = 0, ZIP_DEFLATED = 8 }; /* compression methods that miniz supports */

struct zip_member {
    uint64_t header; /* offset of the local header in the file */
    uint64_t data; /* offset of the data, once the local header was read; else 0 */
    uint64_t size; /* bytes of the content */
    uint64_t packed; /* bytes in the archive; equal to `size` for a stored member */
    uint32_t name; /* in zip->directory */
    uint32_t crc; /* CRC-32 of the content; may be 0, because PyTorch can omit it */
    uint16_t name_length;
    uint16_t method; /* ZIP_STORED or a compression method */
};

struct zip {
    int fd; /* borrowed */
    uint64_t directory_start; /* offset of the central directory; members are before it */
    uint32_t count;
    struct zip_member *members; /* sorted by name, ignoring case, without
                                 * duplicates; malloc'ed */
    char *directory; /* the bytes of the central directory; malloc'ed */
};

/* A central directory. */
struct zip_end {
    uint64_t at; /* offset of the end record, which follows it */
    uint64_t start, length; /* of the directory, bytes */
    uint64_t count; /* entries */
};

/*
 * Finds the central directory of the open file `fd` of `file_size` bytes. With a reason: -EBADMSG
 * (not an archive, or refused), -ENOMEM, -ESTALE (the file became shorter), errors of pread(2).
 */
errint_t zip_find_directory(int fd, uint64_t file_size, struct zip_end *end, struct reason *reason);

/* Reads that central directory, but no local headers. zip_free() frees `zip`. Errors as above. */
errint_t zip_read(int fd, const struct zip_end *end, struct zip *zip, struct reason *reason);
void zip_free(struct zip *zip); /* all zero is allowed */

/* The member with this name, or NULL. The case of ASCII letters is ignored, as it is by miniz,
 * which PyTorch uses. Since miniz does not distinguish names that differ only in case, zip_read()
 * refuses an archive with two of them. */
struct zip_member *zip_find(const struct zip *zip, const char *name, size_t length);

/* Reads the local header of a stored member, compares it with the central directory, and sets
 * `member->data`. Refuses a compressed member. Errors as above. */
errint_t zip_locate(const struct zip *zip, struct zip_member *member, struct reason *reason);

/* Reads the local headers of all members, compressed or not, in parallel if there are many, to
 * overlap the latencies of storage. Ignores errors: zip_locate() and zip_check_members() return
 * them. */
void zip_locate_all(struct zip *zip);

/* Refuses an archive in which miniz would refuse a member, a local header differs from the central
 * directory, or members overlap. Reads the local headers that were not read before. Errors as
 * above. */
errint_t zip_check_members(const struct zip *zip, struct reason *reason);

#endif
