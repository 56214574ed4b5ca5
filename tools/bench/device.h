/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading into a GPU through libfstfs, in a child process: the CUDA driver does not work in a
 * process that is forked after its initialization.
 */
#ifndef FSTFS_BENCH_DEVICE_H
#define FSTFS_BENCH_DEVICE_H

#include "readers.h"

#include <cjson/cJSON.h>

struct device {
    char name[32]; /* "cuda:0" */
    char model[128]; /* the driver's name for it */
    uint64_t memory, free_memory; /* bytes */
};

/* Finds a device by name. -EINTR after a signal; -EIO and the reason if it cannot be used. */
errint_t device_find(const char *name, struct device *device, struct reason *reason);

struct device_load {
    const char *device; /* its name */
    const char *path; /* for fstfs_open() */
    const struct plan *plan; /* the tensors, one per segment */
    bool through_mount; /* read through FUSE although libfstfs could bypass it */
};

struct device_report {
    /* Bytes per second of plain copies from pinned memory; 0: could not be measured. */
    double pinned;
    cJSON *storage; /* from fstfs_status(): which backend was used, and why not the others */
};

/*
 * Loads all tensors once into memory of the device. The clock starts when the device and that
 * memory are ready, before files are opened. The checksum is that of the tensors in the device.
 * Errors as in children_run(); -ENOTSUP if the device has too little memory. The caller frees
 * report->storage.
 */
errint_t device_run(const struct device_load *load, struct progress *progress,
                    struct reader_result *result, struct device_report *report,
                    struct reason *reason);

#endif
