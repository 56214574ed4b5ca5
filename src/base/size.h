/* SPDX-License-Identifier: Apache-2.0 */
/* Parses sizes and numbers of command lines. */
#ifndef FSTFS_BASE_SIZE_H
#define FSTFS_BASE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Parses a size in bytes: a whole number with an optional unit. K, M, G, T and KiB, MiB, ... are
 * powers of 1024; KB, MB, GB, TB are powers of 1000, as in the Hugging Face libraries. False: not a
 * size, zero, or above 2^63 - 1.
 */
bool size_read(const char *text, uint64_t *size);

/* Parses a whole number from 1 to `most`, as strtol() does. False: it is not one. */
bool number_read(const char *text, uint32_t most, uint32_t *number);

#endif
