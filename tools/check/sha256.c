/* SPDX-License-Identifier: Apache-2.0 */
#include "sha256.h"

#include <stdio.h>

void
sha256_text(const unsigned char digest[SHA256_SIZE], char text[SHA256_TEXT])
{
    for (size_t i = 0; i < SHA256_SIZE; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

#ifdef FSTFS_HAVE_CRYPTO

#include <openssl/evp.h>

bool
sha256_can(void)
{
    return true;
}

struct sha256 *
sha256_new(void)
{
    return (struct sha256 *)EVP_MD_CTX_new();
}

void
sha256_free(struct sha256 *sha)
{
    EVP_MD_CTX_free((EVP_MD_CTX *)sha);
}

void
sha256_begin(struct sha256 *sha)
{
    EVP_DigestInit_ex((EVP_MD_CTX *)sha, EVP_sha256(), NULL);
}

void
sha256_add(struct sha256 *sha, const void *bytes, size_t length)
{
    EVP_DigestUpdate((EVP_MD_CTX *)sha, bytes, length);
}

void
sha256_end(struct sha256 *sha, unsigned char digest[SHA256_SIZE])
{
    EVP_DigestFinal_ex((EVP_MD_CTX *)sha, digest, NULL);
}

#else

bool
sha256_can(void)
{
    return false;
}

struct sha256 *
sha256_new(void)
{
    return NULL;
}

void
sha256_free(struct sha256 *sha)
{
    (void)sha;
}

void
sha256_begin(struct sha256 *sha)
{
    (void)sha;
}

void
sha256_add(struct sha256 *sha, const void *bytes, size_t length)
{
    (void)sha;
    (void)bytes;
    (void)length;
}

void
sha256_end(struct sha256 *sha, unsigned char digest[SHA256_SIZE])
{
    (void)sha;
    (void)digest;
}

#endif
