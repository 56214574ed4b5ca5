/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 with libcrypto. If fstfs was built without it, sha256_is_supported() returns false, and
 * only sha256_text() and sha256_free() may be called. */
#ifndef FSTFS_CHECK_SHA256_H
#define FSTFS_CHECK_SHA256_H

#include <stdbool.h>
#include <stddef.h>

enum { SHA256_SIZE = 32, SHA256_TEXT = 65 /* hexadecimal, with a NUL */ };

bool sha256_is_supported(void);

struct sha256;

struct sha256 *sha256_new(void); /* NULL: out of memory */
void sha256_free(struct sha256 *sha); /* NULL is allowed */

/* sha256_end() returns the hash of all bytes added since sha256_begin(). One thread at a time. */
void sha256_begin(struct sha256 *sha);
void sha256_add(struct sha256 *sha, const void *bytes, size_t length);
void sha256_end(struct sha256 *sha, unsigned char digest[SHA256_SIZE]);

/* Formats a digest as hexadecimal. */
void sha256_text(const unsigned char digest[SHA256_SIZE], char text[SHA256_TEXT]);

#endif
