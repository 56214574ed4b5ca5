/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/options.h"

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
    "Mounts the directory SOURCE of safetensors checkpoints on MOUNTPOINT as a tree in\n"
    "which every tensor is a file (tensors/, npy/), every checkpoint is one merged file\n"
    "(merged/) and also shards (shards/). Nothing is converted and nothing is written.\n"
    "\n"
    "    --view=NAME        make one view the root: tensors, merged, shards or npy\n"
    "    --shards=N         cut what has shards into N, in shards/; single files stay whole\n"
    "    --shard-size=SIZE  cut into shards of at most SIZE, larger files too: 512M, 5GB, ...\n"
    "    --memory=SIZE      most memory for buffers of the mount (256M)\n"
    "    --io=auto|threads  io_uring where it is allowed, or threads only\n"
    "    --direct=auto|off  read past the page cache where the source allows, or not\n"
    "    --prefetch=on|off  read ahead of the readers, or not\n"
    "    --queue-depth=N    reads of the source under way at most (64)\n"
    "    --threads=N        threads that read where io_uring may not\n"
    "    --readahead=SIZE   what the kernel reads ahead here (over 128K: root only), or keep\n"
    "    --passthrough=on   the kernel reads unchanged files itself, without fstfs (root only);\n"
    "                       a file rewritten in place is then not noticed by its readers (off)\n"
    "    --sandbox=auto|off give up what serving does not need once mounted, or not\n"
    "    -f                 stay in the foreground, log to standard error\n"
    "    -d                 debug: -f, and every request is logged\n"
    "    -o OPT[,OPT...]    mount options: allow_other, auto_unmount, noexec, ...;\n"
    "                       the options above may stand here too, without the dashes\n"
    "    -h, --help         print this and exit\n"
    "    -V, --version      print the version and exit\n"
    "\n"
    "A value may also be the next word: --memory 1G.\n"
    "To unmount: fusermount3 -u MOUNTPOINT, or send SIGTERM.\n";

#define LEAST_MEMORY ((uint64_t)4 << 20)
#define MOST_MEMORY ((uint64_t)1 << 40)

enum { KEY_HELP, KEY_VERSION, KEY_SHARED, KEY_IGNORED };

struct parsed {
    struct options *options;
    char *view, *shards, *shard_size, *readahead, *passthrough, *sandbox;
    char *io, *direct, *prefetch, *queue_depth, *threads, *memory;
    int foreground, debug;
    bool help, version, wrong;
};

#define OPTION(text, member)                                                                       \
    {                                                                                              \
        text, offsetof(struct parsed, member), 1                                                   \
    }

