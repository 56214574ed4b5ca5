/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_read(): zip archives, pickles and the older format.
 *
 * Input: the whole file.
 */
#include "format/torch.h"
#include "fuzz.h"

#include <string.h>

static int fd;

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fd = fuzz_file("fuzz-torch");
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reason reason = {NULL, ""};
    struct buffer imports = BUFFER_INIT;
    struct torch_file file;
    uint32_t lines = 0;

    fuzz_file_write(fd, data, size);
    if (torch_read(fd, size, fuzz_admit, NULL, &imports, &file, &reason)) {
        fuzz_expect_reason(&reason);
    } else {
        fuzz_expect_in_file(file.table, size);
        for (const char *at = file.table->refused; at && (at = strchr(at, '\n')); at++)
            lines++;
        EXPECT(lines == file.table->refused_count ||
               (lines == TORCH_REFUSED_NAMED && lines < file.table->refused_count));
        torch_file_free(&file);
    }
    buffer_free(&imports);
    return 0;
}
