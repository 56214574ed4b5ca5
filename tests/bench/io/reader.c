/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed readers of the bench: reads what a plan says, in its order, as one
 * kind of loader would, and prints how long that took.
 *
 *   reader [-b BLOCK] [-d DEPTH] [-t THREADS] [-p PROCESSES] [-a] KIND PLAN
 *
 * KIND  read    every file opened once; pread of BLOCK bytes
 *       mmap    every file mapped once; a byte of each page touched
 *       copy    every file mapped once; BLOCK bytes copied at a time
 *       file    each segment's file opened, read of BLOCK bytes, closed
 *       direct  as read, with O_DIRECT and DEPTH reads in flight (io_uring)
 * PLAN  a file of lines "OFFSET LENGTH PATH", one for each segment
 *
 * Segments are claimed in order by all threads of all processes together; with
 * -a every process reads all of the plan, its threads sharing that. The clock
 * starts when all are there with buffers touched, before files are opened.
 *
 * Prints one JSON object: seconds, bytes, and a sum of one byte each 4096 from
 * a segment's start and its last byte, which is the same wherever the segment lies.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u
#define PROCESSES_MOST 64

struct file {
    char *path;
    int fd;
    const unsigned char *map;
    size_t size;
};

struct segment {
    uint64_t offset;
    uint64_t length;
    size_t file;
};

enum kind { KIND_READ, KIND_MMAP, KIND_COPY, KIND_FILE, KIND_DIRECT };

/* What processes share. */
struct shared {
    pthread_barrier_t start;
    atomic_size_t next[PROCESSES_MOST]; /* only [0] without -a */
    _Atomic uint64_t sum;
    _Atomic uint64_t ended; /* nanoseconds: when the last thread was done */
    _Atomic uint64_t started; /* when the first thread passed the barrier */
};

static enum kind kind;
static size_t block = 1 << 20;
static unsigned depth = 8;
static struct file *files;
static size_t file_count;
static struct segment *segments;
static size_t segment_count;
static struct shared *shared;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("reader: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(1);
}

static uint64_t
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *
allocate(size_t size)
{
    void *p = aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE);

    if (!p)
        die("no memory");
    memset(p, 0, size);
    return p;
}

/* The place of a path in files[]; segments of one file come mostly together. */
static size_t
file_of(const char *path)
{
    for (size_t i = file_count; i-- > 0;) {
        if (strcmp(files[i].path, path) == 0)
            return i;
    }
    if ((file_count & (file_count + 1)) == 0) {
        files = realloc(files, sizeof(*files) * (file_count + 1) * 2);
        if (!files)
            die("no memory");
    }
    files[file_count] = (struct file){.path = strdup(path), .fd = -1};
    return file_count++;
}

static void
load_plan(const char *name)
{
    FILE *plan = fopen(name, "r");
    char *line = NULL;
    size_t size = 0, space = 0;

    if (!plan)
        die("%s: %s", name, strerror(errno));
    while (getline(&line, &size, plan) > 0) {
        struct segment s = {0};
        int at = 0;

        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%" SCNu64 " %" SCNu64 " %n", &s.offset, &s.length, &at) != 2 || at == 0)
            die("%s: bad line: %s", name, line);
        if (s.length == 0)
            continue;
        s.file = file_of(line + at);
        if (segment_count == space) {
            space = space * 2 + 64;
            segments = realloc(segments, space * sizeof(*segments));
            if (!segments)
                die("no memory");
        }
        segments[segment_count++] = s;
    }
    free(line);
    fclose(plan);
}

/* Once in each process, by the first thread that needs it. */
static void
open_files(void)
{
    for (size_t i = 0; i < file_count; i++) {
        struct file *f = &files[i];
        struct stat st;

        f->fd = open(f->path, O_RDONLY | O_CLOEXEC | (kind == KIND_DIRECT ? O_DIRECT : 0));
        if (f->fd < 0 || fstat(f->fd, &st) < 0)
            die("%s: %s", f->path, strerror(errno));
        f->size = (size_t)st.st_size;
        if (kind != KIND_MMAP && kind != KIND_COPY)
            continue;
        f->map = mmap(NULL, f->size, PROT_READ, MAP_SHARED, f->fd, 0);
        if (f->map == MAP_FAILED)
            die("mmap %s: %s", f->path, strerror(errno));
    }
}

/* The bytes at data[0, length) lie `at` into a segment of `whole` bytes. */
static uint64_t
sum_of(const unsigned char *data, uint64_t at, uint64_t length, uint64_t whole)
{
    uint64_t sum = 0;

    for (uint64_t i = (PAGE - at % PAGE) % PAGE; i < length; i += PAGE)
        sum += data[i];
    if (at + length == whole)
        sum += data[length - 1];
    return sum;
}

