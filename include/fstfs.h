/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfstfs: tensors of safetensors files straight into memory, as fast as the
 * storage can.
 *
 *     struct fstfs *fstfs;
 *     struct fstfs_checkpoint *model;
 *     struct fstfs_request request = {0};
 *
 *     if (fstfs_new(NULL, &fstfs) < 0 || fstfs_open(fstfs, "/models/llama", &model) < 0)
 *         errx(1, "%s", fstfs_error());
 *     request.tensor = fstfs_find(model, "lm_head.weight");
 *     request.to = malloc(request.tensor->size);
 *     if (fstfs_read(model, &request, 1, NULL) < 0)
 *         errx(1, "%s", fstfs_error());
 *     fstfs_close(model);
 *     fstfs_free(fstfs);
 *
 * Units: sizes, offsets and lengths are in bytes; indices of a tensor are in
 * elements. Functions that return int return 0 or a negative errno; after a
 * failure fstfs_error() says more. Threads: every function may be called from
 * any thread, and several at once, but for fstfs_close() and fstfs_free(), which
 * must be the last use of what they end, and where it is said otherwise.
 * Processes: nothing made here may be used in a child after fork().
 *
 * Structures keep their size and layout for as long as the library is called
 * libfstfs.so.0, so requests can be passed in arrays. Those that the caller makes
 * must be zero where he sets nothing; new members take the place of `reserved`. A
 * call returns -EINVAL if these words are not zero, which means that the program
 * uses a member that this version of the library does not have, or has not cleared
 * the structure. Structures that the library makes are only pointed to, and may grow
 * at their end.
 */
#ifndef FSTFS_H
#define FSTFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads, buffers and what was learnt of the storage. One for a process is right. */
struct fstfs;

/* What was opened: a set of tensors, of one version of their files. */
struct fstfs_checkpoint;

/* A read under way. */
struct fstfs_read;

/* A GPU whose memory is read into. */
struct fstfs_device;

/* The library's version, "0.1.0". */
const char *fstfs_version(void);

/* What the last call on this thread that failed says of its failure: one line for
 * a person, with the file, the tensor, what was found and what was expected. Good
 * until the next call that fails on this thread; "" when none did. */
const char *fstfs_error(void);

struct fstfs_options {
    uint64_t memory; /* most bytes for buffers; 0: 256 MiB, or an eighth of a small machine */
    int no_uring; /* read by threads, not by io_uring */
    int no_direct; /* read through the page cache, not by O_DIRECT */
    int no_source; /* what is on a mount of fstfs is read through the mount */
    uint64_t reserved[8];
};

/* `options` may be NULL. Both ways of reading are given up by themselves where the
 * system refuses them. -EINVAL: `reserved` is not zero. -ENOMEM, -EAGAIN (no
 * threads), -EMFILE. */
int fstfs_new(const struct fstfs_options *options, struct fstfs **fstfs);

/* All that was opened must have been closed. NULL is allowed. */
void fstfs_free(struct fstfs *fstfs);

/*
 * How it reads and has read, as one JSON object of which more members may come:
 * for each way of reading whether it is on and, where it is not, why; "memory" (the
 * bound), "memory_used", "bytes" (handed out), "storage_bytes" (read for them),
 * "storage_reads", "expired_bytes" (freed because they were not read for five seconds);
 * and "devices", a list of those asked for: of each its "device"
 * ("cuda:0"), "ring_memory" and "device_memory" (bytes of its rings, in
 * host memory and in its own) and "storage", a list of the file
 * systems that were read from into it: of each its "number" ("259:2"), a "path" on it,
 * the "rung" that was last used and, by their names, why those above it were not:
 *   "unified"   the memory is the host's too: read into as such
 *   "cufile"    GPUDirect: storage to device, then once within the device
 *   "ring"      into a ring of pinned memory, and by one stream from there
 *   "pageable"  the same without pinned memory: one copy after another
 * Writes at most `size` bytes, the NUL among them, and returns the length that all of
 * it has, as snprintf() does; or -ENOMEM.
 */
int fstfs_status(struct fstfs *fstfs, char *text, size_t size);

