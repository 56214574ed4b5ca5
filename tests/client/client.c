/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program on libfstfs, for tests in Python:
 *
 *   client [options] list PATH     prints the tensors and metadata of PATH as JSON
 *   client [options] read PATH     prints the bytes of the requests on standard input, in order
 *   client [options] map PATH      maps all tensors and prints their bytes, in order
 *   client sizes                   prints the sizes of the structures of fstfs.h as JSON
 *
 * A request is a line: the tensor's index and, for a strided slice of it, "start:stop:step" for
 * each dimension. On failure prints the errno and fstfs_error() to standard error and exits with 1.
 *
 * -m BYTES  memory      -u  no io_uring     -d  no O_DIRECT     -s  no_source
 * -a        allocate by callback            -t N  N threads read all requests concurrently
 * -A        as -a, at addresses that equal the offset in the file modulo 4096
 * -w OUT,IN  after opening, write a line to descriptor OUT and wait for one on IN
 * -x        at the end, print the status as JSON to standard error
 */
#include "fstfs.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fstfs_checkpoint *checkpoint;
static int threads = 1, allocating, placing;

#define BLOCK 4096
#define GUARD 0xa5 /* fills the memory before and after the requested bytes */

static void __attribute__((noreturn)) die(int error)
{
    fprintf(stderr, "%d %s\n", -error, fstfs_error());
    exit(1);
}

static void
print_text(const char *text, size_t length)
{
    putchar('"');
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == '"' || text[i] == '\\')
            printf("\\u%04x", (unsigned char)text[i]);
        else
            putchar(text[i]);
    }
    putchar('"');
}

static void
print_tensor(const struct fstfs_tensor *tensor)
{
    printf("{\"name\":");
    print_text(tensor->name, tensor->name_length);
    printf(",\"dtype\":\"%s\",\"bits\":%u,\"shape\":[", tensor->dtype, tensor->bits);
    for (unsigned d = 0; d < tensor->rank; d++)
        printf("%s%" PRIu64, d ? "," : "", tensor->shape[d]);
    printf("],\"size\":%" PRIu64 ",\"offset\":%" PRIu64 ",\"file\":", tensor->size, tensor->offset);
    print_text(tensor->file, strlen(tensor->file));
    printf("}");
}

static void
list(void)
{
    const char *through = fstfs_through_mount(checkpoint);
    const struct fstfs_metadata *pair;

    printf("{\"tensors\":[");
    for (size_t i = 0; i < fstfs_count(checkpoint); i++) {
        if (i)
            putchar(',');
        print_tensor(fstfs_tensor(checkpoint, i));
    }
    printf("],\"metadata\":{");
    for (size_t i = 0; (pair = fstfs_metadata(checkpoint, i)); i++) {
        if (i)
            putchar(',');
        print_text(pair->key, pair->key_length);
        putchar(':');
        print_text(pair->value, pair->value_length);
    }
    printf("},\"through_mount\":");
    if (through)
        print_text(through, strlen(through));
    else
        printf("null");
    printf("}\n");
}

struct work {
    struct fstfs_request *requests;
    uint64_t *sizes;
    size_t count;
    uint64_t reported;
    pthread_t thread;
};

static void
add_request(struct work *work, char *line)
{
    struct fstfs_slice *slices = NULL;
    struct fstfs_request *request;
    char *end;
    const struct fstfs_tensor *tensor = fstfs_tensor(checkpoint, strtoull(line, &end, 10));

    if (*end == ' ')
        slices = calloc(tensor->rank + 1, sizeof(*slices));
    for (unsigned d = 0; slices && d < tensor->rank; d++) {
        slices[d].start = strtoull(end + 1, &end, 10);
        slices[d].stop = strtoull(end + 1, &end, 10);
        slices[d].step = strtoull(end + 1, &end, 10);
    }
    work->requests = realloc(work->requests, (work->count + 1) * sizeof(*work->requests));
    work->sizes = realloc(work->sizes, (work->count + 1) * sizeof(*work->sizes));
    request = &work->requests[work->count];
    *request = (struct fstfs_request){.tensor = tensor, .slices = slices};
    int error = fstfs_request_size(request, &work->sizes[work->count]);
    if (error)
        die(error);
    work->count++;
}

/* The offset in the file of the first byte of the request. */
static uint64_t
offset_of(const struct fstfs_request *request)
{
    const struct fstfs_tensor *tensor = request->tensor;
    uint64_t stride = tensor->size, start = tensor->offset;

    for (unsigned d = 0; request->slices && d < tensor->rank && tensor->shape[d] > 0; d++) {
        stride /= tensor->shape[d];
        start += request->slices[d].start * stride;
    }
    return start;
}

/* Bytes to allocate for a request of `size` bytes with guard blocks before and after it. */
static size_t
room_for(uint64_t size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK + 3 * BLOCK;
}

static void *
allocate(void *arg, size_t place, uint64_t size)
{
    const struct work *work = arg;
    char *memory;

    if (size != work->sizes[place])
        return NULL;
    if (!placing)
        return malloc(size);
    memory = aligned_alloc(BLOCK, room_for(size));
    memset(memory, GUARD, room_for(size));
    return memory + BLOCK + offset_of(&work->requests[place]) % BLOCK;
}

