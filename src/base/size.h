/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes and numbers as people write them on a command line.
 */
#ifndef FSTFS_BASE_SIZE_H
#define FSTFS_BASE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Reads a size: a whole number and nothing, K, M, G or T (powers of 1024, also
 * as KiB, MiB, ...), or KB, MB, GB, TB (powers of 1000, as the Hugging Face
 * libraries count them). False: not a size, zero, or over 2^63 - 1.
 */
bool size_read(const char *text, uint64_t *size);

/* Reads a whole number, as strtol() does. False: not a number, or not from 1 to `most`. */
bool number_read(const char *text, uint32_t most, uint32_t *number);

#endif
