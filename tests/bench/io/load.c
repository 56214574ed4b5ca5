/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed reader of the bench that uses libfstfs: opens PATH and reads all of it, or
 * its largest tensor, into fresh memory.
 *
 *   load [-1] [-r] PATH
 *
 * -1  the largest tensor only
 * -r  into memory that has been used before
 *
 * Prints one JSON object: seconds, bytes, and a sum over all of them.
 */
#include "base/histogram.h"
#include "fstfs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void __attribute__((noreturn)) die(const char *what)
{
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

/* As one block, as a consumer that knows what comes would have it. */
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

int
main(int argc, char **argv)
{
    struct fstfs_checkpoint *checkpoint;
    struct fstfs_request *requests;
    struct fstfs *fstfs;
    uint64_t size = 0, sum = 0, started, ended, opened;
    int option, one = 0, again = 0;
    size_t count;
    char *memory, *at;

    while ((option = getopt(argc, argv, "1r")) != -1) {
        if (option == '?')
            return 2;
        if (option == '1')
            one = 1;
        else
            again = 1;
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
        /* Apart by what allocators align to. */
        size += (requests[i].tensor->size + 63) / 64 * 64;
    }
    memory = at = memory_of(size);
    if (again)
        memset(memory, 1, size);
    started = monotonic_ns();
    for (size_t i = 0; i < count; i++) {
        requests[i].to = at;
        at += (requests[i].tensor->size + 63) / 64 * 64;
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
    munmap(memory, at - memory);
    free(requests);
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    return 0;
}
