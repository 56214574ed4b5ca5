/* SPDX-License-Identifier: Apache-2.0 */
#include "client/mount.h"

#include "base/mountinfo.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

bool
mount_is_fstfs(const char *path)
{
    struct fuse_owner owner;

    return mount_find_owner(path, &owner);
}

bool
mount_find_owner(const char *path, struct fuse_owner *owner)
{
    struct mountinfo mount;
    struct statfs fs;
    struct stat st;
    bool found = false;
    FILE *mounts;

    if (statfs(path, &fs) < 0 || fs.f_type != FUSE_SUPER_MAGIC || stat(path, &st) < 0)
        return false;
    mounts = mountinfo_open();
    if (!mounts)
        return false;
    while (!found && mountinfo_next(mounts, &mount)) {
        found = strcmp(mount.type, "fuse.fstfs") == 0 && mount.major == major(st.st_dev) &&
                mount.minor == minor(st.st_dev) && mountinfo_fuse_owner(&mount, owner);
        mountinfo_free(&mount);
    }
    fclose(mounts);
    return found;
}

int
mount_open(const char *path)
{
    int fd = open(path, O_PATH | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

errint_t
mount_read_xattr(int fd, const char *name, char **value, size_t *length)
{
    char path[32]; /* fgetxattr(2) does not take descriptors that were opened with O_PATH */
    char small[1024]; /* enough for most values: one request to the mount */
    ssize_t got;
    bool is_large;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    got = getxattr(path, name, small, sizeof(small));
    is_large = got < 0 && errno == ERANGE;
    if (got < 0 && !is_large)
        return errno == ENOTSUP ? -ENODATA : -errno;
    *value = malloc((is_large ? XATTR_SIZE_MAX : (size_t)got) + 1);
    if (!*value)
        return -ENOMEM;
    if (is_large)
        got = getxattr(path, name, *value, XATTR_SIZE_MAX);
    else
        memcpy(*value, small, (size_t)got);
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
json_xattr(int fd, const char *name, cJSON **json)
{
    size_t length = 0;
    char *text = NULL;
    errint_t error = mount_read_xattr(fd, name, &text, &length);

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

/* The text of member `name`. If the text is not UTF-8, the mount reports it in hexadecimal in the
 * member `hex` instead, and it is decoded. malloc'ed. */
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

/* `item`: 16 hexadecimal digits. */
static bool
read_version(const cJSON *item, uint64_t *version)
{
    const char *text = cJSON_GetStringValue(item);
    char *end;

    if (!text || strlen(text) != 16)
        return false;
    *version = strtoull(text, &end, 16);
    return *end == '\0';
}

static bool
version_member(const cJSON *object, uint64_t *version)
{
    return read_version(cJSON_GetObjectItemCaseSensitive(object, "version"), version);
}

errint_t
mount_read_extent(int fd, struct mount_extent *extent)
{
    cJSON *json;
    const cJSON *first;
    errint_t error = json_xattr(fd, "user.fstfs.extents", &json);

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

/* Whether `name` is a file name that sorts after `before`; NULL is before all names. */
static bool
is_next_shard(const char *before, const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
           (!before || strcmp(before, name) < 0);
}

/* Of a checkpoint with so many shards that their names do not fit into an xattr. */
static errint_t
versions_member(const cJSON *object, struct mount_origin *origin)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, "versions"), *item;

    origin->shard_versions =
        calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*origin->shard_versions));
    if (!origin->shard_versions)
        return -ENOMEM;
    cJSON_ArrayForEach(item, list)
    {
        if (!read_version(item, &origin->shard_versions[origin->shard_count++]))
            return -EBADMSG;
    }
    return 0;
}

static errint_t
shards_member(const cJSON *object, struct mount_origin *origin)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, "shards"), *item;
    int count = cJSON_GetArraySize(list);

    if (count == 0)
        return versions_member(object, origin);
    origin->shards = calloc((size_t)count + 1, sizeof(*origin->shards));
    origin->shard_versions = calloc((size_t)count + 1, sizeof(*origin->shard_versions));
    if (!origin->shards || !origin->shard_versions)
        return -ENOMEM;
    cJSON_ArrayForEach(item, list)
    {
        char **shard = &origin->shards[origin->shard_count];
        errint_t error = name_member(item, "file", "file_hex", shard);

        if (error)
            return error;
        version_member(item, &origin->shard_versions[origin->shard_count]);
        if (!is_next_shard(origin->shard_count++ ? shard[-1] : NULL, *shard))
            return -EBADMSG;
    }
    return 0;
}

