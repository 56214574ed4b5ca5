/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/operations.h"

#include "base/version.h"
#include "fuse/reply.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Together with CATALOG_CHECK_MS this ensures that a change shows within a second. */
static const double cache_seconds = VIEW_CACHE_MS / 1000.0;

static struct operations *
operations_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static struct view *
view_of(fuse_req_t req)
{
    return operations_of(req)->view;
}

/* Refuses a request made by this process itself: a link in the source leads into the mount, and the
 * thread that follows the link would wait for its own reply. */
static bool
refuse_own_request(fuse_req_t req)
{
    pid_t pid = fuse_req_ctx(req)->pid;

    if (syscall(SYS_tgkill, getpid(), pid, 0) != 0)
        return false;
    fuse_reply_err(req, ELOOP);
    return true;
}

/* Seconds for which the kernel may cache a name. It answers lookups of a cached name by itself, so
 * that the caller's permissions would not be checked. */
static double
entry_cache_seconds(struct view *view, node_id parent)
{
    return view_checks_names(view, parent) ? 0 : cache_seconds;
}

/* The reply to a lookup. The kernel identifies a file handle (name_to_handle_at(2)) by node ID and
 * generation. */
static struct fuse_entry_param
make_entry(struct view *view, node_id id, const struct stat *st, double timeout)
{
    return (struct fuse_entry_param){.ino = id,
                                     .generation = view_generation(view, id),
                                     .attr = *st,
                                     .attr_timeout = cache_seconds,
                                     .entry_timeout = timeout};
}

/* As reply_error(), unless the request was answered with EINTR. */
static void
claim_and_reply_error(struct request *request, errint_t error)
{
    fuse_req_t req = request_claim(request);

    if (req)
        reply_error(req, error);
}

/* Answers an open. The handle is released if the open failed or was interrupted. */
static void
claim_and_reply_open(struct request *request, struct handle *handle, errint_t error)
{
    struct operations *operations = request_userdata(request);
    fuse_req_t req = request_claim(request);

    request->fi.fh = (uint64_t)(uintptr_t)handle;
    if (req && error)
        reply_error(req, error);
    if (!req || error || fuse_reply_open(req, &request->fi) == -ENOENT)
        handle_unref(&operations->handles, handle);
}

/* A request for request_serve(). NULL: `req` has been answered. */
static struct request *
request_of_caller(fuse_req_t req, fuse_ino_t id, const char *name)
{
    if (refuse_own_request(req))
        return NULL;
    return request_new(operations_of(req)->requests, req, id, name);
}

static void
run_lookup(struct request *request)
{
    struct view *view = ((struct operations *)request_userdata(request))->view;
    double timeout = entry_cache_seconds(view, request->id);
    struct fuse_entry_param entry;
    struct stat st;
    node_id id;
    errint_t error = view_lookup(view, &request->caller, request->id, request->name, &id, &st);
    fuse_req_t req = request_claim(request);

    if (error) {
        if (req)
            reply_error(req, error); /* ENOENT too: a missing name must not be cached */
        return;
    }
    entry = make_entry(view, id, &st, timeout);
    if (!req || fuse_reply_entry(req, &entry) == -ENOENT)
        view_forget(view, id, 1); /* interrupted: the kernel does not count this lookup */
}

static void
op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct request *request = request_of_caller(req, parent, name);

    if (request)
        request_serve(request, run_lookup, REQUEST_LOOKUP);
}

static void
op_forget(fuse_req_t req, fuse_ino_t id, uint64_t count)
{
    view_forget(view_of(req), id, count);
    fuse_reply_none(req);
}

static void
op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        view_forget(view_of(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

static void
run_getattr(struct request *request)
{
    struct operations *operations = request_userdata(request);
    struct stat st;
    errint_t error = view_getattr(operations->view, &request->caller, request->id, &st);
    fuse_req_t req = request_claim(request);

    if (req && error)
        reply_error(req, error);
    else if (req)
        fuse_reply_attr(req, &st, cache_seconds);
}

static void
op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct request *request = request_of_caller(req, id, NULL);

    if (request)
        request_serve(request, run_getattr, REQUEST_NODE);
}

static void
run_access(struct request *request)
{
    struct operations *operations = request_userdata(request);

    claim_and_reply_error(
        request, view_access(operations->view, &request->caller, request->id, request->mask));
}

static void
op_access(fuse_req_t req, fuse_ino_t id, int mask)
{
    struct request *request = request_of_caller(req, id, NULL);

    if (!request)
        return;
    request->mask = mask;
    request_serve(request, run_access, REQUEST_NODE);
}

static void
run_statfs(struct request *request)
{
    struct operations *operations = request_userdata(request);
    struct statvfs st;
    errint_t error = catalog_statvfs(operations->catalog, &st);
    fuse_req_t req = request_claim(request);

    st.f_namemax = 255;
    if (req && error)
        reply_error(req, error);
    else if (req)
        fuse_reply_statfs(req, &st);
}

static void
op_statfs(fuse_req_t req, fuse_ino_t id)
{
    struct request *request = request_new(operations_of(req)->requests, req, VIEW_ROOT_ID, ".");

    if (request)
        request_serve(request, run_statfs, REQUEST_LOOKUP);
}

/* ---- directories ---- */

static void
run_opendir(struct request *request)
{
    struct operations *operations = request_userdata(request);
    struct handle *handle = handle_new(&operations->handles);

    if (handle)
        claim_and_reply_open(
            request, handle,
            view_opendir(operations->view, &request->caller, request->id, &handle->directory));
    else
        claim_and_reply_error(request, -ENOMEM);
}

static void
/* cppcheck-suppress constParameter ; the type is libfuse's */
op_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct request *request = request_of_caller(req, id, NULL);

    if (!request)
        return;
    request->fi = *fi;
    request_serve(request, run_opendir, REQUEST_NODE);
}

