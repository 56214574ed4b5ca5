/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/options.h"

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"
#include "view/view.h"

#include <fuse_opt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: fstfs [options] SOURCE MOUNTPOINT\n"
    "\n"
    "Mounts the directory SOURCE of checkpoints (safetensors, PyTorch, GGUF) on MOUNTPOINT\n"
    "as a tree in which every tensor is a file (tensors/, npy/) and every checkpoint is\n"
    "one merged file (merged/) and a set of shards (shards/). Nothing is copied or\n"
    "written.\n"
    "\n"
    "    --view=NAME        show one view as the root: tensors, merged, shards or npy\n"
    "    --shards=N         in shards/, cut sharded checkpoints into N shards\n"
    "    --shard-size=SIZE  in shards/, cut all checkpoints into shards of at most SIZE:\n"
    "                       512M, 5GB, ...\n"
    "    --memory=SIZE      memory for the buffers of the mount (256M)\n"
    "    --io=auto|threads  io_uring where it is allowed, or only threads\n"
    "    --direct=auto|off  O_DIRECT where the source supports it, or never\n"
    "    --prefetch=on|off  prefetch for sequential readers, or not\n"
    "    --queue-depth=N    reads of the source in flight, per ring (64)\n"
    "    --threads=N        threads that read where io_uring is not used\n"
    "    --readahead=SIZE   the kernel's readahead on this mount (over 128K: root only),\n"
    "                       or keep; by default, as root: chosen for each file\n"
    "    --passthrough=on   the kernel reads unchanged files without fstfs (root only);\n"
    "                       a reader does not notice that its file is rewritten in place\n"
    "    --sandbox=auto|off drop privileges that serving does not need, or keep them\n"
    "    --pid=PID          unmount when the process PID ends\n"
    "    -f                 stay in the foreground, log to standard error\n"
    "    -d                 debug: -f, and log every request\n"
    "    -o OPT[,OPT...]    mount options: allow_other, auto_unmount, exec, ...;\n"
    "                       the options above are accepted too, without the dashes\n"
    "    -h, --help         print this help\n"
    "    -V, --version      print the version\n"
    "\n"
    "A value may be a separate word: --memory 1G.\n"
    "To unmount: fusermount3 -u MOUNTPOINT, or send SIGTERM.\n";

/* ---- options with a value ---- */

enum value_kind { VALUE_VIEW, VALUE_NUMBER, VALUE_SIZE, VALUE_SWITCH };

/* An option, as --NAME=VALUE, --NAME VALUE or -o NAME=VALUE, and where its value is stored. */
struct valued_option {
    const char *name;
    enum value_kind kind;
    size_t offset; /* offset in struct options of an int, uint32_t, uint64_t or bool, by kind */
    uint64_t least, most; /* of VALUE_NUMBER and VALUE_SIZE */
    const char *unset, *set; /* words: of VALUE_SWITCH both; of VALUE_SIZE, `unset` may be NULL */
    const char *expected; /* for messages */
};

#define MEMBER(name) offsetof(struct options, name)

static const struct valued_option valued_options[] = {
    {"view", VALUE_VIEW, MEMBER(view), 0, 0, NULL, NULL, "tensors, merged, shards or npy"},
    {"shards", VALUE_NUMBER, MEMBER(shards), 1, 99999, NULL, NULL, "a number from 1 to 99999"},
    {"shard-size", VALUE_SIZE, MEMBER(shard_size), 1, INT64_MAX, NULL, NULL,
     "a size such as 512M, 5G or 5GB"},
    {"memory", VALUE_SIZE, MEMBER(io.memory), 4 << 20, UINT64_C(1) << 40, NULL, NULL,
     "a size from 4M to 1T"},
    {"io", VALUE_SWITCH, MEMBER(io.no_ring), 0, 0, "auto", "threads", "auto or threads"},
    {"direct", VALUE_SWITCH, MEMBER(io.no_direct), 0, 0, "auto", "off", "auto or off"},
    {"prefetch", VALUE_SWITCH, MEMBER(io.no_prefetch), 0, 0, "on", "off", "on or off"},
    {"queue-depth", VALUE_NUMBER, MEMBER(io.queue_depth), 1, 4096, NULL, NULL,
     "a number from 1 to 4096"},
    {"threads", VALUE_NUMBER, MEMBER(io.threads), 1, 64, NULL, NULL, "a number from 1 to 64"},
    {"readahead", VALUE_SIZE, MEMBER(readahead), 4096, 1 << 30, "keep", NULL,
     "keep or a size from 4K to 1G"},
    {"passthrough", VALUE_SWITCH, MEMBER(passthrough), 0, 0, "off", "on", "on or off"},
    {"pid", VALUE_NUMBER, MEMBER(pid), 1, INT32_MAX, NULL, NULL, "the number of a process"},
    {"sandbox", VALUE_SWITCH, MEMBER(no_sandbox), 0, 0, "auto", "off", "auto or off"},
};

