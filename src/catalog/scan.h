/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the names of a directory and finds out what each of them is.
 *
 * A link is followed in the calling thread as long as it stays on the directory's mount, on that of
 * "/", or on file systems of block devices. The names of links that lead elsewhere are *remote*:
 * with catalog_options.skip_hung, the query pool looks them up, since their file system may hang. A
 * remote name that is not answered in time keeps the kind that the previous scan found, or is left
 * out; the answer is used by a later scan.
 */
#ifndef FSTFS_CATALOG_SCAN_H
#define FSTFS_CATALOG_SCAN_H

#include "base/buffer.h"
#include "catalog/name_query.h"

enum scanned_kind { SCANNED_NONE, SCANNED_FILE, SCANNED_DIRECTORY };

struct remote_name {
    union {
        size_t at; /* offset in the names, while the directory is read */
        const char *name;
    };
    uint64_t lane; /* key of the file system that it leads to */
    enum scanned_kind kind; /* as listed */
    bool is_answered; /* `kind` is from an answer */
    bool is_unusable; /* it led to no file or directory */
    struct file_identity index; /* of an index, as listed; inode 0: it must be read again */
    struct name_query *query; /* NULL: none */
};

/* Sorted by name. */
struct remote_names {
    struct catalog *catalog;
    struct remote_name *all;
    size_t count;
    struct buffer text; /* of the names */
    struct resolve_mounts mounts; /* only that of the directory */
};

struct scanned_entry {
    size_t name; /* offset in the names */
    bool is_directory;
    bool is_link;
};

struct scan {
    struct source_dir *dir;
    struct problem_set *problems;
    int fd;
    bool unsettled; /* the directory changed so recently that another change may not update its
                       times */
    struct buffer names;
    struct buffer unusable; /* names of links that lead to neither a file nor a directory, except
                               remote ones */
    struct scanned_entry *entries;
    size_t count;
    size_t directories, links; /* number of these entries */
    struct remote_names remotes;
};

/* Scans scan->dir. `before`: the remote names of the last scan, whose queries are taken over; or
 * NULL. `identity`: of the directory. */
errint_t scan_directory(struct scan *scan, struct remote_names *before,
                        struct file_identity *identity);
/* Frees what was not moved elsewhere. */
void scan_free(struct scan *scan);

/* NULL: the name is not remote. */
struct remote_name *remote_names_find(const struct remote_names *remotes, const char *name);
/* Whether the answers still agree with the listing. Waits only for new queries. */
bool remote_names_are_current(struct source_dir *dir, struct remote_names *remotes);
/* Drops the answers that the listing has used. */
void remote_names_settle(struct remote_names *remotes);
void remote_names_free(struct remote_names *remotes);

#endif