static void
op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    handle_unref(&operations_of(req)->handles, handle_of(fi));
    fuse_reply_err(req, 0);
}

/* Adds one entry with its attributes and returns its size, or 0 if the buffer is full. */
static size_t
add_direntry_plus(struct view *view, struct view_directory *directory, uint64_t position,
                  const char *name, const struct stat *st, char *at, size_t room)
{
    struct fuse_entry_param entry = {.attr = *st};
    struct stat full;
    node_id id;
    size_t size;

    /* ".", ".." and names whose lookup fails, or might wait for another file system, get no node
     * ID; the kernel looks them up when it needs them. */
    if (position >= 2 && view_readdir_lookup(view, directory, position, &id, &full) == 0)
        entry = make_entry(view, id, &full, cache_seconds);
    size = fuse_add_direntry_plus(NULL, at, room, name, &entry, (off_t)position + 1);
    if (size <= room)
        return size;
    if (entry.ino)
        view_forget(view, id, 1);
    return 0;
}

/* Decrements the lookup counts of a reply that the kernel did not take. */
static void
forget_direntries(struct view *view, char *buffer, size_t used)
{
    struct fuse_direntplus *entry;

    for (size_t at = 0; at < used; at += FUSE_DIRENTPLUS_SIZE(entry)) {
        entry = (struct fuse_direntplus *)(void *)(buffer + at);
        if (entry->entry_out.nodeid)
            view_forget(view, entry->entry_out.nodeid, 1);
        entry->entry_out.nodeid = 0;
    }
}

/* Fills the buffer with entries from request->offset on; returns the bytes used. */
static size_t
fill_direntries(struct view *view, struct view_directory *directory, const struct request *request,
                char *buffer)
{
    size_t size = request->size, used = 0, added;
    const char *name;
    struct stat st;

    for (uint64_t position = (uint64_t)request->offset;; position++) {
        if (view_readdir(view, directory, position, &name, &st) != 0)
            break;
        if (request->plus) {
            added =
                add_direntry_plus(view, directory, position, name, &st, buffer + used, size - used);
        } else {
            added =
                fuse_add_direntry(NULL, buffer + used, size - used, name, &st, (off_t)position + 1);
            if (added > size - used)
                added = 0;
        }
        if (!added)
            break;
        used += added;
    }
    return used;
}

static void
run_readdir(struct request *request)
{
    struct view *view = ((struct operations *)request_userdata(request))->view;
    struct handle *handle = request->handle;
    char *buffer = malloc(request->size);
    size_t used;
    fuse_req_t req;

    if (!buffer) {
        claim_and_reply_error(request, -ENOMEM);
        return;
    }
    pthread_mutex_lock(&handle->directory_lock);
    used = fill_direntries(view, handle->directory, request, buffer);
    pthread_mutex_unlock(&handle->directory_lock);
    req = request_claim(request);
    if ((!req || fuse_reply_buf(req, buffer, used) == -ENOENT) && request->plus)
        forget_direntries(view, buffer, used);
    free(buffer);
}

static void
serve_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset,
              const struct fuse_file_info *fi, bool plus)
{
    struct operations *operations = operations_of(req);
    struct request *request = request_new(operations->requests, req, id, NULL);

    if (!request)
        return;
    request->handle = handle_ref(&operations->handles, handle_of(fi));
    request->size = size;
    request->offset = offset;
    request->plus = plus;
    request_serve(request, run_readdir, REQUEST_NODE);
}

static void
op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    serve_readdir(req, id, size, offset, fi, false);
}

static void
op_readdirplus(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    serve_readdir(req, id, size, offset, fi, true);
}

/* ---- files ---- */

static void
reply_open_with_readahead(struct request *request, struct handle *handle)
{
    struct operations *operations = request_userdata(request);
    uint64_t bytes = readahead_for_file(handle->list, operations->readahead_least);

    if (readahead_begin_open(&operations->readahead, bytes) == 0)
        atomic_store_explicit(&handle->list->readahead, bytes, memory_order_relaxed);
    claim_and_reply_open(request, handle, 0);
    readahead_end_open(&operations->readahead);
}

