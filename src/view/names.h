/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File names of tensors.
 *
 * A tensor's file name is its name with '/', '%', bytes below 0x20, DEL and a
 * leading '.' written as %XX; the empty name is "%". What would be longer than a
 * file name may be (with its suffix), and what by itself ends as such a cut name
 * does, is cut between characters and ends in '~' and 16 hex digits, a hash of
 * the whole name. So two tensors have one file name only if their hashes meet,
 * and the view leaves the second out, with a line in problems.
 */
#ifndef FSTFS_VIEW_NAMES_H
#define FSTFS_VIEW_NAMES_H

#include <stdbool.h>
#include <stddef.h>

enum { FILE_NAME_SIZE = 256 }; /* 255 bytes and a NUL */

/* Writes the file name, ending in `suffix` ("" or ".npy"); gives its length. */
size_t tensor_file_name(const char *name, size_t length, const char *suffix,
                        char out[FILE_NAME_SIZE]);

/* Whether the name is its own file name (before any suffix): the usual case. */
bool tensor_name_is_plain(const char *name, size_t length, size_t suffix_length);

#endif
