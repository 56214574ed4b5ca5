/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File names of tensors.
 *
 * A tensor's file name is its name with '/', '%', bytes below 0x20, DEL, a leading '.' and bytes
 * that are not UTF-8, which names of GGUF may have, escaped as %XX; the empty name becomes "%". A
 * file name that would be too long with its suffix is truncated at a character boundary and ends in
 * '~' and 16 hex digits, a hash of the whole name. A name that already ends like this also gets a
 * hash. Two tensors of a checkpoint have the same file name only if their hashes are equal.
 */
#ifndef FSTFS_VIEW_NAMES_H
#define FSTFS_VIEW_NAMES_H

#include <stdbool.h>
#include <stddef.h>

enum { FILE_NAME_SIZE = 256 }; /* 255 bytes and a NUL */

/* Writes the file name, ending in `suffix` ("" or ".npy"); returns its length. */
size_t tensor_file_name(const char *name, size_t length, const char *suffix,
                        char out[FILE_NAME_SIZE]);

/* Returns whether the file name, without its suffix, is the name itself. */
bool tensor_name_is_plain(const char *name, size_t length, size_t suffix_length);

#endif
