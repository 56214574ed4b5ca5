/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the fuzz targets: reading an input piece by piece, and reporting violations, which
 * abort; libFuzzer treats the abort as a finding.
 *
 * A target is a program that tests one subject; libFuzzer calls LLVMFuzzerTestOneInput() with one
 * input after another, on one thread.
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

/* Also checked in release builds, unlike assert(). */
#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what))                                                                               \
            fuzz_fail(__FILE__, __LINE__, #what);                                                  \
    } while (0)

_Noreturn void fuzz_fail(const char *file, int line, const char *what);

/* The rest of an input. Reads beyond its end return 0 or an empty text. */
struct input {
    const char *at;
    size_t left;
};

uint8_t input_byte(struct input *input);
uint64_t input_number(struct input *input); /* 8 bytes, little-endian */
/* The bytes up to the next 0xff, which does not occur in UTF-8, or to the end. */
const char *input_text(struct input *input, size_t *length);

/* Opens an empty file in memory, for readers that need a descriptor. */
int fuzz_file(const char *name);
/* Replaces the content of the file. */
void fuzz_file_write(int fd, const uint8_t *data, size_t size);
/* An admission, see st_table.h: refuses nothing, and expects requests for no more memory than any
 * input of the fuzzer may need. */
errint_t fuzz_admit(void *arg, uint64_t bytes, struct reason *reason);

/* Discards output of the code under test, but not that of libFuzzer. */
void fuzz_quiet(void);

/* Whether the bytes are UTF-8 without line ends and control characters. */
bool fuzz_is_shown(const char *text, size_t length);
/* Expects a valid reason of a refusal: a rule, and one line of safe text (fuzz_is_shown()). */
void fuzz_expect_reason(const struct reason *reason);
/* Expects valid lines of .fstfs/problems: safe text that begins with `start`. */
void fuzz_expect_problems(struct problems *problems, struct problem_set *set, const char *start);

int fuzz_compare(const char *a, size_t a_length, const char *b, size_t b_length);

/* Expects all invariants of a table that safetensors.h states. */
void fuzz_expect_table(const struct st_table *table, uint64_t data_length);
/* Expects that every tensor is within the file, and has the size of its shape and dtype. */
void fuzz_expect_in_file(const struct st_table *table, uint64_t file_size);
/* Expects that cJSON, which shares no code with src/format, reads the content of the table from a
 * written header (its JSON, without the 8 bytes of its length). */
void fuzz_expect_header(const char *json, size_t length, const struct st_table *table);

#endif
