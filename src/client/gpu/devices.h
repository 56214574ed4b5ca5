/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a struct fstfs: opens them, prepares reads into them, reports their status. */
#ifndef FSTFS_CLIENT_GPU_DEVICES_H
#define FSTFS_CLIENT_GPU_DEVICES_H

#include "base/buffer.h"
#include "client/gpu/device.h"

#include <stdbool.h>

struct fstfs_read;

/*
 * Prepares a read into the device. Its plan must be sorted. Sets the `room` of each item, and
 * creates the pipeline if it is needed. Sets *is_host to whether the device shares the host's
 * memory and the host can write to all memory of the requests; then the read is done like one into
 * host memory. -EINVAL: memory that is not the device's, or both host and device memory. Errors
 * with fail().
 */
errint_t device_prepare(struct fstfs_device *device, struct fstfs_read *read, bool *is_host);

/* Appends the member "devices" of fstfs_status(). Never waits for a driver. */
void devices_status(struct fstfs *fstfs, struct buffer *out);

/* No read may be in flight and no worker running. */
void devices_free(struct fstfs *fstfs);

#endif