enum { VALUED_OPTIONS = COUNT_OF(valued_options) };

/* The state of options_parse(). */
struct parser {
    struct options *options;
    bool help, version, failed;
};

static void
reject_option(struct parser *parser, const char *what, const char *value)
{
    char name[QUOTED_SIZE];

    fprintf(stderr, "fstfs: %s%s%s\n", what, value ? ": " : "",
            value ? quoted(name, value, strlen(value)) : "");
    parser->failed = true;
}

static void
reject_missing_value(struct parser *parser, const struct valued_option *option, const char *found)
{
    char what[160];

    snprintf(what, sizeof(what), "--%s needs a value (expected %s)%s", option->name,
             option->expected, found ? ", found" : "");
    reject_option(parser, what, found);
}

/* Finds the option that `text` names, with or without dashes and up to '=' or the end. -o accepts
 * shard_size, too. */
static const struct valued_option *
find_valued_option(const char *text)
{
    const char *name = text[0] == '-' && text[1] == '-' ? text + 2 : text;
    size_t length = strcspn(name, "=");

    if (length == strlen("shard_size") && strncmp(text, "shard_size", length) == 0)
        name = "shard-size";
    for (unsigned i = 0; i < VALUED_OPTIONS; i++)
        if (strlen(valued_options[i].name) == length &&
            strncmp(valued_options[i].name, name, length) == 0)
            return &valued_options[i];
    return NULL;
}

static bool
is_within(uint64_t value, const struct valued_option *option)
{
    return value >= option->least && value <= option->most;
}

/* Parses a value into its place. Returns false if it is not one of the expected values. */
static bool
store_option_value(const struct valued_option *option, const char *text, struct options *options)
{
    void *place = (char *)options + option->offset;

    switch (option->kind) {
    case VALUE_VIEW:
        for (int kind = 0; kind < VIEW_KINDS; kind++)
            if (strcmp(text, view_names[kind]) == 0) {
                *(int *)place = kind;
                return true;
            }
        return false;
    case VALUE_NUMBER:
        /* number_read() also accepts signs and white space, like strtol() */
        return strspn(text, "0123456789") == strlen(text) && text[0] != '0' &&
               number_read(text, (uint32_t)option->most, place);
    case VALUE_SIZE:
        if (option->unset && strcmp(text, option->unset) == 0)
            *(uint64_t *)place = 0;
        else if (!size_read(text, place) || !is_within(*(uint64_t *)place, option))
            return false;
        return true;
    case VALUE_SWITCH:
        *(bool *)place = strcmp(text, option->set) == 0;
        return *(bool *)place || strcmp(text, option->unset) == 0;
    }
    return false;
}

static void
take_valued_option(struct parser *parser, const struct valued_option *option, const char *argument)
{
    const char *value = strchr(argument, '=');
    char what[160];

    if (!value || !value[1]) {
        reject_missing_value(parser, option, NULL);
    } else if (!store_option_value(option, value + 1, parser->options)) {
        snprintf(what, sizeof(what), "--%s: expected %s, found", option->name, option->expected);
        reject_option(parser, what, value + 1);
    }
}

/* ---- mount options ---- */

/* Options of mount(8) and fstab(5) that fstfs ignores: they concern other programs, always apply,
 * or never do, as dev and suid, which mount.fuse3(8) adds by itself. A name that ends in '='
 * matches any value. */
static const char *const ignored_options[] = {
    "defaults", "auto",   "noauto",  "user",   "user=",    "nouser",   "users",
    "group",    "owner",  "_netdev", "nofail", "comment=", "relatime", "strictatime",
    "lazytime", "silent", "loud",    "ro",     "rw",       "subtype=", "default_permissions",
    "dev",      "nodev",  "suid",    "nosuid", NULL,
};

/* Options for libfuse and the kernel. */
static const char *const passed_options[] = {
    "allow_other", "allow_root", "auto_unmount", "fsname=", "exec",       "noexec",        "async",
    "sync",        "dirsync",    "atime",        "noatime", "nodiratime", "nostrictatime", NULL,
};

static bool
is_listed_option(const char *option, const char *const *list)
{
    for (; *list; list++) {
        size_t length = strlen(*list);

        if (strcmp(option, *list) == 0 ||
            ((*list)[length - 1] == '=' && strncmp(option, *list, length) == 0))
            return true;
    }
    return false;
}

/* ---- the command line ---- */

