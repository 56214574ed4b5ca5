/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_file.h"

#include "client/mount.h"
#include "format/json.h"
#include "format/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes a table of one tensor in one allocation. NULL: out of memory. */
static struct st_table *
make_tensor_table(const char *name, size_t name_length, enum dtype dtype, const uint64_t *dims,
                  uint32_t rank, uint64_t data_start, uint64_t size)
{
    size_t tensors = sizeof(struct st_table), room = tensors + sizeof(struct st_tensor);
    char *memory = malloc(room + rank * sizeof(*dims) + name_length);
    struct st_table *table = (struct st_table *)memory;
    struct st_tensor *tensor;

    if (!memory)
        return NULL;
    tensor = (struct st_tensor *)(memory + tensors);
    *tensor = (struct st_tensor){
        .end = size - data_start,
        .name_length = (uint32_t)name_length,
        .rank = rank,
        .dtype = (uint8_t)dtype,
    };
    memcpy(memory + room, dims, rank * sizeof(*dims));
    memcpy(memory + room + rank * sizeof(*dims), name, name_length);
    *table = (struct st_table){
        .data_start = data_start,
        .data_length = size - data_start,
        .count = 1,
        .tensors = tensor,
        .dims = (const uint64_t *)(memory + room),
        .text = memory + room + rank * sizeof(*dims),
        .bytes = room + rank * sizeof(*dims) + name_length,
    };
    return table;
}

static errint_t
finish_table(struct st_table *made, struct st_table **table, struct reason *reason)
{
    *table = made;
    return made ? 0 : reason_no_memory(reason);
}

/* Checks the number of bytes against dtype and shape. */
static errint_t
check_tensor_size(enum dtype dtype, const uint64_t *dims, uint32_t rank, uint64_t bytes,
                  struct reason *reason)
{
    uint64_t bits = dtype_bits(dtype);
    bool overflow = false;

    for (uint32_t i = 0; i < rank; i++)
        overflow = overflow || __builtin_mul_overflow(bits, dims[i], &bits);
    if (!overflow && bits % 8 == 0 && bits / 8 == bytes)
        return 0;
    return reason_set(reason, -EBADMSG, "TensorInvalidInfo",
                      "its %llu bytes of data do not match its shape and dtype %s",
                      (unsigned long long)bytes, dtype_name(dtype));
}

/* ---- tensor files of a mount ---- */

static bool
parse_tensor_shape(const char *text, size_t length, uint64_t dims[NPY_RANK_MOST], uint32_t *rank)
{
    struct json_fault fault;
    struct json_reader in;

    *rank = 0;
    if (json_check(text, length, &fault) != 0)
        return false;
    in = json_read(text, length);
    if (json_type(&in) != JSON_ARRAY)
        return false;
    json_enter(&in);
    while (json_next_element(&in)) {
        if (*rank == NPY_RANK_MOST || !json_take_u64(&in, &dims[*rank]))
            return false;
        ++*rank;
    }
    return true;
}

static errint_t
read_mounted_tensor(int fd, uint64_t size, struct st_table **table, struct reason *reason)
{
    char path[64], *name = NULL, *dtype_text = NULL, *shape = NULL;
    size_t name_length = 0, dtype_length = 0, shape_length = 0;
    uint64_t dims[NPY_RANK_MOST];
    enum dtype dtype = DTYPE_UNKNOWN;
    uint32_t rank = 0;
    errint_t error = 0;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (mount_read_xattr(path, "user.safetensors.name", &name, &name_length) ||
        mount_read_xattr(path, "user.safetensors.dtype", &dtype_text, &dtype_length) ||
        mount_read_xattr(path, "user.safetensors.shape", &shape, &shape_length))
        error = -ENODATA;
    else
        dtype = dtype_from_name(dtype_text, dtype_length);
    if (!error && (dtype == DTYPE_UNKNOWN || !parse_tensor_shape(shape, shape_length, dims, &rank)))
        error = reason_set(reason, -EBADMSG, "Attributes",
                           "its xattrs user.safetensors.* have an unknown dtype or shape");
    if (!error)
        error = check_tensor_size(dtype, dims, rank, size, reason);
    if (!error)
        error = finish_table(make_tensor_table(name, name_length, dtype, dims, rank, 0, size),
                             table, reason);
    free(name);
    free(dtype_text);
    free(shape);
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

/* Converts a file name to the tensor's name (view/names.h): removes ".npy", decodes %XX; "%" is
 * the empty name. `name` has room for all of `file`. */
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
    struct npy npy;
    size_t length;
    errint_t error;

    if (!name)
        return finish_table(NULL, table, reason);
    length = tensor_name_of_file(file, name);
    error = npy_read(fd, size, &npy, reason);
    if (!error)
        error = check_tensor_size(npy.dtype, npy.dims, npy.rank, size - npy.data_start, reason);
    if (!error)
        error = finish_table(
            make_tensor_table(name, length, npy.dtype, npy.dims, npy.rank, npy.data_start, size),
            table, reason);
    free(name);
    return error;
}

errint_t
tensor_file_read(int fd, const char *name, uint64_t size, struct st_table **table,
                 struct reason *reason)
{
    size_t length = strlen(name);

    if (length > 4 && strcmp(name + length - 4, ".npy") == 0)
        return read_npy_file(fd, name, size, table, reason);
    return read_mounted_tensor(fd, size, table, reason);
}
