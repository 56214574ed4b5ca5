/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the names of a directory and finds out what each of them is.
 *
 * A link is followed in the calling thread as long as it stays on the directory's mount, on that of
 * "/", or on file systems of block devices. The names of links that lead elsewhere are *remote*:
 * with catalog_options.skip_hung, the query pool looks them up, since their file system may hang. A
 * remote name that is not answered in time keeps the kind that the previous scan found, or its kind
 * is unknown; the answer is used by a later scan.
 */
#ifndef FSTFS_CATALOG_SCAN_H
#define FSTFS_CATALOG_SCAN_H

#include "base/buffer.h"
#include "catalog/name_query.h"

enum scanned_kind {
    SCANNED_NONE,
    SCANNED_FILE,
    SCANNED_DIRECTORY,
    /* Unknown: storage has never answered, or the link is not followed. The name is not shown, and
     * no other checkpoint gets the name that its checkpoint would have. Not used for indexes:
     * without an answer they count as files; if not followed, as broken links. */
    SCANNED_UNKNOWN
};

static inline bool
scanned_kind_is_known(enum scanned_kind kind)
{
    return kind == SCANNED_FILE || kind == SCANNED_DIRECTORY;
}

struct remote_name {
    union { /* first, for text_compare_strings() */
        size_t at; /* offset in the names, while the directory is read */
        const char *name;
    };
    uint64_t lane; /* key of the file system that it leads to */
    enum scanned_kind kind; /* as listed */
    bool is_answered; /* `kind` is from an answer */
    bool is_unusable; /* it led to no file or directory */
    bool is_refused; /* as in struct local_link */
    bool has_failed; /* as in struct local_link */
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

/* A link that was followed in the calling thread; or another name of which stat(2) failed. */
struct local_link {
    union { /* as above */
        size_t at;
        const char *name;
    };
    enum scanned_kind target; /* what it led to; SCANNED_NONE: no file or directory */
    bool has_failed; /* `target` is what it led to before, or a guess */
    bool is_refused; /* a link that is not followed */
    bool is_index; /* it has the name of one */
};

/* Sorted by name. */
struct local_links {
    struct local_link *all;
    size_t count;
    size_t next; /* where the next check begins */
    struct buffer text; /* of the names */
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
    struct scanned_entry *entries;
    size_t count;
    size_t directories, links; /* number of these entries */
    struct local_links locals;
    struct remote_names remotes;
    const struct local_links *locals_before; /* of the last scan; NULL: none */
    struct remote_names *remotes_before; /* likewise; their queries are taken over */
};

/* Scans scan->dir. `identity`: of the directory. */
errint_t scan_directory(struct scan *scan, struct file_identity *identity);
/* Frees what was not moved elsewhere. */
void scan_free(struct scan *scan);

/* Whether the links still lead to what they led to. Checks all those of indexes, and up to 512
 * others in turn. Does not wait for other file systems. `mounts`: of the remote names. */
bool local_links_are_current(struct source_dir *dir, struct local_links *links,
                             const struct resolve_mounts *mounts);
/* NULL: the name is not one of them. */
const struct local_link *local_links_find(const struct local_links *links, const char *name);
void local_links_free(struct local_links *links);

/* NULL: the name is not remote. */
struct remote_name *remote_names_find(const struct remote_names *remotes, const char *name);
/* Whether the answers still agree with the listing. Waits only for new queries. */
bool remote_names_are_current(struct source_dir *dir, struct remote_names *remotes);
/* Drops the answers that the listing has used. */
void remote_names_settle(struct remote_names *remotes);
void remote_names_free(struct remote_names *remotes);

#endif
