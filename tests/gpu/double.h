/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How tests control the doubles of libcuda.so.1 and libcufile.so.0: libraries over host memory that
 * export the functions that libfstfs uses, by their versioned names, and are as strict as the real
 * ones may be. Invalid use aborts, with a line that describes it.
 */
#ifndef FSTFS_TESTS_GPU_DOUBLE_H
#define FSTFS_TESTS_GPU_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>

/* Resets the double to the devices of a profile: "h200" (two of them), "gb10", "gh200", "hmm",
 * "tegra" or "none". Nothing of the double may be in use. */
void double_cuda_reset(const char *profile);

/* The number of objects that were created, retained or registered and are not yet freed. */
unsigned double_cuda_left(void);

/* Makes call number `call` of a function, counted from now with 1 for the next one, return `error`;
 * 0: every call. Not both for one function. */
void double_cuda_fail(const char *function, unsigned call, int error);
unsigned double_cuda_calls(const char *function); /* since the reset */

/* The properties of libcufile that a new process finds. It reads into device memory only, in whole
 * blocks, and only from registered files. */
struct double_cufile {
    bool nvfs; /* nvidia-fs is loaded */
    bool p2p; /* PCI peer-to-peer without nvidia-fs */
    bool compatible; /* cufile.json allows reading through the host */
};
void double_cufile_reset(const struct double_cufile *as);
unsigned double_cufile_left(void);
void double_cufile_fail(const char *function, unsigned call, int error);
/* Limits the bytes that cuFileRead() reads; 0: no limit. */
void double_cufile_shorten(size_t most);
unsigned double_cufile_calls(const char *function);
/* After a call with true, cuFileDriverOpen() blocks until a call with false. */
void double_cufile_hold(bool hold);

/* For the double of libcufile: the host address of device memory; NULL if it is not device memory.
 */
char *double_cuda_memory(unsigned long long address, size_t size);

#endif