static uint64_t
read_segment(const struct segment *s, unsigned char *buffer)
{
    const struct file *f = &files[s->file];
    uint64_t sum = 0, at = 0;

    while (at < s->length) {
        size_t want = s->length - at < block ? (size_t)(s->length - at) : block;
        ssize_t got = pread(f->fd, buffer, want, (off_t)(s->offset + at));

        if (got <= 0)
            die("read %s at %" PRIu64 ": %s", f->path, s->offset + at,
                got < 0 ? strerror(errno) : "end of file");
        sum += sum_of(buffer, at, (uint64_t)got, s->length);
        at += (uint64_t)got;
    }
    return sum;
}

static uint64_t
read_file(const struct segment *s, unsigned char *buffer)
{
    const struct file *f = &files[s->file];
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    uint64_t sum = 0, at = 0;
    ssize_t got;

    if (fd < 0)
        die("%s: %s", f->path, strerror(errno));
    while ((got = read(fd, buffer, block)) > 0) {
        sum += sum_of(buffer, at, (uint64_t)got, s->length);
        at += (uint64_t)got;
    }
    if (got < 0 || at != s->length)
        die("read %s: %s", f->path, got < 0 ? strerror(errno) : "not the size of the plan");
    close(fd);
    return sum;
}

static uint64_t
touch(const struct segment *s)
{
    const struct file *f = &files[s->file];

    if (s->offset + s->length > f->size)
        die("%s is too short", f->path);
    return sum_of(f->map + s->offset, 0, s->length, s->length);
}

static uint64_t
copy(const struct segment *s, unsigned char *buffer)
{
    const struct file *f = &files[s->file];
    uint64_t sum = 0, at = 0;

    if (s->offset + s->length > f->size)
        die("%s is too short", f->path);
    while (at < s->length) {
        size_t piece = s->length - at < block ? (size_t)(s->length - at) : block;

        memcpy(buffer, f->map + s->offset + at, piece);
        sum += sum_of(buffer, at, piece, s->length);
        at += piece;
    }
    return sum;
}

/* One O_DIRECT read: the aligned superset of a piece of a segment. */
struct piece {
    const struct segment *segment;
    uint64_t from; /* of the file, aligned */
    size_t length; /* aligned */
    unsigned char *buffer;
};

/* What is new in a piece for its segment: neighbours share an aligned page. */
static uint64_t
finish(const struct piece *p, int got)
{
    const struct segment *s = p->segment;
    uint64_t from = p->from < s->offset ? s->offset : p->from;
    uint64_t end = s->offset + s->length;
    uint64_t to = p->from + p->length < end ? p->from + p->length : end;

    if (got < 0)
        die("direct read %s at %" PRIu64 ": %s", files[s->file].path, p->from, strerror(-got));
    if (p->from + (uint64_t)got < to)
        die("direct read %s at %" PRIu64 ": short", files[s->file].path, p->from);
    return sum_of(p->buffer + (from - p->from), from - s->offset, to - from, s->length);
}

static size_t
claim(size_t process)
{
    return atomic_fetch_add_explicit(&shared->next[process], 1, memory_order_relaxed);
}

/* The next piece of the plan in *p; false when all of it has been claimed. */
static bool
next_piece(struct piece *p, size_t process, const struct segment **s, uint64_t *at)
{
    uint64_t end;

    if (!*s) {
        size_t i = claim(process);

        if (i >= segment_count)
            return false;
        *s = &segments[i];
        *at = (*s)->offset / PAGE * PAGE;
    }
    end = ((*s)->offset + (*s)->length + PAGE - 1) / PAGE * PAGE;
    p->segment = *s;
    p->from = *at;
    p->length = end - *at < block ? (size_t)(end - *at) : block;
    *at += p->length;
    if (*at == end)
        *s = NULL;
    return true;
}