static errint_t
unsound_member(const cJSON *object, char **why)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "unsound"));

    if (!text)
        return 0;
    *why = strdup(text);
    return *why ? 0 : -ENOMEM;
}

errint_t
mount_read_origin(int fd, struct mount_origin *origin)
{
    cJSON *json;
    errint_t error = json_xattr(fd, "user.fstfs.source", &json);

    if (error)
        return error;
    *origin = (struct mount_origin){0};
    if (!version_member(json, &origin->version) ||
        !number_member(json, "tensors", &origin->tensors))
        error = -EBADMSG;
    if (!error)
        error = name_member(json, "directory", "directory_hex", &origin->directory);
    if (!error)
        error = name_member(json, "checkpoint", "checkpoint_hex", &origin->stem);
    if (!error)
        error = shards_member(json, origin);
    if (!error)
        error = unsound_member(json, &origin->unsound);
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
    for (uint32_t i = 0; origin->shards && i < origin->shard_count; i++)
        free(origin->shards[i]);
    free(origin->shards);
    free(origin->shard_versions);
    free(origin->unsound);
    *origin = (struct mount_origin){0};
}

/* Parses "[2, 3]". */
static errint_t
parse_shape(const char *text, struct mount_tensor *tensor)
{
    const char *at = text + 1;
    char *end;

    tensor->shape = malloc((strlen(text) / 2 + 1) * sizeof(*tensor->shape));
    if (!tensor->shape)
        return -ENOMEM;
    if (*text != '[')
        return -EBADMSG;
    for (; *at >= '0' && *at <= '9'; at = end + strspn(end, ", ")) {
        errno = 0;
        tensor->shape[tensor->rank++] = strtoull(at, &end, 10);
        if (errno)
            return -EBADMSG;
    }
    return strcmp(at, "]") == 0 ? 0 : -EBADMSG;
}

/* Tensors of GGUF-only types have only the xattrs of the second row. */
static const struct tensor_xattrs {
    const char *name, *dtype, *shape;
} tensor_xattrs[] = {
    {"user.safetensors.name", "user.safetensors.dtype", "user.safetensors.shape"},
    {"user.gguf.name", "user.gguf.type", "user.gguf.shape"},
};

errint_t
mount_read_tensor(int fd, struct mount_tensor *tensor)
{
    const struct tensor_xattrs *xattrs = &tensor_xattrs[0];
    char *shape = NULL;
    size_t length;
    errint_t error;

    *tensor = (struct mount_tensor){0};
    error = mount_read_xattr(fd, xattrs->name, &tensor->name, &tensor->name_length);
    if (error == -ENODATA) {
        xattrs = &tensor_xattrs[1];
        error = mount_read_xattr(fd, xattrs->name, &tensor->name, &tensor->name_length);
    }
    if (!error)
        error = mount_read_xattr(fd, xattrs->dtype, &tensor->dtype, &tensor->dtype_length);
    if (!error)
        error = mount_read_xattr(fd, xattrs->shape, &shape, &length);
    if (!error)
        error = parse_shape(shape, tensor);
    free(shape);
    if (error)
        mount_tensor_free(tensor);
    return error;
}

void
mount_tensor_free(struct mount_tensor *tensor)
{
    free(tensor->name);
    free(tensor->dtype);
    free(tensor->shape);
    *tensor = (struct mount_tensor){0};
}

errint_t
mount_check_source(const struct mount_extent *extent, struct file_identity *identity,
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