static int
take_argument(struct parser *parser, const char *argument)
{
    struct options *options = parser->options;
    char **place = !options->source ? &options->source : &options->mountpoint;

    if (*place) {
        reject_option(parser, "expected one SOURCE and one MOUNTPOINT, found", argument);
        return 0;
    }
    *place = strdup(argument);
    return *place ? 0 : -1;
}

/* libfuse calls this for each word. Returns 1 to pass the word on to libfuse. */
static int
take_word(void *data, const char *word, int key, struct fuse_args *rest)
{
    struct parser *parser = data;
    const struct valued_option *option;

    (void)rest;
    if (key == FUSE_OPT_KEY_NONOPT)
        return take_argument(parser, word);
    if (is_listed_option(word, passed_options)) {
        parser->options->shared |= strncmp(word, "allow_", 6) == 0;
        return 1;
    }
    option = find_valued_option(word);
    if (option)
        take_valued_option(parser, option, word);
    else if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0)
        parser->help = true;
    else if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0)
        parser->version = true;
    else if (strcmp(word, "-f") == 0)
        parser->options->foreground = true;
    else if (strcmp(word, "-d") == 0 || strcmp(word, "debug") == 0)
        parser->options->foreground = parser->options->debug = true;
    /* "x-..." options are for systemd and other programs. */
    else if (!is_listed_option(word, ignored_options) && strncasecmp(word, "x-", 2) != 0)
        reject_option(parser, "unknown option (fstfs -h lists them)", word);
    return 0;
}

/* Stores the options that libfuse kept ("-o", "allow_other,...") without "-o". A "--" before SOURCE
 * remains, too, if anything was kept. */
static bool
store_mount_options(struct options *options, const struct fuse_args *args)
{
    for (int i = 1; i < args->argc; i++) {
        if (strcmp(args->argv[i], "-o") == 0 || strcmp(args->argv[i], "--") == 0)
            continue;
        if (fuse_opt_add_opt(&options->mount_options, strncmp(args->argv[i], "-o", 2) == 0
                                                          ? args->argv[i] + 2
                                                          : args->argv[i]) < 0)
            return false;
    }
    return true;
}

/* Adds argv[i] to `args`, joined with the next word if that is its value, because libfuse passes on
 * --NAME=VALUE as one word. Returns the number of words consumed; -1: out of memory. */
static int
add_word(struct parser *parser, int argc, char **argv, int i, struct fuse_args *args)
{
    const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
    const struct valued_option *option =
        strncmp(word, "--", 2) == 0 && !strchr(word, '=') ? find_valued_option(word) : NULL;
    char *joined;
    int result;

    if (option && (!next || next[0] == '-')) {
        reject_missing_value(parser, option, next);
        return 1;
    }
    if (!option)
        return fuse_opt_add_arg(args, word) < 0 ? -1 : 1;
    if (asprintf(&joined, "%s=%s", word, next) < 0)
        return -1;
    result = fuse_opt_add_arg(args, joined) < 0 ? -1 : 2;
    free(joined);
    return result;
}

/* Makes the command line that libfuse parses; freed by fuse_opt_free_args(). */
static bool
join_option_values(struct parser *parser, int argc, char **argv, struct fuse_args *args)
{
    bool options = true, is_value = false;
    int added;

    for (int i = 0; i < argc; i += added) {
        options = options && (is_value || strcmp(argv[i], "--") != 0);
        if (options && !is_value)
            added = add_word(parser, argc, argv, i, args);
        else
            added = fuse_opt_add_arg(args, argv[i]) < 0 ? -1 : 1;
        if (added < 0)
            return false;
        is_value = options && !is_value && strcmp(argv[i], "-o") == 0;
    }
    return true;
}

enum options_result
options_parse(int argc, char **argv, struct options *options)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct parser parser = {.options = options};
    enum options_result result = OPTIONS_RUN;

    *options = (struct options){.view = -1, .readahead = READAHEAD_BY_FILE};
    if (!join_option_values(&parser, argc, argv, &args) ||
        fuse_opt_parse(&args, &parser, NULL, take_word) < 0 || !store_mount_options(options, &args))
        parser.failed = true;
    if (options->shards && options->shard_size)
        reject_option(&parser, "--shards and --shard-size exclude each other", NULL);
    if (parser.help) {
        fputs(usage, stdout);
        result = OPTIONS_DONE;
    } else if (parser.version) {
        printf("fstfs %s\n", FSTFS_VERSION);
        result = OPTIONS_DONE;
    } else if (!parser.failed && !options->mountpoint) {
        reject_option(&parser, "expected a SOURCE and a MOUNTPOINT (see fstfs -h)", NULL);
    }
    if (parser.failed)
        result = OPTIONS_WRONG;
    fuse_opt_free_args(&args);
    return result;
}

void
options_free(struct options *options)
{
    free(options->source);
    free(options->mountpoint);
    free(options->mount_options);
}
