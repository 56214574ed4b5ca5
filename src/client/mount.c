/* SPDX-License-Identifier: Apache-2.0 */
#include "client/mount.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Whether a line of mountinfo is of this device, and a mount of fstfs. */
static bool
line_is_ours(const char *line, unsigned device_major, unsigned device_minor)
{
    unsigned line_major, line_minor;
    const char *type = strstr(line, " - ");

    return type && strncmp(type, " - fuse.fstfs ", 14) == 0 &&
           sscanf(line, "%*s %*s %u:%u", &line_major, &line_minor) == 2 &&
           line_major == device_major && line_minor == device_minor;
}

bool
mount_is_ours(const char *path)
{
    FILE *mounts;
    struct statfs fs;
    struct stat st;
    bool found = false;
    char *line = NULL;
    size_t size = 0;

    if (statfs(path, &fs) < 0 || fs.f_type != FUSE_SUPER_MAGIC || stat(path, &st) < 0)
        return false;
    mounts = fopen("/proc/self/mountinfo", "re");
    if (!mounts)
        return false;
    while (!found && getline(&line, &size, mounts) > 0)
        found = line_is_ours(line, major(st.st_dev), minor(st.st_dev));
    free(line);
    fclose(mounts);
    return found;
}

errint_t
mount_xattr(const char *path, const char *name, char **value, size_t *length)
{
    ssize_t size = getxattr(path, name, NULL, 0);
    ssize_t got = -1;

    if (size < 0)
        return errno == ENOTSUP ? -ENODATA : -errno;
    *value = malloc((size_t)size + 1);
    if (!*value)
        return -ENOMEM;
    got = getxattr(path, name, *value, (size_t)size);
    if (got < 0) {
        free(*value);
        *value = NULL;
        return -errno;
    }
    (*value)[got] = '\0';
    *length = (size_t)got;
    return 0;
}

static errint_t
json_xattr(const char *path, const char *name, cJSON **json)
{
    size_t length = 0;
    char *text = NULL;
    errint_t error = mount_xattr(path, name, &text, &length);

    if (error)
        return error;
    *json = cJSON_ParseWithLength(text, length);
    free(text);
    return *json ? 0 : -EBADMSG;
}

static const char *
text_member(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static int
hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

/* A name that is there as text, or as `hex` where it is not UTF-8; malloc'ed. */
static errint_t
name_member(const cJSON *object, const char *name, const char *hex, char **out)
{
    const char *text = text_member(object, name);
    size_t length;

    if (text) {
        *out = strdup(text);
        return *out ? 0 : -ENOMEM;
    }
    text = text_member(object, hex);
    length = text ? strlen(text) / 2 : 0;
    if (length == 0 || text[2 * length])
        return -EBADMSG;
    *out = calloc(1, length + 1);
    if (!*out)
        return -ENOMEM;
    for (size_t i = 0; i < length; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        if (high < 0 || low < 0 || high + low == 0) {
            free(*out);
            *out = NULL;
            return -EBADMSG;
        }
        (*out)[i] = (char)(16 * high + low);
    }
    return 0;
}

static bool
number_member(const cJSON *object, const char *name, uint64_t *number)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53)
        return false;
    *number = (uint64_t)item->valuedouble;
    return true;
}

static bool
version_member(const cJSON *object, uint64_t *version)
{
    const char *text = text_member(object, "version");
    char *end;

    if (!text || strlen(text) != 16)
        return false;
    *version = strtoull(text, &end, 16);
    return *end == '\0';
}

errint_t
mount_extent(const char *path, struct mount_extent *extent)
{
    cJSON *json;
    const cJSON *first;
    errint_t error = json_xattr(path, "user.fstfs.extents", &json);

    if (error)
        return error;
    first = cJSON_GetArrayItem(json, 0);
    if (cJSON_GetArraySize(json) != 1 || !number_member(first, "offset", &extent->offset) ||
        !number_member(first, "length", &extent->length) ||
        !version_member(first, &extent->version))
        error = -EBADMSG;
    else
        error = name_member(first, "path", "path_hex", &extent->path);
    cJSON_Delete(json);
    return error;
}

errint_t
mount_origin(const char *path, struct mount_origin *origin)
{
    cJSON *json;
    errint_t error = json_xattr(path, "user.fstfs.source", &json);

    if (error)
        return error;
    *origin = (struct mount_origin){0};
    if (!version_member(json, &origin->version))
        error = -EBADMSG;
    if (!error)
        error = name_member(json, "directory", "directory_hex", &origin->directory);
    if (!error)
        error = name_member(json, "checkpoint", "checkpoint_hex", &origin->stem);
    cJSON_Delete(json);
    if (error)
        mount_origin_free(origin);
    return error;
}

void
mount_origin_free(struct mount_origin *origin)
{
    free(origin->directory);
    free(origin->stem);
    origin->directory = origin->stem = NULL;
}

errint_t
mount_look_below(const struct mount_extent *extent, struct file_identity *identity,
                 struct reason *why)
{
    int fd = open(extent->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    errint_t error;

    *identity = (struct file_identity){0};
    if (fd < 0)
        return reason_set(why, -errno, "Source", "%s: %s", extent->path, strerror(errno));
    error = file_identity_from_fd(identity, fd);
    close(fd);
    if (error)
        return reason_set(why, error, "Source", "%s: %s", extent->path, strerror(-error));
    if (file_identity_hash(identity, 0) != extent->version)
        return reason_set(why, -ESTALE, "Source", "%s: not the file that the mount shows",
                          extent->path);
    return 0;
}
