/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of one struct fstfs: opening them, preparing reads, status. */
#ifndef FSTFS_CLIENT_GPU_DEVICES_H
#define FSTFS_CLIENT_GPU_DEVICES_H

#include "base/buffer.h"
#include "client/gpu/device.h"

#include <stdbool.h>

struct fstfs_read;

/*
 * Prepares a read into the device; its plan is sorted. Sets the `room` of each item, and makes the
 * pipeline if it is needed. `is_host` becomes true if all memory is also the host's: the read is
 * then done like one into host memory. -EINVAL: memory that is not the device's. Errors are set by
 * fail().
 */
errint_t device_prepare(struct fstfs_device *device, struct fstfs_read *read, bool *is_host);

/* Appends the member "devices" of the status. Does not wait for a driver. */
void devices_status(struct fstfs *fstfs, struct buffer *out);

/* No read may be in flight, and no worker running. */
void devices_free(struct fstfs *fstfs);

#endif
