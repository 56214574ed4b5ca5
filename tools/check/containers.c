/* SPDX-License-Identifier: Apache-2.0 */
#include "containers.h"

#include "base/array.h"
#include "catalog/group_names.h"
#include "catalog/header_budget.h"
#include "format/container.h"
#include "format/gguf.h"
#include "format/torch.h"
#include "rules.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IMPORTS_SHOWN = 8 };

bool
container_has_suffix(const char *name)
{
    const struct container *container = container_of_name(name, strlen(name), NULL);

    return container && container != &container_safetensors;
}

/* Admits the memory for one header, as the catalog does. `arg`: the bytes admitted so far. */
static errint_t
admit_header(void *arg, uint64_t bytes, struct reason *reason)
{
    uint64_t *admitted = arg;

    if (bytes > HEADER_BUDGET_LEAST - *admitted)
        return reason_set(reason, -ENOBUFS, "NoMemoryForHeaders",
                          "its header needs about %" PRIu64
                          " bytes of memory (the limit is %" PRIu64 ")",
                          *admitted + bytes, HEADER_BUDGET_LEAST);
    *admitted += bytes;
    return 0;
}

/* The file that is checked. */
struct checked_file {
    struct findings *findings;
    struct container_result *result;
    const char *path;
    enum container_use use;
    bool wants_archive;
    int fd;
    uint64_t size;
};

static void
take_container(const struct checked_file *container, const struct st_table *table)
{
    container->result->has_tensors = true;
    container->result->tensors = table->count;
    container->result->bytes = container->size;
}

/* Whether a file that is not a checkpoint is ignored instead of reported. */
static bool
is_passed_over(const struct checked_file *container, const struct reason *reason)
{
    return container->use != CONTAINER_NAMED &&
           (strcmp(reason->rule, "NotTorch") != 0 ||
            !group_is_name_of_weights(basename(container->path)));
}

/* Reports that reading the header failed with `error`. */
static errint_t
report_header(const struct checked_file *container, errint_t error, const struct reason *reason)
{
    bool is_fault = error == -EBADMSG;

    if (error == -ENOMEM)
        return error;
    if (container->use == CONTAINER_SHARD ||
        (container->use == CONTAINER_ABSENT && error != -ENOMSG) ||
        (error == -ENOMSG && is_passed_over(container, reason)))
        return 0;
    findings_add(container->findings, strdup(container->path), !is_fault && error != -ENOMSG,
                 is_fault            ? "refused: %s: %s"
                 : error == -ENOMSG  ? "not a checkpoint: %s: %s"
                 : error == -ENOBUFS ? "cannot be checked: %s: %s"
                                     : "%s: %s",
                 reason->rule, reason->text);
    return 0;
}

/* Reports the imports, one per line, of which the first IMPORTS_SHOWN are named. `is_refused`: the
 * caller also reports that the file is invalid. */
static void
report_imports(const struct checked_file *container, const struct buffer *imports,
               bool is_incomplete, bool is_refused)
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
        buffer_addf(&names, " and %s%zu more", is_incomplete ? "at least " : "",
                    count - IMPORTS_SHOWN);
    else if (is_incomplete)
        buffer_add_text(&names, " and perhaps others");
    if (count && !buffer_failed(&names))
        findings_add(container->findings, strdup(container->path), false,
                     "its pickle imports %s, which torch.load(weights_only=True) rejects; load it "
                     "only if you trust its origin",
                     names.data);
    if (!count && is_incomplete && !is_refused)
        findings_add(container->findings, strdup(container->path), false,
                     "it begins like a pickle, but cannot be read as one to its end, so what it "
                     "imports is unknown; load it only if you trust its origin");
    container->findings->failed |= buffer_failed(&names);
    buffer_free(&names);
}

/* Finds the records of the archive. Moves the table of the file to the archive of the result. */
static errint_t
open_records(const struct checked_file *container, struct torch_file *file)
{
    struct reason reason;
    errint_t error = archive_open(container->fd, container->size, file->table,
                                  &container->result->archive, &reason);

    file->table = NULL;
    if (!error)
        return 0;
    container->result->has_tensors = false;
    return report_header(container, error, &reason);
}

static errint_t
check_torch(const struct checked_file *container)
{
    struct buffer imports = BUFFER_INIT;
    struct torch_file file;
    struct reason reason;
    uint64_t admitted = 0;
    errint_t error = torch_read(container->fd, container->size, admit_header, &admitted, &imports,
                                &file, &reason);

    container->findings->failed |= buffer_failed(&imports);
    report_imports(container, &imports, file.imports_incomplete, error == -EBADMSG);
    buffer_free(&imports);
    if (error)
        return report_header(container, error, &reason);
    take_container(container, file.table);
    if (file.version.rule)
        findings_add(container->findings, strdup(container->path), false,
                     "torch.load() refuses it: %s: %s", file.version.rule, file.version.text);
    if (file.table->refused_count && container->use > CONTAINER_ABSENT)
        findings_add(container->findings, strdup(container->path), false,
                     "%" PRIu32 " of its %" PRIu32
                     " tensors cannot be stored as safetensors; the first is %.*s",
                     file.table->refused_count, file.table->refused_count + file.table->count,
                     (int)strcspn(file.table->refused, "\n"), file.table->refused);
    if (container->wants_archive && file.is_zip)
        error = open_records(container, &file);
    torch_file_free(&file);
    return error;
}

static errint_t
check_gguf(const struct checked_file *container)
{
    struct st_table *table;
    struct reason reason;
    uint64_t admitted = 0;
    errint_t error =
        gguf_read(container->fd, container->size, admit_header, &admitted, &table, &reason);

    if (error)
        return report_header(container, error, &reason);
    take_container(container, table);
    rules_check_table(container->findings, container->path, table);
    st_table_free(table);
    return 0;
}

static bool
is_gguf(const struct checked_file *container)
{
    char first[4] = "";

    return pread(container->fd, first, sizeof(first), 0) == sizeof(first) && gguf_has_magic(first);
}

errint_t
container_check(struct findings *findings, const char *path, enum container_use use,
                bool wants_archive, struct container_result *result)
{
    struct checked_file container = {.findings = findings,
                                     .result = result,
                                     .path = path,
                                     .use = use,
                                     .wants_archive = wants_archive};
    errint_t error = 0;

    *result = (struct container_result){0};
    container.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    error = container.fd < 0 ? -errno : file_identity_from_fd(&result->identity, container.fd);
    if (error) {
        if (use > CONTAINER_ABSENT)
            findings_add(findings, strdup(path), true, "IoError: %s", strerror(-error));
        error = 0;
    } else if (S_ISREG(result->identity.mode)) {
        container.size = result->identity.size;
        result->files = 1;
        error = is_gguf(&container) ? check_gguf(&container) : check_torch(&container);
    }
    if (container.fd >= 0)
        close(container.fd);
    return error;
}
