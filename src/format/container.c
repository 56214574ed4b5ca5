/* SPDX-License-Identifier: Apache-2.0 */
#include "format/container.h"

#include "format/gguf_write.h"
#include "format/safetensors.h"
#include "format/torch.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool
starts_like_safetensors(const unsigned char first[CONTAINER_FIRST_BYTES], uint64_t size)
{
    uint64_t n;

    return first[8] == '{' && st_header_length(first, size, &n, NULL) == 0;
}

/* A zip archive, or the older format, which starts with a pickle. */
static bool
starts_like_torch(const unsigned char first[CONTAINER_FIRST_BYTES], uint64_t size)
{
    return memcmp(first, "PK\3\4", 4) == 0 || first[0] == 0x80;
}

static errint_t
read_torch(int fd, uint64_t size, st_admit *admit, void *arg, struct st_table **table,
           struct reason *reason)
{
    struct torch_file file;
    errint_t error = torch_read(fd, size, admit, arg, NULL, &file, reason);

    *table = file.table;
    return error;
}

static bool
starts_like_gguf(const unsigned char first[CONTAINER_FIRST_BYTES], uint64_t size)
{
    return size >= GGUF_HEAD_BYTES && gguf_has_magic(first);
}

const struct container container_safetensors = {
    .suffixes = {ST_SUFFIX, ".sft"},
    .starts_like = starts_like_safetensors,
    .read = st_table_read,
};

const struct container container_torch = {
    .suffixes = {".bin", ".pt", ".pth", ".ckpt"},
    .shown_suffix = ST_SUFFIX,
    .stem = "pytorch_model",
    .shown_stem = "model",
    .is_converted = true,
    .starts_like = starts_like_torch,
    .read = read_torch,
};

const struct container container_gguf = {
    .suffixes = {".gguf"},
    .is_kept = true,
    .check_files = gguf_check_parts,
    .starts_like = starts_like_gguf,
    .read = gguf_read,
};

const struct container *const container_all[] = {&container_safetensors, &container_torch,
                                                 &container_gguf, NULL};

const struct container *
container_of_name(const char *name, size_t length, size_t *suffix_length)
{
    for (size_t c = 0; container_all[c]; c++) {
        const char *const *suffix = container_all[c]->suffixes;

        for (; *suffix; suffix++) {
            size_t end = strlen(*suffix);

            if (length < end || strncasecmp(name + length - end, *suffix, end) != 0)
                continue;
            if (suffix_length)
                *suffix_length = end;
            return container_all[c];
        }
    }
    return NULL;
}

static size_t
container_rank(const struct container *container)
{
    size_t rank = 0;

    while (container_all[rank] && container_all[rank] != container)
        rank++;
    return rank;
}

int
container_compare(const struct container *a, const struct container *b)
{
    size_t x = container_rank(a), y = container_rank(b);

    return (x > y) - (x < y);
}
