/* SPDX-License-Identifier: Apache-2.0 */
/* The records of a zip archive of torch.save(), and their CRC-32. */
#ifndef FSTFS_CHECK_ARCHIVE_H
#define FSTFS_CHECK_ARCHIVE_H

#include "base/error.h"
#include "findings.h"
#include "format/st_table.h"
#include "format/zip.h"

#include <stdbool.h>
#include <stdint.h>

/* Immutable once it is open. */
struct archive {
    struct zip zip;
    struct st_table *table; /* the tensors; offsets are from the start of the file */
    const struct zip_member **records; /* stored members, sorted by offset; malloc'ed */
    uint32_t record_count;
};

/*
 * Finds all stored records of the archive `fd` of `file_size` bytes, including those without
 * tensors. Takes ownership of `table`, even on an error. Errors are those of zip_find_directory(),
 * zip_read(), zip_locate() and zip_check_members(), and -ENOMEM.
 */
errint_t archive_open(int fd, uint64_t file_size, struct st_table *table, struct archive *archive,
                      struct reason *reason);
void archive_free(struct archive *archive); /* all zero is allowed */

/* Compares the CRC-32 of the records in a run of bytes, which begins and ends between records. */
struct archive_check {
    const struct archive *archive;
    uint32_t record; /* index of the current one */
    uint32_t crc; /* of its bytes so far */
    uint64_t compared, missing; /* records with and without a CRC-32 in the archive */
};

/* Checks bytes [from, from + length) of the file, which continue those of the previous call. Adds a
 * finding for each damaged record. */
void archive_check_bytes(struct archive_check *check, const char *data, uint64_t from,
                         uint64_t length, const char *path, struct findings *findings);

#endif