static const struct fuse_opt templates[] = {
    OPTION("-f", foreground),
    OPTION("-d", debug),
    OPTION("debug", debug),
    OPTION("--view=%s", view),
    OPTION("view=%s", view),
    OPTION("--shards=%s", shards),
    OPTION("shards=%s", shards),
    OPTION("--shard-size=%s", shard_size),
    OPTION("shard-size=%s", shard_size),
    OPTION("shard_size=%s", shard_size),
    OPTION("--readahead=%s", readahead),
    OPTION("readahead=%s", readahead),
    OPTION("--passthrough=%s", passthrough),
    OPTION("passthrough=%s", passthrough),
    OPTION("--sandbox=%s", sandbox),
    OPTION("sandbox=%s", sandbox),
    OPTION("--io=%s", io),
    OPTION("io=%s", io),
    OPTION("--direct=%s", direct),
    OPTION("direct=%s", direct),
    OPTION("--prefetch=%s", prefetch),
    OPTION("prefetch=%s", prefetch),
    OPTION("--queue-depth=%s", queue_depth),
    OPTION("queue-depth=%s", queue_depth),
    OPTION("--threads=%s", threads),
    OPTION("threads=%s", threads),
    OPTION("--memory=%s", memory),
    OPTION("memory=%s", memory),
    FUSE_OPT_KEY("-h", KEY_HELP),
    FUSE_OPT_KEY("--help", KEY_HELP),
    FUSE_OPT_KEY("-V", KEY_VERSION),
    FUSE_OPT_KEY("--version", KEY_VERSION),
    FUSE_OPT_KEY("allow_other", KEY_SHARED),
    FUSE_OPT_KEY("allow_root", KEY_SHARED),
    /* What mount(8) and fstab say to themselves, or what is so anyway. */
    FUSE_OPT_KEY("defaults", KEY_IGNORED),
    FUSE_OPT_KEY("auto", KEY_IGNORED),
    FUSE_OPT_KEY("noauto", KEY_IGNORED),
    FUSE_OPT_KEY("user", KEY_IGNORED),
    FUSE_OPT_KEY("user=", KEY_IGNORED),
    FUSE_OPT_KEY("nouser", KEY_IGNORED),
    FUSE_OPT_KEY("users", KEY_IGNORED),
    FUSE_OPT_KEY("group", KEY_IGNORED),
    FUSE_OPT_KEY("owner", KEY_IGNORED),
    FUSE_OPT_KEY("_netdev", KEY_IGNORED),
    FUSE_OPT_KEY("nofail", KEY_IGNORED),
    FUSE_OPT_KEY("comment=", KEY_IGNORED),
    FUSE_OPT_KEY("relatime", KEY_IGNORED),
    FUSE_OPT_KEY("strictatime", KEY_IGNORED),
    FUSE_OPT_KEY("lazytime", KEY_IGNORED),
    FUSE_OPT_KEY("silent", KEY_IGNORED),
    FUSE_OPT_KEY("loud", KEY_IGNORED),
    FUSE_OPT_KEY("ro", KEY_IGNORED),
    FUSE_OPT_KEY("rw", KEY_IGNORED),
    FUSE_OPT_KEY("default_permissions", KEY_IGNORED),
    /* What libfuse and the kernel take. */
    FUSE_OPT_KEY("auto_unmount", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("fsname=", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("subtype=", KEY_IGNORED),
    FUSE_OPT_KEY("max_read=", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("dev", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("nodev", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("suid", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("nosuid", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("exec", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("noexec", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("async", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("sync", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("dirsync", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("atime", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("noatime", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("nodiratime", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_KEY("nostrictatime", FUSE_OPT_KEY_KEEP),
    FUSE_OPT_END,
};

static void
complain(struct parsed *parsed, const char *what, const char *value)
{
    char name[QUOTED_SIZE];

    fprintf(stderr, "fstfs: %s%s%s\n", what, value ? ": " : "",
            value ? quoted(name, value, strlen(value)) : "");
    parsed->wrong = true;
}

/* The long option that takes a value and has this name, with its dashes or without; or NULL. */
static const struct fuse_opt *
find_valued(const char *name, size_t length)
{
    size_t dashes = strncmp(name, "--", 2) == 0 ? 0 : 2;

    for (const struct fuse_opt *option = templates; option->templ; option++) {
        size_t named = strcspn(option->templ, "=");

        if (strncmp(option->templ, "--", 2) == 0 && option->templ[named] &&
            length + dashes == named && strncmp(option->templ + dashes, name, length) == 0)
            return option;
    }
    return NULL;
}

static void
complain_of_no_value(struct parsed *parsed, const struct fuse_opt *option, const char *found)
{
    char what[128];
    int named = (int)strcspn(option->templ, "=");

    snprintf(what, sizeof(what), "%.*s needs a value (fstfs -h says which)%s", named, option->templ,
             found ? ", found" : "");
    complain(parsed, what, found);
}

static int
take_argument(struct parsed *parsed, const char *argument)
{
    struct options *options = parsed->options;
    char **place = !options->source ? &options->source : &options->mountpoint;

    if (*place) {
        complain(parsed, "one SOURCE and one MOUNTPOINT are wanted, this is too much", argument);
        return 0;
    }
    *place = strdup(argument);
    return *place ? 0 : -1;
}

/* Whether it is for the init system and the like: libfuse's keys know no such prefix. */
static bool
is_for_others(const char *option)
{
    return strncmp(option, "x-", 2) == 0 || strncmp(option, "X-", 2) == 0;
}

static int
take_option(void *data, const char *argument, int key, struct fuse_args *rest)
{
    struct parsed *parsed = data;
    const struct fuse_opt *option;

    (void)rest;
    switch (key) {
    case FUSE_OPT_KEY_NONOPT:
        return take_argument(parsed, argument);
    case KEY_HELP:
        parsed->help = true;
        return 0;
    case KEY_VERSION:
        parsed->version = true;
        return 0;
    case KEY_SHARED:
        parsed->options->shared = true;
        return 1;
    case KEY_IGNORED:
        return 0;
    default:
        if (is_for_others(argument))
            return 0;
        option = find_valued(argument, strlen(argument));
        if (option)
            complain_of_no_value(parsed, option, NULL);
        else
            complain(parsed, "unknown option (fstfs -h lists them)", argument);
        return 0;
    }
}

static void
read_view(struct parsed *parsed)
{
    parsed->options->view = -1;
    if (!parsed->view)
        return;
    for (int kind = 0; kind < VIEW_KINDS; kind++)
        if (strcmp(parsed->view, view_names[kind]) == 0)
            parsed->options->view = kind;
    if (parsed->options->view < 0)
        complain(parsed, "--view is tensors, merged, shards or npy, not", parsed->view);
}

/* A whole number from 1 to `most`; `what` says so where it is none. */
static uint32_t
read_number(struct parsed *parsed, const char *text, uint32_t most, const char *what)
{
    unsigned long long number;
    char *end;

    if (!text)
        return 0;
    number = strtoull(text, &end, 10);
    if (!*end && text[0] >= '1' && text[0] <= '9' && number <= most)
        return (uint32_t)number;
    complain(parsed, what, text);
    return 0;
}

/* Whether a switch was set to `off` and not left at `on`. */
static bool
read_switch(struct parsed *parsed, const char *text, const char *on, const char *off,
            const char *what)
{
    if (!text || strcmp(text, on) == 0)
        return false;
    if (strcmp(text, off) != 0)
        complain(parsed, what, text);
    return true;
}

static void
read_io(struct parsed *parsed)
{
    struct options *options = parsed->options;

    options->no_ring = read_switch(parsed, parsed->io, "auto", "threads",
                                   "--io is auto (io_uring where it is allowed) or threads, not");
    options->no_direct = read_switch(parsed, parsed->direct, "auto", "off",
                                     "--direct is auto (O_DIRECT where it can be) or off, not");
    options->no_prefetch =
        read_switch(parsed, parsed->prefetch, "on", "off", "--prefetch is on or off, not");
    options->queue_depth = read_number(parsed, parsed->queue_depth, 4096,
                                       "--queue-depth wants a number from 1 to 4096, not");
    options->threads =
        read_number(parsed, parsed->threads, 64, "--threads wants a number from 1 to 64, not");
    if (parsed->memory && (!size_read(parsed->memory, &options->memory) ||
                           options->memory < LEAST_MEMORY || options->memory > MOST_MEMORY))
        complain(parsed, "--memory wants a size from 4M to 1T, not", parsed->memory);
}

static void
read_cut(struct parsed *parsed)
{
    struct options *options = parsed->options;

    if (parsed->shards && parsed->shard_size)
        complain(parsed, "--shards and --shard-size exclude each other", NULL);
    if (parsed->shard_size && !size_read(parsed->shard_size, &options->shard_size))
        complain(parsed, "--shard-size wants a size as 512M, 5G or 5GB, not", parsed->shard_size);
    options->shards =
        read_number(parsed, parsed->shards, 99999, "--shards wants a number from 1 to 99999, not");
}

static void
read_readahead(struct parsed *parsed)
{
    struct options *options = parsed->options;

    if (!parsed->readahead || strcmp(parsed->readahead, "keep") == 0)
        return;
    if (!size_read(parsed->readahead, &options->readahead) || options->readahead < 4096 ||
        options->readahead > (1u << 30))
        complain(parsed, "--readahead wants keep or a size from 4K to 1G, not", parsed->readahead);
}

/* What libfuse_opt kept: "-o", "allow_other,...", as one string without "-o"; and the "--" before
 * SOURCE, which it takes away itself where it kept nothing else. */
static bool
join_kept(struct options *options, const struct fuse_args *args)
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

/*
 * Adds argv[i] to `args`. Where it is a long option and its value is the next word, both are added
 * as one word: libfuse's table knows only --NAME=VALUE. How many words were added; -1: no memory.
 */
static int
add_word(struct parsed *parsed, int argc, char **argv, int i, struct fuse_args *args)
{
    const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
    const struct fuse_opt *option =
        strncmp(word, "--", 2) == 0 ? find_valued(word, strlen(word)) : NULL;
    char *joined;
    int result;

    if (option && (!next || next[0] == '-')) {
        complain_of_no_value(parsed, option, next);
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

/* The command line as libfuse's parser is given it; malloc'ed, freed by fuse_opt_free_args(). */
static bool
join_values(struct parsed *parsed, int argc, char **argv, struct fuse_args *args)
{
    bool options = true, is_value = false;
    int added;

    for (int i = 0; i < argc; i += added) {
        options = options && (is_value || strcmp(argv[i], "--") != 0);
        if (options && !is_value)
            added = add_word(parsed, argc, argv, i, args);
        else
            added = fuse_opt_add_arg(args, argv[i]) < 0 ? -1 : 1;
        if (added < 0)
            return false;
        is_value = options && !is_value && strcmp(argv[i], "-o") == 0;
    }
    return true;
}

/* Where parse() has put the value of a long option. */
static char **
value_of(struct parsed *parsed, const struct fuse_opt *option)
{
    return (char **)(void *)((char *)parsed + option->offset);
}

/* A value that is empty, as in --memory= and -o memory=, is none. */
static void
drop_empty_values(struct parsed *parsed)
{
    for (const struct fuse_opt *option = templates; option->templ; option++) {
        char **value;

        if (strncmp(option->templ, "--", 2) != 0 || !strchr(option->templ, '='))
            continue;
        value = value_of(parsed, option);
        if (!*value || **value)
            continue;
        complain_of_no_value(parsed, option, NULL);
        free(*value);
        *value = NULL;
    }
}

static void
free_values(struct parsed *parsed)
{
    for (const struct fuse_opt *option = templates; option->templ; option++)
        if (strncmp(option->templ, "--", 2) == 0 && strchr(option->templ, '='))
            free(*value_of(parsed, option));
}

enum options_result
options_parse(int argc, char **argv, struct options *options)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct parsed parsed = {.options = options};
    enum options_result result = OPTIONS_RUN;

    memset(options, 0, sizeof(*options));
    if (!join_values(&parsed, argc, argv, &args) ||
        fuse_opt_parse(&args, &parsed, templates, take_option) < 0 || !join_kept(options, &args))
        parsed.wrong = true;
    drop_empty_values(&parsed);
    options->debug = parsed.debug;
    options->foreground = parsed.foreground || parsed.debug;
    read_view(&parsed);
    read_cut(&parsed);
    read_readahead(&parsed);
    options->passthrough =
        read_switch(&parsed, parsed.passthrough, "off", "on", "--passthrough is on or off, not");
    options->no_sandbox =
        read_switch(&parsed, parsed.sandbox, "auto", "off",
                    "--sandbox is auto (give up what the kernel lets it) or off, not");
    read_io(&parsed);
    if (parsed.help) {
        fputs(usage, stdout);
        result = OPTIONS_DONE;
    } else if (parsed.version) {
        printf("fstfs %s\n", FSTFS_VERSION);
        result = OPTIONS_DONE;
    } else if (!parsed.wrong && !options->mountpoint) {
        complain(&parsed, "a SOURCE and a MOUNTPOINT are wanted; fstfs -h says more", NULL);
    }
    if (parsed.wrong)
        result = OPTIONS_WRONG;
    fuse_opt_free_args(&args);
    free_values(&parsed);
    return result;
}

void
options_free(struct options *options)
{
    free(options->source);
    free(options->mountpoint);
    free(options->mount_options);
}
