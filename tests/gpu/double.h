/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests ask of the doubles of libcuda.so.1 and libcufile.so.0, which tests/gpu
 * makes: libraries over host memory that export what libfstfs uses of the real ones,
 * by their versioned names, and are as strict as those may be. What no program may do
 * aborts, with a line that says what it was.
 */
#ifndef FSTFS_TESTS_GPU_DOUBLE_H
#define FSTFS_TESTS_GPU_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>

/* Begins anew, as the device of a profile: "h200" (two of it), "gb10", "gh200", "hmm",
 * "tegra" or "none". Nothing of the double may be in use. */
void double_cuda_reset(const char *profile);

/* How many things were made, retained or registered and not yet given back. */
unsigned double_cuda_left(void);

/* The call number `call` of this function from now on, 1 for the next, gives `error`;
 * 0: every call. Not both of one function. */
void double_cuda_fail(const char *function, unsigned call, int error);
unsigned double_cuda_calls(const char *function); /* since the reset */

/* The other library: what a new process would find of it. It reads into the memory of the
 * first double by `read` only, in whole blocks, by files that it knows. */
struct double_cufile {
    bool nvfs; /* nvidia-fs is loaded */
    bool p2p; /* peer-to-peer without it */
    bool compatible; /* cufile.json allows the way by the host */
};
void double_cufile_reset(const struct double_cufile *as);
unsigned double_cufile_left(void);
void double_cufile_fail(const char *function, unsigned call, int error);
/* cuFileRead() brings no more than so many bytes; 0: all. */
void double_cufile_shorten(size_t most);
unsigned double_cufile_calls(const char *function);
/* Until it is called with false again, cuFileDriverOpen() does not return. */
void double_cufile_hold(bool hold);

/* For the other double: where the CPU finds device memory; NULL: that is none. */
char *double_cuda_memory(unsigned long long address, size_t size);

#endif
