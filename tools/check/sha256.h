/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-256, where fstfs was built with libcrypto.
 */
#ifndef FSTFS_CHECK_SHA256_H
#define FSTFS_CHECK_SHA256_H

#include <stdbool.h>
#include <stddef.h>

enum { SHA256_SIZE = 32, SHA256_TEXT = 65 /* hexadecimal, with a NUL */ };

/* Whether this program can. Where not, nothing else here may be called. */
bool sha256_can(void);

struct sha256;

struct sha256 *sha256_new(void); /* NULL: out of memory */
void sha256_free(struct sha256 *sha); /* NULL is allowed */

/* Of all bytes added between the two. One thread at a time. */
void sha256_begin(struct sha256 *sha);
void sha256_add(struct sha256 *sha, const void *bytes, size_t length);
void sha256_end(struct sha256 *sha, unsigned char digest[SHA256_SIZE]);

void sha256_text(const unsigned char digest[SHA256_SIZE], char text[SHA256_TEXT]);

#endif
