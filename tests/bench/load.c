/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timed reader that uses libfstfs: opens PATH and reads all tensors, or the largest one, into
 * fresh memory.
 *
 *   load [-1] [-r] [-l] PATH
 *
 * -1  the largest tensor only
 * -r  into memory that was used before
 * -l  into memory with the file's alignment modulo 4096 (struct fstfs_request)
 *
 * Prints a JSON object: seconds, bytes, and the sum of all bytes.
 */
#include "base/clock.h"
#include "fstfs.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64 /* of allocators */
#define BLOCK 4096

static void __attribute__((noreturn)) die(const char *what)
{
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

/* One allocation for everything, in huge pages. */
static char *
memory_of(uint64_t size)
{
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        die("no memory");
    madvise(memory, size, MADV_HUGEPAGE);
    return memory;
}

static uint64_t
largest(const struct fstfs_checkpoint *checkpoint)
{
    uint64_t place = 0;

    for (size_t i = 0; i < fstfs_count(checkpoint); i++)
        if (fstfs_tensor(checkpoint, i)->size > fstfs_tensor(checkpoint, place)->size)
            place = i;
    return place;
}

/* The address of a tensor: `at`, rounded up. */
static char *
place_for(const struct fstfs_tensor *tensor, char *at, bool as_file)
{
    uintptr_t address = (uintptr_t)at;

    if (as_file)
        return at + (tensor->offset - address) % BLOCK;
    return at + -address % ALIGNMENT;
}

int
main(int argc, char **argv)
{
    struct fstfs_checkpoint *checkpoint;
    struct fstfs_request *requests;
    struct fstfs *fstfs;
    uint64_t size = 0, mapped, sum = 0, started, ended, opened;
    bool one = false, again = false, as_file = false;
    int option;
    size_t count;
    char *memory, *at;

    while ((option = getopt(argc, argv, "1rl")) != -1) {
        if (option == '?')
            return 2;
        one |= option == '1';
        again |= option == 'r';
        as_file |= option == 'l';
    }
    if (argc - optind != 1)
        return 2;
    started = monotonic_ns();
    if (fstfs_new(NULL, &fstfs) < 0 || fstfs_open(fstfs, argv[optind], &checkpoint) < 0)
        die(fstfs_error());
    opened = monotonic_ns() - started;
    count = one ? 1 : fstfs_count(checkpoint);
    requests = calloc(count, sizeof(*requests));
    for (size_t i = 0; i < count; i++) {
        requests[i].tensor = fstfs_tensor(checkpoint, one ? largest(checkpoint) : i);
        size += requests[i].tensor->size + (as_file ? BLOCK : ALIGNMENT);
    }
    memory = at = memory_of(size);
    mapped = size;
    if (again)
        memset(memory, 1, size);
    started = monotonic_ns();
    for (size_t i = 0; i < count; i++) {
        requests[i].to = place_for(requests[i].tensor, at, as_file);
        at = (char *)requests[i].to + requests[i].tensor->size;
    }
    if (fstfs_read(checkpoint, requests, count, NULL) < 0)
        die(fstfs_error());
    ended = monotonic_ns();
    size = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint64_t j = 0; j < requests[i].tensor->size; j++)
            sum += ((unsigned char *)requests[i].to)[j];
        size += requests[i].tensor->size;
    }
    printf("{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"sum\": %" PRIu64 "}\n",
           (double)(ended - started + opened) / 1e9, size, sum);
    munmap(memory, mapped);
    free(requests);
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    return 0;
}
