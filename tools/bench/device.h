/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading into a GPU, by libfstfs.
 *
 * All that touches the CUDA driver is in a process of its own, as with the other
 * readers; and it must be so: what was begun before a fork is of no use after it.
 */
#ifndef FSTFS_BENCH_DEVICE_H
#define FSTFS_BENCH_DEVICE_H

#include "readers.h"

#include <cjson/cJSON.h>

struct device {
    char name[32]; /* "cuda:0" */
    char model[128]; /* as the driver calls it */
    uint64_t memory, free_memory; /* bytes */
};

/* What is there of that name. -EINTR, or -EIO: there is none, with the reason why. */
errint_t device_look(const char *name, struct device *device, const struct watch *watch,
                     struct reason *reason);

struct device_load {
    const char *device; /* its name */
    const char *path; /* what libfstfs is to open */
    const struct plan *plan; /* its tensors, one a segment */
    bool through_mount; /* not past the mount that the path is on */
};

struct device_report {
    double pinned; /* bytes in a second of bare copies from pinned memory; 0: there is no such */
    cJSON *storage; /* of fstfs_status(): by which rung each was read, and why not by others */
};

/*
 * Loads all tensors once into memory of the device. The clock starts when the device and
 * that memory are there, before files are opened. `done` as with reader_run(); the sum is
 * that of the tensors as they have come there. Errors as child_wait(): -ENOTSUP where the
 * device has too little memory. The report's `storage` is then the caller's to free.
 */
errint_t device_run(const struct device_load *load, const struct watch *watch,
                    _Atomic uint64_t *done, struct reader_result *result,
                    struct device_report *report, struct reason *reason);

#endif
