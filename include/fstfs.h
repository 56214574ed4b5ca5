/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfstfs: reads tensors of safetensors, PyTorch and GGUF files into host or GPU memory, as fast
 * as the storage allows.
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
 * failure fstfs_error() returns details. Threads: any thread may call any function, concurrently
 * with others, unless stated otherwise. fstfs_close(), fstfs_read_free() and fstfs_free() must be
 * the last use of their object. Processes: no object may be used in a child after
 * fork(); only fstfs_free(), fstfs_close() and fstfs_read_free() may be called there, and do
 * nothing.
 *
 * Structures keep their size and layout for as long as the library is called
 * libfstfs.so.0, so requests can be passed in arrays. The caller clears the structures that it
 * makes; new members replace words of `reserved`. If a word of `reserved` is not zero, calls return
 * -EINVAL: the program uses a member that this version of the library does not have, or has not
 * cleared the structure. Structures that the library makes may grow at their end.
 */
#ifndef FSTFS_H
#define FSTFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads, buffers, and measurements of the storage. One per process is enough. */
struct fstfs;

/* An open checkpoint: a set of tensors, of one version of their files. */
struct fstfs_checkpoint;

/* A read in flight. */
struct fstfs_read;

/* A GPU to read into. */
struct fstfs_device;

/* The library's version, "MAJOR.MINOR.PATCH". */
const char *fstfs_version(void);

/* Describes the last failure on this thread: one line, with the file, the tensor, what was found
 * and what was expected. Valid until the next failure on this thread; "" if there was none. */
const char *fstfs_error(void);

struct fstfs_options {
    uint64_t memory; /* limit of bytes for buffers; 0: 256 MiB, or an eighth of RAM if less */
    int no_uring; /* read with threads, not with io_uring */
    int no_direct; /* read through the page cache, not with O_DIRECT */
    int no_source; /* read files on a mount of fstfs through the mount */
    /*
     * Processes of this machine that load the same files, such as the ranks of one node; 0: the
     * environment variable LOCAL_WORLD_SIZE, which torchrun sets, else 1. With more than one, files
     * are read through the page cache and stay there, so that all processes together read them from
     * storage once.
     */
    uint64_t local_ranks;
    uint64_t reserved[7];
};

/* `options` may be NULL. Where the system refuses io_uring or O_DIRECT, the library falls back by
 * itself. -EINVAL: `reserved` is not zero. -ENOMEM, -EAGAIN (no threads), -EMFILE. */
int fstfs_new(const struct fstfs_options *options, struct fstfs **fstfs);

/* All checkpoints must have been closed. NULL is allowed. */
void fstfs_free(struct fstfs *fstfs);

/*
 * State and counters, as one JSON object; later versions may add members. For each fallback of the
 * engine: whether it is on and, if not, why. "memory" (the limit), "memory_used", "bytes"
 * (returned), "storage_bytes" (read for them), "storage_reads", "expired_bytes" (freed because they
 * were not read for five seconds). "devices" is a list of the devices that fstfs_device() returned;
 * each has "device" ("cuda:0"), "ring_memory" and "device_memory" (bytes of its rings in host
 * memory and in device memory), and "storage", a list of the file systems from which bytes were
 * read into it. Each of these has "number" ("259:2"), "path" (of a file on it), "backend" (the one
 * used last), and, for each better backend, a member with its name: the reason why it was not used.
 *
 * Backends, best first:
 *   "unified"   the device shares the host's memory: read like host memory
 *   "cufile"    GPUDirect: from storage to the device, then one copy within the device
 *   "ring"      into a ring of pinned host memory, then copied by one stream
 *   "pageable"  into host memory that is not pinned, then copied synchronously
 *
 * Writes at most `size` bytes with the NUL and returns the length of the whole text, as snprintf()
 * does; or -ENOMEM.
 */
int fstfs_status(struct fstfs *fstfs, char *text, size_t size);

/*
 * Opens the device "cuda:N", N being its number in the driver. The first call loads the CUDA driver
 * (libcuda.so.1); no other function loads any part of CUDA. Retains the device's primary context,
 * which the CUDA runtime and torch use too, until fstfs_free(), which also frees the device.
 * Further calls return the same device. -EINVAL: invalid name. -ENODEV: no driver, or no such
 * device. -ENOMEM. -EIO: an error of the driver.
 */
int fstfs_device(struct fstfs *fstfs, const char *name, struct fstfs_device **device);

