/* SPDX-License-Identifier: Apache-2.0 */
#include "hold.h"

#include "base/array.h"
#include "common/command.h"
#include "common/progress.h"
#include "common/units.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

/* The pause between scans is at least this long, and this many times as long as the last scan:
 * mincore() of all pages of a large model takes seconds. */
enum { CHECK_SECONDS = 5, CHECK_PAUSE_RATIO = 20 };

static errint_t
hold_lock_refused(const struct selection *selection, struct reason *reason)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    uint64_t needed = selection_wanted_bytes(selection);
    char size[UNITS_SIZE], most[48] = "unlimited, but the kernel refuses";

    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(most, sizeof(most), "%" PRIu64 " bytes", (uint64_t)limit.rlim_cur);
    return reason_set(reason, -EPERM, "Locked",
                      "cannot lock %s (%" PRIu64
                      " bytes) in memory: the limit RLIMIT_MEMLOCK is %s; raise it (ulimit -l, "
                      "LimitMEMLOCK= of systemd), or give the program CAP_IPC_LOCK",
                      units_bytes(size, (double)needed), needed, most);
}

static errint_t
hold_map_range(struct hold *hold, int fd, size_t number, const struct page_range *range,
               struct reason *reason)
{
    struct hold_mapping mapping = {.length = (size_t)(range->end - range->begin), .file = number};

    mapping.at = mmap(NULL, mapping.length, PROT_READ, MAP_SHARED, fd, (off_t)range->begin);
    if (mapping.at == MAP_FAILED && errno == ENOMEM)
        return reason_set(reason, -ENOMEM, "Mappings",
                          "cannot map %zu ranges of files: raise the sysctl vm.max_map_count",
                          hold->count + 1);
    if (mapping.at == MAP_FAILED)
        return reason_errno(reason, -errno, hold->selection->files[number].path);
    if (!array_add(hold->mappings, hold->count, mapping)) {
        munmap(mapping.at, mapping.length);
        return reason_no_memory(reason);
    }
    if (mlock2(mapping.at, mapping.length, MLOCK_ONFAULT) < 0)
        return hold_lock_refused(hold->selection, reason);
    return 0;
}

static errint_t
hold_map_file(struct hold *hold, size_t number, struct reason *reason)
{
    const struct selected_file *file = &hold->selection->files[number];
    uint64_t left = file->wanted;
    struct page_range range;
    errint_t error = 0;
    int fd;

    if (left == 0)
        return 0;
    fd = file_identity_open(&file->identity, AT_FDCWD, file->path);
    if (fd < 0) {
        selection_fail_file(hold->selection, number, fd);
        return 0;
    }
    for (size_t i = 0; !error && selected_range(file, i, &left, &range); i++)
        error = hold_map_range(hold, fd, number, &range, reason);
    close(fd);
    return error;
}

errint_t
hold_make(struct hold *hold, struct selection *selection, struct reason *reason)
{
    errint_t error = 0;

    *hold = (struct hold){.selection = selection};
    for (size_t i = 0; !error && i < selection->file_count; i++)
        error = hold_map_file(hold, i, reason);
    return error;
}

void
hold_fill(struct hold *hold)
{
    for (size_t i = 0; i < hold->count && !progress_signal(); i++) {
        const struct hold_mapping *mapping = &hold->mappings[i];

        /* Maps the pages, which locks them. Not mlock(), which does nothing in sanitized builds. */
        if (mlock2(mapping->at, mapping->length, 0) < 0)
            selection_fail_file(hold->selection, mapping->file, -errno);
    }
}

/* ---- waiting ---- */

static void
hold_pause(uint64_t scan_ns)
{
    uint64_t seconds = scan_ns * CHECK_PAUSE_RATIO / 1000000000;

    if (seconds < CHECK_SECONDS)
        seconds = CHECK_SECONDS;
    for (uint64_t i = 0; i < seconds && !progress_signal(); i++) {
        struct timespec second = {1, 0};

        nanosleep(&second, NULL); /* a signal ends it */
    }
}

void
hold_wait(struct hold *hold)
{
    const uint64_t lost =
        selection_total(hold->selection).missing; /* before the wait; not reported again */
    bool had_failed = hold->selection->failed;

    hold->selection->failed = false;
    while (!progress_signal()) {
        hold_pause(hold->selection->measured_ns);
        if (hold->selection->failed || progress_signal())
            continue;
        selection_measure(hold->selection);
        if (selection_total(hold->selection).missing <= lost)
            continue;
        hold_fill(hold);
        selection_measure(hold->selection);
        if (selection_total(hold->selection).missing > lost) {
            complain("some pages are no longer locked in memory");
            hold->selection->failed = true;
        }
    }
    hold->selection->failed |= had_failed;
}

void
hold_free(struct hold *hold)
{
    for (size_t i = 0; i < hold->count; i++)
        munmap(hold->mappings[i].at, hold->mappings[i].length);
    free(hold->mappings);
    *hold = (struct hold){.selection = NULL};
}
