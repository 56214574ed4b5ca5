/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FSTFS_IO_ANSWER_H
#define FSTFS_IO_ANSWER_H

#include "base/error.h"

#include <stdint.h>
#include <sys/uio.h>

/* The answer to a read. */
struct io_answer {
    /* 0, or a negative errno. -ESTALE: the file is no longer the version of its backing (changed,
     * truncated, replaced, removed). -EIO and others: errors of the storage. */
    errint_t result;
    /* All requested bytes, in order, until the callback returns; on an error there are none. */
    const struct iovec *vectors;
    int count;
    uint64_t cached_bytes; /* of them: not read from storage for this read */
    /* Nanoseconds that the read waited for storage, after it had memory; 0: it did not. */
    uint64_t waited;
};

#endif