static uint64_t
read_direct(size_t process, unsigned char *buffers)
{
    struct piece *pieces = calloc(depth, sizeof(*pieces));
    struct piece **idle = calloc(depth, sizeof(struct piece *));
    const struct segment *s = NULL;
    unsigned idle_count = depth;
    struct io_uring_cqe *cqe;
    struct io_uring ring;
    uint64_t sum = 0, at = 0;
    int error = io_uring_queue_init(depth, &ring, 0);

    if (!pieces || !idle || error < 0)
        die("io_uring: %s", strerror(-error));
    for (unsigned i = 0; i < depth; i++) {
        pieces[i].buffer = buffers + i * block;
        idle[i] = &pieces[i];
    }
    for (;;) {
        while (idle_count > 0 && next_piece(idle[idle_count - 1], process, &s, &at)) {
            struct piece *p = idle[--idle_count];
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

            io_uring_prep_read(sqe, files[p->segment->file].fd, p->buffer, (unsigned)p->length,
                               p->from);
            io_uring_sqe_set_data(sqe, p);
        }
        if (idle_count == depth)
            break;
        error = io_uring_submit_and_wait(&ring, 1);
        if (error < 0 && error != -EINTR)
            die("io_uring: %s", strerror(-error));
        while (io_uring_peek_cqe(&ring, &cqe) == 0) {
            struct piece *p = io_uring_cqe_get_data(cqe);

            sum += finish(p, cqe->res);
            io_uring_cqe_seen(&ring, cqe);
            idle[idle_count++] = p;
        }
    }
    io_uring_queue_exit(&ring);
    free(pieces);
    free(idle);
    return sum;
}

static uint64_t
read_claimed(size_t process, unsigned char *buffer)
{
    uint64_t sum = 0;

    for (size_t i; (i = claim(process)) < segment_count;) {
        const struct segment *s = &segments[i];

        if (kind == KIND_MMAP)
            sum += touch(s);
        else if (kind == KIND_COPY)
            sum += copy(s, buffer);
        else if (kind == KIND_FILE)
            sum += read_file(s, buffer);
        else
            sum += read_segment(s, buffer);
    }
    return sum;
}

static void *
run_thread(void *arg)
{
    size_t process = *(const size_t *)arg;
    unsigned char *buffer = allocate(kind == KIND_DIRECT ? block * depth : block);
    uint64_t sum, time, seen = 0;

    pthread_barrier_wait(&shared->start);
    time = now();
    atomic_compare_exchange_strong(&shared->started, &seen, time);
    if (kind != KIND_FILE)
        pthread_once(&opened, open_files);
    sum = kind == KIND_DIRECT ? read_direct(process, buffer) : read_claimed(process, buffer);
    time = now();
    seen = atomic_load(&shared->ended);
    while (seen < time && !atomic_compare_exchange_weak(&shared->ended, &seen, time)) {
    }
    atomic_fetch_add(&shared->sum, sum);
    free(buffer);
    return NULL;
}

static void __attribute__((noreturn)) run_process(size_t process, unsigned threads)
{
    pthread_t *ids = calloc(threads, sizeof(*ids));

    for (unsigned i = 0; i < threads; i++) {
        if (!ids || pthread_create(&ids[i], NULL, run_thread, &process) != 0)
            die("cannot make a thread");
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    _exit(0); /* without unmapping and closing: the parent has taken the time */
}

static void
share(unsigned parties)
{
    pthread_barrierattr_t attributes;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("no memory");
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->start, &attributes, parties);
}

static unsigned long
number(const char *text)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (n == 0 || *end)
        die("not a number over 0: %s", text);
    return n;
}

static enum kind
kind_of(const char *name)
{
    static const char *const names[] = {"read", "mmap", "copy", "file", "direct"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(name, names[i]) == 0)
            return (enum kind)i;
    }
    die("no such kind of reader: %s", name);
}

int
main(int argc, char **argv)
{
    unsigned threads = 1, processes = 1;
    uint64_t bytes = 0;
    bool all = false;
    int option, status;

    while ((option = getopt(argc, argv, "b:d:t:p:a")) != -1) {
        switch (option) {
        case 'b':
            block = number(optarg);
            break;
        case 'd':
            depth = (unsigned)number(optarg);
            break;
        case 't':
            threads = (unsigned)number(optarg);
            break;
        case 'p':
            processes = (unsigned)number(optarg);
            break;
        case 'a':
            all = true;
            break;
        default:
            return 2;
        }
    }
    if (argc - optind != 2 || processes > PROCESSES_MOST || block % PAGE != 0)
        die("usage: reader [-b BLOCK] [-d DEPTH] [-t THREADS] [-p PROCESSES] [-a] KIND PLAN");
    kind = kind_of(argv[optind]);
    load_plan(argv[optind + 1]);
    share(threads * processes);
    for (unsigned i = 0; i < processes; i++) {
        pid_t child = fork();

        if (child < 0)
            die("fork: %s", strerror(errno));
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_process(all ? i : 0, threads);
        }
    }
    for (unsigned i = 0; i < processes; i++) {
        if (wait(&status) < 0 || status != 0)
            die("a reader failed");
    }
    for (size_t i = 0; i < segment_count; i++)
        bytes += segments[i].length;
    printf("{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"sum\": %" PRIu64 "}\n",
           (double)(shared->ended - shared->started) / 1e9, bytes * (all ? processes : 1),
           shared->sum);
    return 0;
}
