/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of tests/gpu/run that is in C:
 *
 *   measure [-d cuda:N] [-m MIB] [-s MIB] [-r] [-t] PATH
 *
 *   PATH   a safetensors file, or the directory of a checkpoint
 *   -m     memory budget of libfstfs, which determines the size of its ring
 *   -s     size of a slot of the ring; a budget of 64 times that has 15 slots
 *   -r     measures only the rates of whole loads
 *   -t     reads through the mount that PATH is on (no_source); skips attributes and plain copies
 *
 * Prints the attributes of the device; compares every tensor, and slices at odd offsets read to odd
 * addresses, with the bytes that pread() returns; and measures whole loads, cold and warm, and for
 * comparison plain copies from pinned memory. Exits with 1 if bytes differ.
 */
#include "client/gpu/cuda.h"
#include "client/gpu/pipeline.h"
#include "fstfs.h"

#include <dlfcn.h>
#include <err.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define LARGEST_COPY (64 * MIB)
#define COPIED (256 * MIB) /* for each rate */
#define SLICES 300
#define ODD 61 /* most bytes that memory is shifted by */
#define LOADS 5

static struct cuda cuda;
static CUresult (*copy_back)(void *to, CUdeviceptr from, size_t size);
static struct fstfs *fstfs;
static struct fstfs_checkpoint *checkpoint;
static struct fstfs_device *device;

static void
must(CUresult result, const char *function)
{
    struct reason reason;

    if (cuda_check(&cuda, result, function, &reason) < 0)
        errx(2, "%s", reason.text);
}

#define MUST(function, ...) must(cuda.function(__VA_ARGS__), #function)

static double
seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void
begin(const char *path, const char *name, const struct fstfs_options *options)
{
    struct reason reason;
    CUcontext context;
    void *library;
    CUdevice number;

    if (cuda_load(&cuda, &reason) < 0)
        errx(2, "%s", reason.text);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&copy_back = dlsym(library, "cuMemcpyDtoH_v2");
    if (fstfs_new(options, &fstfs) < 0 || fstfs_open(fstfs, path, &checkpoint) < 0 ||
        fstfs_device(fstfs, name, &device) < 0)
        errx(2, "%s", fstfs_error());
    MUST(cuDeviceGet, &number, atoi(strchr(name, ':') + 1));
    MUST(cuDevicePrimaryCtxRetain, &context, number);
    MUST(cuCtxPushCurrent_v2, context);
}

static void
print_attributes(const char *name)
{
    static const struct {
        const char *name;
        int number;
    } attributes[] = {{"integrated", 18},
                      {"managed memory", 83},
                      {"host native atomics", 86},
                      {"pageable memory access", 88},
                      {"concurrent managed access", 89},
                      {"host register", 99},
                      {"host page tables", 100},
                      {"read-only host register", 113},
                      {"GPUDirect RDMA", 116},
                      {"dma-buf", 124}};
    CUdevice number;

    MUST(cuDeviceGet, &number, atoi(strchr(name, ':') + 1));
    for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
        int value;
        CUresult result =
            cuda.cuDeviceGetAttribute(&value, (CUdevice_attribute)attributes[i].number, number);

        printf("attribute %3d %-26s ", attributes[i].number, attributes[i].name);
        puts(result ? "?" : value ? "yes" : "no");
    }
}

/* ---- bytes ---- */

static void
read_file(const char *path, uint64_t offset, char *to, uint64_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    for (uint64_t got = 0; got < size;) {
        ssize_t result = pread(fd, to + got, size - got, (off_t)(offset + got));

        if (result <= 0)
            err(2, "%s", path);
        got += (uint64_t)result;
    }
    close(fd);
}

static uint64_t
below(uint64_t limit)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return limit ? (state >> 33) % limit : 0;
}

/* Reads some rows of a tensor to an odd address; false: the bytes are not the file's. */
static bool
check_rows(const struct fstfs_tensor *tensor)
{
    struct fstfs_slice slices[16] = {{0}};
    struct fstfs_request request = {.tensor = tensor, .slices = tensor->rank ? slices : NULL};
    struct fstfs_read_options options = {.device = device};
    uint64_t size, rows = tensor->rank ? tensor->shape[0] : 1;
    uint64_t row = rows ? tensor->size / rows : 0;
    CUdeviceptr memory;
    char *expected, *found;
    bool same;

    for (unsigned d = 0; d < tensor->rank; d++)
        slices[d] = (struct fstfs_slice){0, tensor->shape[d], 1};
    if (tensor->rank) {
        slices[0].start = below(tensor->shape[0]);
        /* cppcheck-suppress unreadVariable ; read through `request` */
        slices[0].stop = slices[0].start + 1 + below(tensor->shape[0] - slices[0].start);
    }
    if (fstfs_request_size(&request, &size) < 0)
        errx(2, "%s", fstfs_error());
    MUST(cuMemAlloc_v2, &memory, size + ODD);
    request.to = (char *)(uintptr_t)memory + below(ODD);
    if (fstfs_read(checkpoint, &request, 1, &options) < 0)
        errx(2, "%s", fstfs_error());
    expected = malloc(size);
    found = malloc(size);
    read_file(tensor->file, tensor->offset + slices[0].start * row, expected, size);
    must(copy_back(found, (CUdeviceptr)(uintptr_t)request.to, size), "cuMemcpyDtoH");
    same = memcmp(expected, found, size) == 0;
    if (!same)
        printf("DIFFERS: %s at %llu of %s\n", tensor->name, (unsigned long long)tensor->offset,
               tensor->file);
    free(expected);
    free(found);
    MUST(cuMemFree_v2, memory);
    return same;
}