/*
 * Opens one of:
 * - a file with any name: its tensors. The suffixes .bin, .pt, .pth and .ckpt mean PyTorch, .gguf
 *   means GGUF, and all others mean safetensors;
 * - an index, such as STEM.safetensors.index.json: the tensors of the shards that it names;
 * - a directory: the tensors of its checkpoint. If there are several, opens the one with the stem
 *   "model". If none has that stem, fails, and the message names them: open one of their files.
 *   PyTorch files do not count beside a safetensors checkpoint with the stem "model" or
 *   "diffusion_pytorch_model", or with the same stem. Beside other safetensors files, only PyTorch
 *   files that are named like weights count. Training state, such as optimizer.pt, does not count
 *   beside other checkpoints, nor do GGUF files beside safetensors or PyTorch weights;
 * - on a mount of fstfs, any of these in any view; also a checkpoint's directory in tensors/ or
 *   npy/, or a tensor file in such a directory: that tensor alone.
 *
 * Files on a mount are read from the source files below it, if root or the user of this process has
 * mounted it, and these can be opened and are the version that the mount shows; else through the
 * mount, and fstfs_through_mount() returns why. In a user namespace (a rootless container), a mount
 * with allow_other must be root's, because the number of its user may be that of another namespace.
 *
 * Headers are validated, those of safetensors by safetensors' own rules. -EBADMSG: a header is
 * invalid, a shard is missing, a tensor is in two shards, or a tensor exceeds its file. -ENOENT: no
 * such path, or no checkpoint in the directory. -ENOTUNIQ: several. -EINVAL: neither a file nor a
 * directory. -ESTALE: a file changes faster than it can be read. -ENOMEM and errors of system
 * calls.
 */
int fstfs_open(struct fstfs *fstfs, const char *path, struct fstfs_checkpoint **checkpoint);

/* All its reads must have been freed. Frees the tensors and metadata. NULL is allowed. */
void fstfs_close(struct fstfs_checkpoint *checkpoint);

/* Why the files are read through a mount of fstfs; NULL: they are not. */
const char *fstfs_through_mount(const struct fstfs_checkpoint *checkpoint);

/* A hash of the versions of all files that were opened (their devices, inodes, sizes and times).
 * Compare it after reopening a checkpoint, for example in a child after fork(), to detect that a
 * file was changed or replaced. */
uint64_t fstfs_version_hash(const struct fstfs_checkpoint *checkpoint);

/* A tensor: immutable, valid until its checkpoint is closed. */
struct fstfs_tensor {
    const char *name; /* NUL-terminated; may contain NUL */
    size_t name_length;
    const char *dtype; /* the dtype of safetensors, or the type in ggml: "BF16", "Q4_K" */
    unsigned bits; /* of one element; 0: the dtype is not known */
    unsigned rank; /* number of dimensions; 0: a scalar */
    const uint64_t *shape;
    uint64_t size; /* bytes; may be 0 */
    const char *file; /* path of the file that is read */
    uint64_t offset; /* of its first byte in that file */
};

/* The number of tensors, and each of them by its index in the order of names (as bytes). NULL: the
 * index is too large. */
size_t fstfs_count(const struct fstfs_checkpoint *checkpoint);
const struct fstfs_tensor *fstfs_tensor(const struct fstfs_checkpoint *checkpoint, size_t index);

/* The tensor of that name; NULL: there is none (and no error is set). */
const struct fstfs_tensor *fstfs_find(const struct fstfs_checkpoint *checkpoint, const char *name);

/* A pair of `__metadata__`: immutable, valid until its checkpoint is closed. */
struct fstfs_metadata {
    const char *key; /* UTF-8; NUL-terminated; may contain NUL */
    size_t key_length;
    const char *value; /* likewise */
    size_t value_length;
};

/* `__metadata__`, each pair by its index in the order of keys (as bytes). Keys whose values differ
 * between shards are omitted. NULL: the index is too large. */
const struct fstfs_metadata *fstfs_metadata(const struct fstfs_checkpoint *checkpoint,
                                            size_t index);

/* The indices start, start + step, ... below stop, of one dimension. */
struct fstfs_slice {
    uint64_t start, stop; /* start <= stop <= the dimension */
    uint64_t step; /* 0 means 1 */
};

/*
 * A tensor to be read, or a strided slice of it. The bytes are packed in row order, in the byte
 * order of the file (little-endian).
 *
 * A slice is a set of runs: bytes that are adjacent in the file. Whole rows are one run. Only the
 * blocks of 4096 bytes that contain its runs are read, and gaps of at most one block between them.
 */
