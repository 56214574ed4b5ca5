/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned FILE: a writer that no longer has the file open.
 *
 * Maps FILE, registers the mapping as a fixed buffer of an io_uring, unmaps and closes the file,
 * and prints "ready". Then it reads standard input into the buffer, and so into FILE, until the
 * buffer is full. The exit status is 2 if the kernel refuses the buffer.
 */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int
read_into(struct io_uring *ring, void *data, size_t size)
{
    struct io_uring_cqe *cqe;
    size_t done = 0;

    while (done < size) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

        io_uring_prep_read_fixed(sqe, STDIN_FILENO, (char *)data + done, (unsigned)(size - done), 0,
                                 0);
        if (io_uring_submit_and_wait(ring, 1) < 0 || io_uring_wait_cqe(ring, &cqe) < 0 ||
            cqe->res <= 0)
            return -1;
        done += (size_t)cqe->res;
        io_uring_cqe_seen(ring, cqe);
    }
    return 0;
}

int
main(int argc, char **argv)
{
    const int fd = argc == 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
    struct io_uring ring;
    struct iovec buffer;
    struct stat st;
    int error;

    if (fd < 0 || fstat(fd, &st) < 0)
        return 1;
    buffer.iov_len = (size_t)st.st_size;
    buffer.iov_base = mmap(NULL, buffer.iov_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (buffer.iov_base == MAP_FAILED)
        return 1;
    error = io_uring_queue_init(1, &ring, 0);
    if (!error)
        error = io_uring_register_buffers(&ring, &buffer, 1);
    if (error) {
        fprintf(stderr, "%s\n", strerror(-error));
        return 2;
    }
    munmap(buffer.iov_base, buffer.iov_len);
    close(fd);
    puts("ready");
    fflush(stdout);
    return read_into(&ring, buffer.iov_base, buffer.iov_len) < 0;
}
