/* SPDX-License-Identifier: Apache-2.0 */
#include "containers.h"

#include "format/gguf.h"
#include "format/torch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IMPORTS_SHOWN = 8 };

bool
container_has_name(const char *name)
{
    static const char *const suffixes[] = {".bin", ".pt", ".pth", ".ckpt", ".gguf"};
    size_t length = strlen(name);

    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        size_t end = strlen(suffixes[i]);

        if (length > end && strcasecmp(name + length - end, suffixes[i]) == 0)
            return true;
    }
    return false;
}

/* No budget: the limits of the formats suffice for one file at a time. */
static errint_t
admit_all(void *arg, uint64_t bytes, struct reason *reason)
{
    (void)arg;
    (void)bytes;
    (void)reason;
    return 0;
}

/* The file that is checked. */
struct container {
    struct findings *findings;
    struct container_totals *totals;
    const char *path;
    bool is_named;
    int fd;
    uint64_t size;
};

static void
count_container(const struct container *container, const struct st_table *table)
{
    container->totals->tensors += table->count;
    container->totals->bytes += container->size;
}

/* Reports that reading the header failed with `error`. */
static errint_t
report_header(const struct container *container, errint_t error, const struct reason *reason)
{
    bool is_fault = error == -EBADMSG;

    if (error == -ENOMEM)
        return error;
    if (error == -ENOMSG && !container->is_named)
        return 0;
    findings_add(container->findings, strdup(container->path), !is_fault && error != -ENOMSG,
                 is_fault           ? "refused: %s: %s"
                 : error == -ENOMSG ? "no checkpoint: %s: %s"
                                    : "%s: %s",
                 reason->rule, reason->text);
    return 0;
}

/* Reports the imports, one per line, of which the first IMPORTS_SHOWN are named. */
static void
report_imports(const struct container *container, const struct buffer *imports)
{
    struct buffer names = BUFFER_INIT;
    size_t count = 0;

    for (const char *line = imports->data; line && *line; line = strchr(line, '\n') + 1) {
        size_t length = strcspn(line, "\n");

        if (count < IMPORTS_SHOWN) {
            buffer_add_text(&names, count ? ", " : "");
            buffer_add(&names, line, length);
        }
        count++;
    }
    if (count > IMPORTS_SHOWN)
        buffer_addf(&names, " and %zu more", count - IMPORTS_SHOWN);
    if (count && !buffer_failed(&names))
        findings_add(container->findings, strdup(container->path), false,
                     "its pickle imports %s, which torch.load(weights_only=True) rejects; load it "
                     "only if you trust its origin",
                     names.data);
    container->findings->failed |= buffer_failed(&names);
    buffer_free(&names);
}

static errint_t
check_torch(const struct container *container)
{
    struct buffer imports = BUFFER_INIT;
    struct torch_file file;
    struct reason reason;
    errint_t error =
        torch_read(container->fd, container->size, admit_all, NULL, &imports, &file, &reason);

    report_imports(container, &imports);
    buffer_free(&imports);
    if (error)
        return report_header(container, error, &reason);
    count_container(container, file.table);
    if (file.refused_count)
        findings_add(container->findings, strdup(container->path), false,
                     "%" PRIu32 " of %" PRIu32
                     " tensors cannot be stored as safetensors; the first is %s",
                     file.refused_count, file.refused_count + file.table->count, file.refused);
    torch_file_free(&file);
    return 0;
}

static errint_t
check_gguf(const struct container *container)
{
    struct gguf_file file;
    struct reason reason;
    errint_t error = gguf_read(container->fd, container->size, admit_all, NULL, &file, &reason);

    if (error)
        return report_header(container, error, &reason);
    count_container(container, file.table);
    gguf_file_free(&file);
    return 0;
}

static bool
is_gguf(const struct container *container)
{
    char first[4] = "";

    return pread(container->fd, first, sizeof(first), 0) == sizeof(first) && gguf_has_magic(first);
}

errint_t
container_check(struct findings *findings, const char *path, bool is_named,
                struct container_totals *totals)
{
    struct container container = {
        .findings = findings, .totals = totals, .path = path, .is_named = is_named};
    struct stat st;
    errint_t error = 0;

    container.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (container.fd < 0 || fstat(container.fd, &st) < 0) {
        findings_add(findings, strdup(path), true, "IoError: %s", strerror(errno));
    } else if (S_ISREG(st.st_mode)) {
        container.size = (uint64_t)st.st_size;
        totals->files++;
        error = is_gguf(&container) ? check_gguf(&container) : check_torch(&container);
    }
    if (container.fd >= 0)
        close(container.fd);
    return error;
}