static bool
check_bytes(void)
{
    size_t count = fstfs_count(checkpoint), wrong = 0, checked = 0;
    uint64_t furthest = 0;

    if (count == 0)
        errx(2, "there are no tensors");
    for (size_t i = 0; i < count + SLICES; i++) {
        const struct fstfs_tensor *tensor = fstfs_tensor(checkpoint, i < count ? i : below(count));

        if (tensor->size == 0 || tensor->bits % 8 || tensor->rank > 16)
            continue;
        wrong += !check_rows(tensor);
        checked++;
        if (tensor->offset + tensor->size > furthest)
            furthest = tensor->offset + tensor->size;
    }
    printf("bytes: %zu reads compared, up to offset %llu, %zu differ\n", checked,
           (unsigned long long)furthest, wrong);
    return wrong == 0;
}

/* ---- rates ---- */

static int
compare_rates(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void
copy_pinned(void)
{
    CUdeviceptr memory;
    CUstream stream;
    void *pinned;

    MUST(cuMemAlloc_v2, &memory, LARGEST_COPY);
    MUST(cuMemHostAlloc, &pinned, LARGEST_COPY, CU_MEMHOSTALLOC_PORTABLE);
    memset(pinned, 1, LARGEST_COPY);
    MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (uint64_t size = MIB; size <= LARGEST_COPY; size *= 2) {
        double start = seconds();

        for (uint64_t copied = 0; copied < COPIED; copied += size)
            MUST(cuMemcpyHtoDAsync_v2, memory, pinned, size, stream);
        MUST(cuStreamSynchronize, stream);
        printf("pinned copies of %2llu MiB: %.2f GB/s\n", (unsigned long long)(size / MIB),
               (double)COPIED / (seconds() - start) / 1e9);
    }
    MUST(cuStreamDestroy_v2, stream);
    MUST(cuMemFreeHost, pinned);
    MUST(cuMemFree_v2, memory);
}

/* Drops the files from the page cache, or reads them into it. */
static void
prepare_files(bool warm)
{
    static char bytes[MIB];
    const char *last = "";

    for (size_t i = 0; i < fstfs_count(checkpoint); i++) {
        const char *path = fstfs_tensor(checkpoint, i)->file;
        int fd;

        if (strcmp(path, last) == 0)
            continue;
        last = path;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            err(2, "%s", path);
        if (!warm)
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        while (warm && read(fd, bytes, sizeof(bytes)) > 0)
            continue;
        close(fd);
    }
}

static void
load(struct fstfs_request *requests, uint64_t total, bool warm)
{
    struct fstfs_read_options options = {.device = device};
    double rates[LOADS];

    for (int i = 0; i < LOADS; i++) {
        double start;

        prepare_files(warm);
        start = seconds();
        if (fstfs_read(checkpoint, requests, fstfs_count(checkpoint), &options) < 0)
            errx(2, "%s", fstfs_error());
        rates[i] = (double)total / (seconds() - start) / 1e9;
    }
    qsort(rates, LOADS, sizeof(*rates), compare_rates);
    printf("all tensors, %s: %.2f GB/s (median of %d; %.2f to %.2f)\n", warm ? "warm" : "cold",
           rates[LOADS / 2], LOADS, rates[0], rates[LOADS - 1]);
}

static void
load_all(void)
{
    size_t count = fstfs_count(checkpoint);
    struct fstfs_request *requests = calloc(count, sizeof(*requests));
    uint64_t total = 0, at = 0;
    CUdeviceptr memory;

    for (size_t i = 0; i < count; i++)
        total += fstfs_tensor(checkpoint, i)->size;
    MUST(cuMemAlloc_v2, &memory, total);
    for (size_t i = 0; i < count; i++) {
        requests[i].tensor = fstfs_tensor(checkpoint, i);
        requests[i].to = (void *)(uintptr_t)(memory + at);
        at += requests[i].tensor->size;
    }
    load(requests, total, false);
    load(requests, total, true);
    MUST(cuMemFree_v2, memory);
    free(requests);
}

/* Prints the bytes of pinned memory, which depend on `-m` and `-s`. */
static void
print_ring(void)
{
    static char text[16384];
    const char *ring =
        fstfs_status(fstfs, text, sizeof(text)) > 0 ? strstr(text, "\"ring_m") : NULL;

    if (ring)
        printf("ring: %.1f MiB\n", (double)strtoull(strchr(ring, ':') + 1, NULL, 10) / (double)MIB);
}

static int
measure_all(const char *name, bool through_mount)
{
    static char text[16384];
    bool right;

    if (!through_mount)
        print_attributes(name);
    right = check_bytes();
    if (!through_mount)
        copy_pinned();
    load_all();
    if (fstfs_status(fstfs, text, sizeof(text)) > 0)
        printf("status: %s\n", text);
    return right ? 0 : 1;
}

int
main(int argc, char **argv)
{
    struct fstfs_options options = {0};
    const char *name = "cuda:0";
    bool rates = false;
    int option, status = 0;

    while ((option = getopt(argc, argv, "d:m:s:rt")) >= 0) {
        if (option == 'd')
            name = optarg;
        else if (option == 'm')
            options.memory = strtoull(optarg, NULL, 10) * MIB;
        else if (option == 's')
            pipeline_span_bytes = strtoull(optarg, NULL, 10) * MIB;
        else if (option == 'r')
            rates = true;
        else if (option == 't')
            options.no_source = 1;
        else
            return 2;
    }
    if (argc - optind != 1)
        errx(2, "usage: measure [-d cuda:N] [-m MIB] [-s MIB] [-r] [-t] PATH");
    begin(argv[optind], name, &options);
    if (rates) {
        load_all();
        print_ring();
    } else {
        status = measure_all(name, options.no_source);
    }
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    return status;
}