struct fstfs_request {
    const struct fstfs_tensor *tensor;
    const struct fstfs_slice *slices; /* `rank` of them, used during the call; NULL: all elements */
    /*
     * Where the bytes go; NULL: memory of allocate(), which the call stores here. If the address
     * and the offset in the file are equal modulo 4096, whole blocks are read without a copy (host
     * memory only); other bytes are copied once, from buffers of the library.
     */
    void *to;
    uint64_t reserved[3];
};

/* The number of bytes that the request writes. -EINVAL: the request has no tensor, a slice exceeds
 * its dimension, or `reserved` is not zero. -ENOTSUP: a run would begin or end within a byte
 * (elements of 4 or 6 bits), or the dtype is not known and the request has slices. -ENOMEM. */
int fstfs_request_size(const struct fstfs_request *request, uint64_t *size);

struct fstfs_read_options {
    /*
     * Allocates `size` bytes, over 0, for requests[index], whose `to` is NULL. Called on the
     * caller's thread, once for each such request in their order, before anything is read. If it
     * returns NULL the call fails with -ENOMEM. The caller owns the memory even if the read fails:
     * it is then in `to` of the requests for which it was allocated.
     */
    void *(*allocate)(void *arg, size_t index, uint64_t size);
    /*
     * Called now and then and at the end, with the number of bytes read so far and the number of
     * bytes requested. Never called concurrently. Called from threads of the library and from the
     * one that starts the read, so it must be quick. The only function of the library that it may
     * call is fstfs_cancel(). If it does not return 0, the read is canceled.
     */
    int (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg; /* for both */
    /*
     * NULL: all memory is the host's. Else it is this device's: from cuMemAlloc(), cudaMalloc() or
     * torch, or managed memory; on a device that shares the host's memory (backend "unified") also
     * any host memory, but in one call all memory is host memory or none is (managed memory counts
     * as either). Synchronize with the streams that use the memory before the call. When the
     * read has ended, every stream sees the bytes.
     */
    struct fstfs_device *device;
    uint64_t reserved[8];
};

/*
 * Reads all requests, in the order of the files, and returns when all bytes are there. Requests may
 * overlap in the file, not in memory. `options` may be NULL.
 *
 * All bytes are of the version that was opened; libfstfs(3) names an exception. -ESTALE: a file was
 * changed, replaced or removed since; but if the library has already read from a file that was then
 * replaced or removed, it may continue to read its old version. -EINVAL, -ENOTSUP: a request or the
 * options are invalid, or memory is not the device's; nothing was read. -ECANCELED. -EIO and
 * others: errors of the storage, or of the device's driver. After a failure the content of the
 * memory is undefined.
 */
int fstfs_read(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
               const struct fstfs_read_options *options);

/* Like fstfs_read(), but does not wait. `requests` and `options` may be freed when it returns, the
 * memory only when the read has ended. The read must be freed. Returns errors of the requests, the
 * options and the device, and -ENOMEM; fstfs_wait() returns those of the storage. */
int fstfs_start(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
                const struct fstfs_read_options *options, struct fstfs_read **read);

/* Waits at most `milliseconds` (0: not at all; negative: without a limit) for the end of the read.
 * Returns its result, 0 or an error of fstfs_read(), or -EINPROGRESS: it has not ended. May be
 * called again. */
int fstfs_wait(struct fstfs_read *read, int milliseconds);

/* The number of requested bytes that have been read. */
uint64_t fstfs_done(const struct fstfs_read *read);

/* Cancels the read: it soon ends with -ECANCELED, unless it ends otherwise before. The memory may
 * be written until fstfs_wait() returns that it has ended. */
void fstfs_cancel(struct fstfs_read *read);

/* Cancels the read if it has not ended, waits for its end, and frees it. NULL is allowed. */
void fstfs_read_free(struct fstfs_read *read);

/*
 * Maps a tensor without a copy: `to` is the address of its `size` bytes in a read-only mapping of
 * its file, valid until the checkpoint is closed. With a device, the address is valid on the device
 * too; the device must share the host's memory and use the host's page tables (as GB10 does). The
 * alignment is that of the file, mostly 8 bytes. The pages belong to the page cache: the first
 * access may wait for storage, and if the file is truncated, an access raises SIGBUS, or a fault of
 * the device. Map only files that do not change. The address of an empty tensor (size 0) is not
 * NULL and must not be read from.
 *
 * -ENOTSUP: the device cannot read mapped files. -ESTALE: the file is not the version that
 * was opened. -EINVAL: the tensor belongs to another checkpoint. Errors of mmap(2).
 */
int fstfs_map(struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor,
              struct fstfs_device *device, const void **to);

#ifdef __cplusplus
}
#endif

#endif
