/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_file.h"

#include "base/text.h"
#include "client/mount.h"
#include "format/npy.h"
#include "format/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Creates a table of one tensor. */
static errint_t
make_tensor_table(const struct st_entry *entry, uint64_t data_start, struct st_table **table,
                  struct reason *reason)
{
    const struct st_counts counts = {.tensors = 1, .dims = entry->rank, .text = entry->name_length};
    const char *refusal = st_name_refusal(entry->name, entry->name_length);
    struct st_builder builder;

    if (refusal)
        return reason_set(reason, -EBADMSG, "InvalidTensorName", "the name of its tensor %s",
                          refusal);
    if (!st_builder_init(&builder, &counts))
        return reason_no_memory(reason);
    st_builder_add(&builder, entry);
    builder.table->data_start = data_start;
    builder.table->data_length = entry->end;
    *table = builder.table;
    return 0;
}

/* The number of bytes of this dtype and shape. False: it is not a whole number, or too large. */
static bool
tensor_bytes(const struct st_entry *entry, uint64_t *bytes)
{
    uint64_t bits = dtype_bits(entry->dtype);

    for (uint32_t i = 0; i < entry->rank; i++)
        if (__builtin_mul_overflow(bits, entry->dims[i], &bits))
            return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

/* Checks the number of bytes against dtype and shape. */
static errint_t
check_tensor_size(const struct st_entry *entry, struct reason *reason)
{
    uint64_t bytes;

    if (tensor_bytes(entry, &bytes) && bytes == entry->end)
        return 0;
    return reason_set(reason, -EBADMSG, "TensorInvalidInfo",
                      "its %llu bytes of data do not match its shape and dtype %s",
                      (unsigned long long)entry->end, dtype_name(entry->dtype));
}

/* ---- tensor files of a mount ---- */

/* Takes dtype and shape from the xattrs, also for a .npy file, because NumPy's format lacks some
 * dtypes. The data is at the end of the file. -ENODATA: not a tensor file of a mount. */
static errint_t
read_mounted_tensor(int fd, bool is_npy, uint64_t size, struct st_table **table,
                    struct reason *reason)
{
    struct mount_tensor tensor;
    struct st_entry entry;
    uint64_t bytes;
    char path[64];
    errint_t error;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    /* Elsewhere the xattrs may be those of a copy, restored by tar or rsync. */
    if (!mount_is_fstfs(path))
        return -ENODATA;
    error = mount_read_tensor(fd, &tensor);
    if (error && error != -EBADMSG)
        return -ENODATA;
    entry = (struct st_entry){
        .name = tensor.name,
        .name_length = tensor.name_length,
        .dtype = error ? DTYPE_UNKNOWN : dtype_from_name(tensor.dtype, tensor.dtype_length),
        .dims = tensor.shape,
        .rank = tensor.rank,
        .end = size,
    };
    if (entry.dtype == DTYPE_UNKNOWN)
        error = reason_set(reason, -EBADMSG, "Attributes",
                           "its xattrs have a shape or a dtype that safetensors does not have");
    if (!error && is_npy && tensor_bytes(&entry, &bytes) && bytes < size)
        entry.end = bytes;
    if (!error)
        error = check_tensor_size(&entry, reason);
    if (!error)
        error = make_tensor_table(&entry, size - entry.end, table, reason);
    mount_tensor_free(&tensor);
    return error;
}

/* ---- .npy ---- */

static int
hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Converts the name of a .npy file to that of its tensor, as view/names.h has formed it: removes
 * ".npy" and decodes %XX; "%" alone is the empty name. `name` has room for all of `file`. */
static size_t
tensor_name_of_file(const char *file, char *name)
{
    size_t length = strlen(file) - strlen(".npy"), at = 0;

    if (length == 1 && file[0] == '%')
        return 0;
    for (size_t i = 0; i < length; i++) {
        int high = i + 2 < length ? hex_value(file[i + 1]) : -1;
        int low = i + 2 < length ? hex_value(file[i + 2]) : -1;

        if (file[i] == '%' && high >= 0 && low >= 0) {
            name[at++] = (char)(high << 4 | low);
            i += 2;
        } else {
            name[at++] = file[i];
        }
    }
    return at;
}

static errint_t
read_npy_file(int fd, const char *file, uint64_t size, struct st_table **table,
              struct reason *reason)
{
    char *name = malloc(strlen(file) + 1);
    struct st_entry entry;
    struct npy npy;
    errint_t error;

    if (!name)
        return reason_no_memory(reason);
    error = npy_read(fd, size, &npy, reason);
    if (!error) {
        entry = (struct st_entry){
            .name = name,
            .name_length = tensor_name_of_file(file, name),
            .dtype = npy.dtype,
            .dims = npy.dims,
            .rank = npy.rank,
            .end = size - npy.data_start,
        };
        error = check_tensor_size(&entry, reason);
        if (!error)
            error = make_tensor_table(&entry, npy.data_start, table, reason);
    }
    free(name);
    return error;
}

errint_t
tensor_file_read(int fd, const char *name, uint64_t size, struct st_table **table,
                 struct reason *reason)
{
    bool is_npy = text_has_suffix(name, ".npy");
    errint_t error = read_mounted_tensor(fd, is_npy, size, table, reason);

    return error == -ENODATA && is_npy ? read_npy_file(fd, name, size, table, reason) : error;
}
