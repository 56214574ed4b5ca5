/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share: reading an input piece by piece, and saying what
 * is not as it should be. libFuzzer takes the abort as a finding.
 *
 * A target is a program of one subject; libFuzzer calls LLVMFuzzerTestOneInput()
 * with one input after another, in one thread.
 */
#ifndef FSTFS_TESTS_FUZZ_H
#define FSTFS_TESTS_FUZZ_H

#include "base/error.h"
#include "catalog/problems.h"
#include "format/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In release builds too, unlike assert(). */
#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what))                                                                               \
            fuzz_fail(__FILE__, __LINE__, #what);                                                  \
    } while (0)

_Noreturn void fuzz_fail(const char *file, int line, const char *what);

/* What is left of an input. Past its end everything is 0 or empty. */
struct input {
    const char *at;
    size_t left;
};

uint8_t input_byte(struct input *input);
uint64_t input_number(struct input *input); /* 8 bytes, little-endian */
/* The bytes up to the next 0xff, which UTF-8 has none of, or to the end. */
const char *input_text(struct input *input, size_t *length);

/* An empty file in memory, for readers that take a descriptor. */
int fuzz_file(const char *name);
/* Replaces the content of the file. */
void fuzz_file_write(int fd, const uint8_t *data, size_t size);
/* An admission, see st_table.h: refuses nothing, and expects requests for no more memory than any
 * input of the fuzzer may need. */
errint_t fuzz_admit(void *arg, uint64_t bytes, struct reason *reason);

/* Sends what the code under test prints to nowhere; libFuzzer's own lines stay. */
void fuzz_quiet(void);

/* Whether the bytes are UTF-8 of which nothing ends a line or steers a terminal. */
bool fuzz_is_shown(const char *text, size_t length);
/* A reason that came with a refusal: a rule, and one line that forges nothing. */
void fuzz_expect_reason(const struct reason *reason);
/* What .fstfs/problems would say: lines that begin so, and forge nothing. */
void fuzz_expect_problems(struct problems *problems, const char *start);

int fuzz_compare(const char *a, size_t a_length, const char *b, size_t b_length);

/* All that safetensors.h promises of a table. */
void fuzz_expect_table(const struct st_table *table, uint64_t data_length);
/* Every tensor is in the file, and as long as its shape and dtype say. */
void fuzz_expect_in_file(const struct st_table *table, uint64_t file_size);
/* That cJSON, which shares no code with src/format, reads of a written header
 * (its JSON, without the 8 bytes) what the table says. */
void fuzz_expect_header(const char *json, size_t length, const struct st_table *table);

#endif
