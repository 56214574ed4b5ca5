/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_read(): zip archives, pickles and the older format.
 *
 * Input: the whole file.
 */
#include "format/torch.h"
#include "fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

/* Memory that may be asked for: far more than a factor of any input. */
static const uint64_t most = UINT64_C(64) << 20;

static int fd;

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fd = memfd_create("fuzz-torch", 0);
    EXPECT(fd >= 0);
    return 0;
}

static errint_t
admit(void *arg, uint64_t bytes, struct reason *reason)
{
    (void)arg;
    (void)reason;
    EXPECT(bytes <= most);
    return 0;
}

/* Every tensor is in the file, and as long as its shape and dtype say. */
static void
expect_in_file(const struct st_table *table, uint64_t file_size)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];
        uint64_t bits = 1;

        EXPECT(tensor->begin <= tensor->end);
        EXPECT(tensor->begin == tensor->end || table->data_start + tensor->end <= file_size);
        if (tensor->dtype == DTYPE_UNKNOWN)
            continue;
        for (uint32_t d = 0; d < tensor->rank; d++)
            bits *= table->dims[tensor->shape + d];
        EXPECT(bits * dtype_bits((enum dtype)tensor->dtype) == (tensor->end - tensor->begin) * 8);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reason reason = {NULL, ""};
    struct buffer imports = BUFFER_INIT;
    struct torch_file file;

    EXPECT(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    if (torch_read(fd, size, admit, NULL, &imports, &file, &reason)) {
        fuzz_expect_reason(&reason);
    } else {
        expect_in_file(file.table, size);
        EXPECT((file.refused_count > 0) == (file.refused[0] != '\0'));
        torch_file_free(&file);
    }
    buffer_free(&imports);
    return 0;
}
