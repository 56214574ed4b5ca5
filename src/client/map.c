/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs_map(). A file is mapped as a whole when the first of its tensors is mapped, and unmapped
 * when the checkpoint is closed. The mapping is read-only, because the CUDA driver copies every
 * page that it reads from a writable private mapping.
 */
#include "client/checkpoint.h"
#include "client/error.h"
#include "client/gpu/device.h"
#include "io/descriptors.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* With the checkpoint's lock held. */
static errint_t
map_source(struct tensor_source *source)
{
    struct backing *backing = source_backing(source);
    int fd = descriptors_fresh(backing);
    void *mapping;

    if (fd < 0)
        return fd;
    mapping = mmap(NULL, backing->identity.size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (mapping == MAP_FAILED)
        return -errno;
    source->mapping = mapping;
    return 0;
}

/* The address of all empty tensors. On a mount their files may be empty, and an empty file cannot
 * be mapped. */
static const char empty_tensor;

int
fstfs_map(struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor,
          struct fstfs_device *device, const void **to)
{
    struct tensor_source *source;
    errint_t error = 0;

    if (!checkpoint_has(checkpoint, tensor))
        return fail(-EINVAL, "the tensor belongs to another checkpoint");
    if (device && !device->reads_host_pages)
        return fail(-ENOTSUP, "cuda:%d: %s", device->ordinal,
                    device->fallback.why_not[GPU_UNIFIED].text);
    if (tensor->size == 0) {
        *to = &empty_tensor;
        return 0;
    }
    source = &checkpoint->sources[((const struct client_tensor *)tensor)->source];
    pthread_mutex_lock(&checkpoint->lock);
    if (!source->mapping)
        error = map_source(source);
    pthread_mutex_unlock(&checkpoint->lock);
    if (error)
        return fail(error, "%s: %s", source->path,
                    error == -ESTALE ? "changed, replaced or removed since it was opened"
                                     : strerror(-error));
    *to = (const char *)source->mapping + tensor->offset;
    return 0;
}
