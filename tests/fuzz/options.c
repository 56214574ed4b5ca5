/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line. Input: the arguments, each ended by a NUL or a newline; every argument is also
 * parsed as a size.
 */
#include "fuzz.h"

#include "base/size.h"
#include "fuse/options.h"
#include "view/view.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_WORDS = 64 };

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fuzz_quiet();
    return 0;
}

static bool
one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(text, *words) == 0)
            return true;
    return false;
}

/* The rule of options.h, computed with wider integers. */
static bool
size_of(const char *text, uint64_t *size)
{
    static const char *const binary[] = {"", "iB", NULL}, *const decimal[] = {"B", NULL};
    size_t digits = strspn(text, "0123456789");
    const char *letters = "kmgt", *letter, *unit = text + digits;
    unsigned __int128 value = 0;
    unsigned power = 0, base = 1024;

    for (size_t i = 0; i < digits; i++) {
        value = value * 10 + (unsigned)(text[i] - '0');
        if (value > INT64_MAX)
            return false;
    }
    if (*unit && (letter = strchr(letters, *unit | 0x20)) && *letter && *unit >= 'A') {
        power = (unsigned)(letter - letters) + 1;
        base = one_of(unit + 1, decimal) ? 1000 : 1024;
        if (base == 1024 && !one_of(unit + 1, binary))
            return false;
    } else if (*unit && !one_of(unit, decimal)) {
        return false;
    }
    while (power--)
        value *= base;
    *size = (uint64_t)value;
    return digits && value && value <= INT64_MAX;
}

static void
check_size(const char *text)
{
    uint64_t size = 0, want = 0;
    bool is = size_read(text, &size);

    EXPECT(is == size_of(text, &want));
    EXPECT(!is || size == want);
}

static void
check_options(int argc, char **argv)
{
    struct options options;

    if (options_parse(argc, argv, &options) == OPTIONS_RUN) {
        EXPECT(options.source && options.mountpoint);
        EXPECT(options.view >= -1 && options.view < VIEW_KINDS);
        EXPECT(options.shards <= 99999 && !(options.shards && options.shard_size));
        EXPECT(options.shard_size <= INT64_MAX);
        EXPECT(!options.io.memory ||
               (options.io.memory >= 4 << 20 && options.io.memory <= 1ull << 40));
        EXPECT(options.io.queue_depth <= 4096 && options.io.threads <= 64);
        EXPECT(!options.readahead || options.readahead == READAHEAD_BY_FILE ||
               (options.readahead >= 4096 && options.readahead <= 1 << 30));
        EXPECT(options.foreground || !options.debug);
    }
    options_free(&options);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *argv[MOST_WORDS + 2] = {(char[]){"fstfs"}};
    int argc = 1;
    char *text = malloc(size + 1), *at = text;

    EXPECT(text);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\n')
            text[i] = '\0';
    while (at < text + size && argc <= MOST_WORDS) {
        argv[argc++] = at;
        check_size(at);
        at += strlen(at) + 1;
    }
    check_options(argc, argv);
    free(text);
    return 0;
}
