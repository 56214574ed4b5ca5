/* SPDX-License-Identifier: Apache-2.0 */
/* The constants and structures of the double of libcuda.so.1. */
#ifndef FSTFS_TESTS_GPU_CUDA_TYPES_H
#define FSTFS_TESTS_GPU_CUDA_TYPES_H

#include "client/gpu/cuda.h"

#include <stddef.h>
#include <stdint.h>

#define DEVICES 2
#define ARENA (1ull << 30) /* bytes of each device's memory */
#define GAP (64ull << 10) /* after the last allocation */
#define FRESH 0xa5 /* the bytes of new memory */
#define ALIGNMENT 512
#define MOST_RANGES 4096
#define MOST_NESTED 8
#define NO_DEVICE 100
#define INVALID_DEVICE 101
#define INVALID_CONTEXT 201
#define OUT_OF_MEMORY 2
#define NOT_INITIALIZED 3
#define INVALID_HANDLE 400
#define ALREADY_REGISTERED 712
#define NOT_REGISTERED 713
#define QUERIES_UNTIL_DONE 3

CUresult cuCtxGetCurrent(CUcontext *context);

struct profile {
    const char *name;
    int devices, integrated, host_tables, rdma;
};

static const struct profile profiles[] = {
    {"h200", DEVICES, 0, 0, 1}, {"gb10", 1, 1, 1, 0},  {"gh200", 1, 0, 1, 1},
    {"hmm", 1, 0, 0, 0},        {"tegra", 1, 1, 0, 0}, {"none", 0, 0, 0, 0},
};

struct CUctx_st {
    int device;
    unsigned retained;
    uint64_t next; /* offset in its arena of the next allocation */
    char *shown, *reached; /* the arena as programs see it, and a mapping for the double */
};

enum kind { DEVICE, MANAGED, PINNED, REGISTERED };

struct range {
    enum kind kind;
    int device;
    uintptr_t start;
    size_t size;
};

struct operation {
    struct operation *next;
    CUevent event; /* recorded here; NULL: a copy */
    char *to;
    const char *from;
    size_t size;
    uint64_t sum; /* of the bytes when it was submitted */
    char *staged; /* the bytes of a copy from memory that is not pinned */
};

struct CUstream_st {
    CUcontext context;
    struct operation *first, **last;
};

struct CUevent_st {
    CUcontext context;
    CUstream stream; /* that it is recorded in and pending; NULL: completed */
    unsigned queries;
};

#endif
