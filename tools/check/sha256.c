/* SPDX-License-Identifier: Apache-2.0 */
#include "sha256.h"

#include <stdio.h>

#ifdef FSTFS_HAVE_CRYPTO
#include <openssl/evp.h>
enum { HAVE_CRYPTO = true };
#else
/* Stubs, so that callers compile; they are never called. */
enum { HAVE_CRYPTO = false };
#define EVP_MD_CTX_new() NULL
#define EVP_MD_CTX_free(context) ((void)(context))
#define EVP_DigestInit_ex(context, type, engine) ((void)(context))
#define EVP_DigestUpdate(context, bytes, length) ((void)(context), (void)(bytes), (void)(length))
#define EVP_DigestFinal_ex(context, digest, length) ((void)(context), (void)(digest))
#define EVP_MD_CTX void
#endif

bool
sha256_is_supported(void)
{
    return HAVE_CRYPTO;
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

void
sha256_text(const unsigned char digest[SHA256_SIZE], char text[SHA256_TEXT])
{
    for (size_t i = 0; i < SHA256_SIZE; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}