/*
 * The device "cuda:N", with N as the driver counts them. Loads the CUDA driver
 * (libcuda.so.1) when it is first called, and keeps the device's primary context,
 * which is also that of the CUDA runtime and of torch, until fstfs_free(), which ends
 * the device. Asked again, it gives the same. No other function loads anything of
 * CUDA. -EINVAL: not such a name. -ENODEV: no driver, or it has no such device.
 * -ENOMEM. -EIO: what the driver said.
 */
int fstfs_device(struct fstfs *fstfs, const char *name, struct fstfs_device **device);

/*
 * Opens one of:
 *   a safetensors file, whatever it is called: the tensors of that file;
 *   an index, STEM.safetensors.index.json: the tensors of the shards it names;
 *   a directory: the tensors of the one checkpoint in it. Where there are several
 *     it is the one with the stem "model", else an error that names them: open one
 *     of their files;
 *   on a mount of fstfs, any of these in any view, a checkpoint's directory in
 *     tensors/ or npy/, or a tensor's file in one of them: that tensor alone.
 *
 * What is on a mount is read from the files below it, past the mount, where they
 * can be opened and are the version that the mount shows; else through the mount:
 * fstfs_through_mount() says why.
 *
 * Headers are read and checked by safetensors' own rules. -EBADMSG: a file breaks
 * one, a shard is missing, or a tensor stands in two shards. -ENOENT: no such path,
 * or no checkpoint in the directory. -ENOTUNIQ: several. -EINVAL: not a file of
 * tensors. -ENOMEM and whatever the system says.
 */
int fstfs_open(struct fstfs *fstfs, const char *path, struct fstfs_checkpoint **checkpoint);

/* Every read of it must have been freed. NULL is allowed. Ends the tensors. */
void fstfs_close(struct fstfs_checkpoint *checkpoint);

/* NULL: the files themselves are read; else why they are read through the mount. */
const char *fstfs_through_mount(const struct fstfs_checkpoint *checkpoint);

/* A tensor: immutable, and the checkpoint's, until it is closed. */
struct fstfs_tensor {
    const char *name; /* terminated; may hold NUL before its end */
    size_t name_length;
    const char *dtype; /* as its file says: "BF16" */
    unsigned bits; /* of one element; 0: a dtype that this library does not know */
    unsigned rank; /* dimensions; 0: a scalar */
    const uint64_t *shape;
    uint64_t size; /* of all of it; may be 0 */
    const char *file; /* the path of the file that is read for it */
    uint64_t offset; /* of its first byte in that file */
};

/* How many, and each by its place in the order of names (bytes): NULL past the last. */
size_t fstfs_count(const struct fstfs_checkpoint *checkpoint);
const struct fstfs_tensor *fstfs_tensor(const struct fstfs_checkpoint *checkpoint, size_t place);

/* The tensor of that name; NULL where there is none (no error is set). */
const struct fstfs_tensor *fstfs_find(const struct fstfs_checkpoint *checkpoint, const char *name);

/* A pair of `__metadata__`: immutable, and the checkpoint's, until it is closed. */
struct fstfs_metadata {
    const char *key; /* UTF-8; terminated; may hold NUL before its end */
    size_t key_length;
    const char *value; /* likewise */
    size_t value_length;
};

/* `__metadata__`, where all shards that have the key agree, each pair by its place in the order of
 * keys (bytes): NULL past the last. */
const struct fstfs_metadata *fstfs_metadata(const struct fstfs_checkpoint *checkpoint,
                                            size_t place);

/* What is taken along one dimension: start, start + step, ... below stop. Never grows. */
struct fstfs_slice {
    uint64_t start, stop; /* start <= stop <= the dimension */
    uint64_t step; /* 0 means 1 */
};

/*
 * One tensor to be read, or a box of it. The bytes come packed, in row order, as
 * the file has them (little-endian).
 *
 * A box reads only the blocks of 4096 bytes that hold its bytes, and at most one
 * block between two runs of it. Rows of a tensor are one run.
 */
struct fstfs_request {
    const struct fstfs_tensor *tensor;
    const struct fstfs_slice *slices; /* `rank` of them, read during the call only; NULL: all */
    /*
     * Where the bytes go; NULL: the call's `allocate` is asked, and sets it. Where the address
     * of the first is modulo 4096 what its offset in the file is, whole blocks of host memory
     * are read into as they are; else bytes are copied once, from buffers of the library.
     */
    void *to;
    uint64_t reserved[3];
};