static void
run_open(struct request *request)
{
    struct operations *operations = request_userdata(request);
    struct handle *handle = handle_new(&operations->handles);
    struct fuse_file_info *fi = &request->fi;
    errint_t error;

    if (!handle) {
        claim_and_reply_error(request, -ENOMEM);
        return;
    }
    error =
        view_open(operations->view, &request->caller, request->id, &handle->list, &handle->is_page);
    if (!error && handle->is_page)
        error = handle_count_page(&operations->handles, handle,
                                  request->caller.uid != 0 && request->caller.uid != geteuid());
    fi->keep_cache = !error && !handle->is_page && version_list_is_kept(handle->list);
    fi->direct_io = handle->is_page;
    fi->noflush = 1;
    if (!error)
        error = passthrough_open(operations->passthrough, request->id, handle->list, fi,
                                 &handle->passthrough);
    if (!error && !handle->is_page)
        handle->load = loads_open(operations->loads, handle->list,
                                  view_kind_of(operations->view, request->id), request->caller.pid);
    if (!error && !handle->is_page && operations->readahead.is_by_file)
        reply_open_with_readahead(request, handle);
    else
        claim_and_reply_open(request, handle, error);
}

static void
op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct request *request;

    /* Happens only if root has remounted the mount read-write. */
    if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC) {
        fuse_reply_err(req, EROFS);
        return;
    }
    request = request_of_caller(req, id, NULL);
    if (!request)
        return;
    request->fi = *fi;
    request_serve(request, run_open, REQUEST_OPEN);
}

static void
op_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    struct handle *handle = handle_of(fi);
    struct extent_list *list = handle->list;
    uint64_t at = (uint64_t)offset;

    if (at >= list->size || size == 0) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    if (size > list->size - at)
        size = (size_t)(list->size - at);
    if (!handle->is_page) {
        reads_serve(operations_of(req)->reads, req, handle, at, size);
        return;
    }
    /* Pages bypass the engine, so that reading its counters does not change them. The extra
     * reference keeps the content alive: the kernel may release the handle before
     * fuse_reply_buf() returns. */
    extent_list_ref(list);
    fuse_reply_buf(req, list->extents->blob->data + at, size);
    extent_list_unref(list);
}

/* ---- xattrs ---- */

static void
claim_and_reply_xattr(struct request *request, errint_t error, struct buffer *value)
{
    fuse_req_t req = request_claim(request);
    size_t size = request->size;

    if (req && error)
        reply_error(req, error);
    else if (req && size == 0)
        fuse_reply_xattr(req, value->length);
    else if (req && size < value->length)
        fuse_reply_err(req, ERANGE);
    else if (req)
        fuse_reply_buf(req, value->data, value->length);
    buffer_free(value);
}

static void
run_getxattr(struct request *request)
{
    struct operations *operations = request_userdata(request);
    struct buffer value = BUFFER_INIT;
    errint_t error =
        view_getxattr(operations->view, &request->caller, request->id, request->name, &value);

    claim_and_reply_xattr(request, error, &value);
}

static void
op_getxattr(fuse_req_t req, fuse_ino_t id, const char *name, size_t size)
{
    const struct operations *operations = operations_of(req);
    struct request *request = request_new(operations->requests, req, id, name);

    if (!request)
        return;
    request->size = size;
    if (view_has_xattr(operations->view, id, name))
        request_serve(request, run_getxattr, REQUEST_NODE);
    else /* as for security.selinux, which ls -l reads of each file */
        request_serve_at_once(request, run_getxattr);
}

static void
run_listxattr(struct request *request)
{
    struct operations *operations = request_userdata(request);
    struct buffer names = BUFFER_INIT;
    errint_t error = view_listxattr(operations->view, request->id, &names);

    claim_and_reply_xattr(request, error, &names);
}

static void
op_listxattr(fuse_req_t req, fuse_ino_t id, size_t size)
{
    struct request *request = request_new(operations_of(req)->requests, req, id, NULL);

    if (!request)
        return;
    request->size = size;
    request_serve_at_once(request, run_listxattr);
}

void
operations_release_handle(void *operations, void *handle)
{
    handle_unref(&((struct operations *)operations)->handles, handle);
}

void
operations_fill(struct fuse_lowlevel_ops *ops)
{
    ops->lookup = op_lookup;
    ops->forget = op_forget;
    ops->forget_multi = op_forget_multi;
    ops->getattr = op_getattr;
    ops->access = op_access;
    ops->statfs = op_statfs;
    ops->opendir = op_opendir;
    ops->readdir = op_readdir;
    ops->readdirplus = op_readdirplus;
    ops->releasedir = op_release;
    ops->open = op_open;
    ops->read = op_read;
    ops->release = op_release;
    ops->getxattr = op_getxattr;
    ops->listxattr = op_listxattr;
}
