/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mountinfo.h"

#include <stdlib.h>
#include <string.h>

FILE *
mountinfo_open(void)
{
    return fopen("/proc/self/mountinfo", "re");
}

/* The kernel writes space, tab, newline and backslash as \ooo. */
static void
unescape(char *text)
{
    char *out = text;

    for (const char *in = text; *in; out++) {
        unsigned c = (unsigned char)*in;
        bool escaped = c == '\\' && sscanf(in + 1, "%3o", &c) == 1;

        in += escaped ? 4 : 1;
        *out = (char)c;
    }
    *out = '\0';
}

/* id parent major:minor root mountpoint options [tag]... - type source options */
static bool
parse_line(const char *line, struct mountinfo *mount)
{
    const char *separator = strstr(line, " - ");

    if (separator &&
        sscanf(line, "%d %d %u:%u %*s %ms", &mount->id, &mount->parent, &mount->major,
               &mount->minor, &mount->mountpoint) == 5 &&
        sscanf(separator, " - %ms %ms %ms", &mount->type, &mount->source, &mount->options) >= 2) {
        unescape(mount->mountpoint);
        unescape(mount->source);
        return mount->options || (mount->options = calloc(1, 1)) != NULL;
    }
    return false;
}

void
mountinfo_free(struct mountinfo *mount)
{
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): sscanf() allocates each of them */
    free(mount->mountpoint);
    free(mount->type);
    free(mount->source);
    free(mount->options);
    *mount = (struct mountinfo){0};
}

bool
mountinfo_next(FILE *table, struct mountinfo *mount)
{
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    *mount = (struct mountinfo){0};
    while (!found && getline(&line, &size, table) > 0) {
        mountinfo_free(mount); /* of a line that could not be parsed */
        found = parse_line(line, mount);
    }
    if (!found)
        mountinfo_free(mount);
    free(line);
    return found;
}

bool
mountinfo_fuse_owner(const struct mountinfo *mount, struct fuse_owner *owner)
{
    const char *user = strstr(mount->options, "user_id=");

    if (strncmp(mount->type, "fuse", 4) != 0 || !user)
        return false;
    owner->user = (uid_t)strtoul(user + strlen("user_id="), NULL, 10);
    owner->allow_other = strstr(mount->options, "allow_other") != NULL;
    return true;
}

bool
path_is_inside(const char *path, const char *directory)
{
    size_t length = strlen(directory);

    if (length == 1)
        return true; /* "/" */
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}
