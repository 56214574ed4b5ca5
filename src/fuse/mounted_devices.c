/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/mounted_devices.h"

#include "base/array.h"
#include "base/mountinfo.h"
#include "base/user_namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The file system of a mount. */
struct mounted_device {
    dev_t device;
    bool is_proc, is_fuse, is_fstfs;
    bool is_private; /* only the user who mounted it may access it */
    uid_t user; /* if it is FUSE: see struct fuse_owner */
};

static int table = -1; /* /proc/self/mountinfo; constant once opened */
static bool has_host_ids; /* IDs have the numbers of the initial user namespace; constant */

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mounted_device *devices; /* sorted by device; guarded by devices_lock, as the next */
static size_t device_count;
static bool is_current; /* the devices were read, and the mounts have not changed since */

void
mounted_devices_init(void)
{
    table = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    has_host_ids = user_namespace_is_initial();
}

static int
compare_devices(const void *a, const void *b)
{
    const struct mounted_device *x = a, *y = b;

    return (x->device > y->device) - (x->device < y->device);
}

static struct mounted_device
device_of_mount(const struct mountinfo *mount)
{
    struct mounted_device device = {.device = makedev(mount->major, mount->minor)};
    struct fuse_owner owner;

    device.is_proc = strcmp(mount->type, "proc") == 0;
    device.is_fstfs = strcmp(mount->type, "fuse.fstfs") == 0;
    device.is_fuse = mountinfo_fuse_owner(mount, &owner);
    if (device.is_fuse) {
        device.is_private = !owner.allow_other;
        device.user = owner.user;
    }
    return device;
}

/* Returns false if the table cannot be read, or memory is exhausted. */
static bool
devices_read(void)
{
    int copy = table < 0 ? -1 : fcntl(table, F_DUPFD_CLOEXEC, 0);
    FILE *lines = copy < 0 ? NULL : fdopen(copy, "r");
    struct mountinfo mount;
    bool added = true;

    device_count = 0;
    if (!lines) {
        if (copy >= 0)
            close(copy);
        return false;
    }
    rewind(lines);
    while (added && mountinfo_next(lines, &mount)) {
        added = array_add(devices, device_count, device_of_mount(&mount));
        mountinfo_free(&mount);
    }
    fclose(lines);
    if (!added)
        device_count = 0;
    else if (device_count)
        qsort(devices, device_count, sizeof(*devices), compare_devices);
    return added;
}

/* Reads the devices again if mounts have changed. */
static void
devices_update(void)
{
    struct pollfd changes = {.fd = table, .events = POLLPRI};

    if (table >= 0 && poll(&changes, 1, 0) != 0)
        is_current = false;
    if (!is_current)
        is_current = devices_read();
}

/* Returns false if the device is not in the table. */
static bool
devices_find(dev_t device, struct mounted_device *out)
{
    const struct mounted_device key = {.device = device}, *found;

    pthread_mutex_lock(&devices_lock);
    devices_update();
    found = device_count ? bsearch(&key, devices, device_count, sizeof(*devices), compare_devices)
                         : NULL;
    if (found)
        *out = *found;
    pthread_mutex_unlock(&devices_lock);
    return found != NULL;
}

static bool
is_on_fuse(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) < 0 || fs.f_type == FUSE_SUPER_MAGIC;
}

errint_t
mounted_devices_permit(int fd, dev_t device, uid_t uid, gid_t gid, bool by_modes)
{
    struct mounted_device mounted;

    if (!devices_find(device, &mounted))
        return is_on_fuse(fd) ? -EACCES : 0;
    if (by_modes && mounted.is_fstfs)
        return -EACCES;
    return !mounted.is_private || (uid == getuid() && gid == getgid()) ? 0 : -EACCES;
}

bool
mounted_devices_permit_link(int fd, dev_t device)
{
    struct mounted_device mounted;

    if (!devices_find(device, &mounted))
        return !is_on_fuse(fd);
    return !mounted.is_proc && !mounted.is_private;
}

uid_t
mounted_devices_owner(uid_t owner, int fd, dev_t device)
{
    struct mounted_device mounted;

    if (major(device) != 0)
        return owner;
    if (!devices_find(device, &mounted))
        return is_on_fuse(fd) ? (uid_t)-1 : owner;
    if (!mounted.is_fuse || mounted.user == 0)
        return owner;
    return has_host_ids ? mounted.user : (uid_t)-1;
}