/* The bytes that the request will write. -EINVAL: the box is not within the tensor, or `reserved`
 * is not zero. -ENOTSUP: it would begin or end within a byte (elements of 4 or 6 bits), or the
 * dtype is not known. */
int fstfs_request_size(const struct fstfs_request *request, uint64_t *size);

struct fstfs_read_options {
    /*
     * Memory for requests[place], whose `to` is NULL: `size` bytes, over 0. Called
     * by fstfs_read() or fstfs_start() itself, once for each such request, in their
     * order, before anything is read. NULL fails the call with -ENOMEM. The memory
     * is the caller's, whatever becomes of the read: after a failure it is in `to`
     * of those requests for which it was given.
     */
    void *(*allocate)(void *arg, size_t place, uint64_t size);
    /*
     * Told how many of the bytes asked for have come, now and then and at the end;
     * never twice at once. Called from threads of the library and from that which
     * starts the read, so it must be quick, and call nothing of the library but
     * fstfs_cancel(). Other than 0 cancels the read.
     */
    int (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg; /* for both */
    /*
     * NULL: `to`, and what `allocate` gives, is host memory. Else it is of this device:
     * from cuMemAlloc(), cudaMalloc(), torch, or managed memory; on a device that shares
     * its memory with the host (rung "unified") also any host memory. Nothing may be
     * under way in it: synchronise with the streams that used it before the call. When
     * the read has ended the bytes are there for every stream.
     */
    struct fstfs_device *device;
    uint64_t reserved[8];
};

/*
 * Reads all requests, in whatever order the storage is fastest, and returns when
 * every byte is there. Requests may overlap in the file, not in memory. `options`
 * may be NULL.
 *
 * All bytes are of the version that was opened: -ESTALE, when a file has changed
 * since, has been replaced or removed. -EINVAL, -ENOTSUP: a request or the options are wrong, or
 * memory is not of the device, and nothing was read. -ECANCELED. -EIO and others: what
 * the storage said, or the device's driver. After a failure the memory holds any bytes.
 */
int fstfs_read(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
               const struct fstfs_read_options *options);

/* The same without waiting: `requests` and `options` may go when it returns, memory
 * must stay until the read has ended. The read must be freed. Errors: those of the
 * requests, and -ENOMEM; of the storage, fstfs_wait() tells. */
int fstfs_start(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
                const struct fstfs_read_options *options, struct fstfs_read **read);

/* Waits at most `milliseconds` (0: not at all; negative: as long as it takes) for
 * the end of the read and returns how it ended: 0 or an error of fstfs_read(); or
 * -EINPROGRESS: it has not ended. May be asked again. */
int fstfs_wait(struct fstfs_read *read, int milliseconds);

/* Bytes that have come, of those asked for. */
uint64_t fstfs_done(const struct fstfs_read *read);

/* Asks the read to end with -ECANCELED, soon; it may have ended otherwise by then.
 * Until fstfs_wait() says that it has ended the memory may be written. */
void fstfs_cancel(struct fstfs_read *read);

/* Cancels the read if it is under way, waits for its end, and frees it. NULL is
 * allowed. */
void fstfs_read_free(struct fstfs_read *read);

/*
 * The tensor where it lies, without a copy: `to` is the address of its `size` bytes in
 * a read-only mapping of its file, until the checkpoint is closed. With a device it is
 * for it as well as for the host: only for one that reads host memory through the
 * host's own page tables and shares it (as GB10 does). The address is aligned as the file is: to
 * 8 bytes, mostly. Its pages are the page cache's: the first touch may wait for the
 * storage, and whoever truncates the file kills who touches them (SIGBUS; a fault of
 * the device): map only files that are left alone. The address of an empty tensor (size 0) is not
 * NULL and must not be read from; its file is not looked at.
 *
 * -ENOTSUP: the device cannot; fstfs_error() says why. -ESTALE: the file is not the
 * version that was opened. -EINVAL: a tensor of another checkpoint. What mmap() says.
 */
int fstfs_map(struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor,
              struct fstfs_device *device, const void **to);

#ifdef __cplusplus
}
#endif

#endif