/* Frees the memory of a request, and checks that the guards around it are unchanged. */
static void
free_memory(const struct fstfs_request *request, uint64_t size)
{
    char *memory;

    if (!placing || size == 0) {
        free(request->to);
        return;
    }
    memory = (char *)request->to - offset_of(request) % BLOCK - BLOCK;
    for (size_t i = 0; i < room_for(size); i++)
        if ((memory + i < (char *)request->to || memory + i >= (char *)request->to + size) &&
            memory[i] != (char)GUARD)
            abort();
    free(memory);
}

static int
progress(void *arg, uint64_t done, uint64_t total)
{
    struct work *work = arg;

    if (done < work->reported || done > total)
        abort();
    work->reported = done;
    return 0;
}

static void *
read_all(void *arg)
{
    struct work *work = arg;
    struct fstfs_read_options options = {
        .allocate = allocating ? allocate : NULL, .progress = progress, .arg = work};
    int error;

    for (size_t i = 0; !allocating && i < work->count; i++)
        work->requests[i].to = malloc(work->sizes[i] + 1);
    error = fstfs_read(checkpoint, work->requests, work->count, &options);
    if (error)
        die(error);
    return NULL;
}

static void
read_requests(void)
{
    struct work *works = calloc((size_t)threads, sizeof(*works)), *work = &works[0];
    char *line = NULL;
    size_t size = 0;

    work->requests = calloc(1, sizeof(*work->requests));
    while (getline(&line, &size, stdin) > 0)
        add_request(work, line);
    free(line);
    for (int i = 1; i < threads; i++) {
        works[i] = *work;
        works[i].requests = malloc((work->count + 1) * sizeof(*work->requests));
        memcpy(works[i].requests, work->requests, work->count * sizeof(*work->requests));
        pthread_create(&works[i].thread, NULL, read_all, &works[i]);
    }
    read_all(work);
    for (int i = 1; i < threads; i++)
        pthread_join(works[i].thread, NULL);
    for (size_t j = 0; j < work->count; j++)
        if (work->sizes[j] > 0)
            fwrite(work->requests[j].to, 1, work->sizes[j], stdout);
    for (int i = 0; i < threads; i++) {
        for (size_t j = 0; j < work->count; j++) {
            if (work->sizes[j] > 0 &&
                memcmp(works[i].requests[j].to, work->requests[j].to, work->sizes[j]) != 0)
                abort();
            if (i > 0)
                free_memory(&works[i].requests[j], work->sizes[j]);
        }
        if (i > 0)
            free(works[i].requests);
    }
    for (size_t j = 0; j < work->count; j++) {
        free_memory(&work->requests[j], work->sizes[j]);
        free((void *)work->requests[j].slices);
    }
    free(work->requests);
    free(work->sizes);
    free(works);
}

static void
map_all(void)
{
    for (size_t i = 0; i < fstfs_count(checkpoint); i++) {
        const struct fstfs_tensor *tensor = fstfs_tensor(checkpoint, i);
        const void *bytes = NULL;
        int error = fstfs_map(checkpoint, tensor, NULL, &bytes);

        if (error)
            die(error);
        if (!bytes)
            abort();
        fwrite(bytes, 1, tensor->size, stdout);
    }
}

/* Other languages declare the structures again; the Python tests compare the sizes. */
static void
print_sizes(void)
{
    printf("{\"fstfs_tensor\":%zu,\"fstfs_metadata\":%zu,\"fstfs_slice\":%zu,"
           "\"fstfs_request\":%zu,\"fstfs_read_options\":%zu,\"fstfs_options\":%zu}\n",
           sizeof(struct fstfs_tensor), sizeof(struct fstfs_metadata), sizeof(struct fstfs_slice),
           sizeof(struct fstfs_request), sizeof(struct fstfs_read_options),
           sizeof(struct fstfs_options));
}

int
main(int argc, char **argv)
{
    struct fstfs_options options = {0};
    int option, error, waiting = 0, status = 0, ready, go;
    struct fstfs *fstfs;
    char text[4096];

    while ((option = getopt(argc, argv, "m:udsaAt:w:x")) != -1) {
        switch (option) {
        case 'm':
            options.memory = strtoull(optarg, NULL, 10);
            break;
        case 'u':
            options.no_uring = 1;
            break;
        case 'd':
            options.no_direct = 1;
            break;
        case 's':
            options.no_source = 1;
            break;
        case 'A':
            placing = 1;
            allocating = 1;
            break;
        case 'a':
            allocating = 1;
            break;
        case 't':
            threads = atoi(optarg);
            break;
        case 'w':
            waiting = sscanf(optarg, "%d,%d", &ready, &go) == 2;
            break;
        case 'x':
            status = 1;
            break;
        default:
            return 2;
        }
    }
    if (argc - optind == 1 && strcmp(argv[optind], "sizes") == 0) {
        print_sizes();
        return 0;
    }
    if (argc - optind != 2)
        return 2;
    error = fstfs_new(&options, &fstfs);
    if (!error)
        error = fstfs_open(fstfs, argv[optind + 1], &checkpoint);
    if (error)
        die(error);
    if (waiting) {
        /* Tells the test that the file is open, so that it can change the file. */
        if (write(ready, "\n", 1) != 1 || close(ready) < 0 || read(go, text, 1) < 0)
            return 2;
    }
    if (strcmp(argv[optind], "list") == 0)
        list();
    else if (strcmp(argv[optind], "map") == 0)
        map_all();
    else
        read_requests();
    if (status && fstfs_status(fstfs, text, sizeof(text)) > 0)
        fprintf(stderr, "%s\n", text);
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    return 0;
}
