/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-cache: shows how much of a checkpoint is in the page cache; warms, keeps or evicts it.
 */
#include "common/command.h"
#include "common/machine_memory.h"
#include "common/progress.h"
#include "common/units.h"
#include "hold.h"
#include "options.h"
#include "report.h"
#include "warm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* 1/SPARE_SHARE of the available memory is left to other processes. */
enum { SPARE_SHARE = 16 };

/* Attempts to get all pages cached at the same time. */
enum { PASSES = 3 };

/* Measures whether all wanted pages are cached. */
static bool
cache_has_wanted(struct selection *selection)
{
    struct selection_row total;

    selection_measure(selection);
    total = selection_total(selection);
    return total.missing == 0 && !total.is_hidden;
}

/* Limits the wanted pages to --memory. Returns -ENOMEM if they exceed the available memory and not
 * all are cached: reading them would evict some of them again, and --keep would lock all memory.
 * --warm with --memory is not checked. */
static errint_t
cache_limit_memory(struct selection *selection, const struct cache_options *options,
                   struct reason *reason)
{
    uint64_t needed, available = machine_memory_available();
    char size[UNITS_SIZE], most[UNITS_SIZE];

    if (options->memory)
        selection_limit(selection, options->memory);
    if (options->memory && !options->keep)
        return 0;
    needed = selection_wanted_bytes(selection);
    available -= available / SPARE_SHARE;
    if (needed <= available || cache_has_wanted(selection))
        return 0;
    return reason_set(reason, -ENOMEM, "Memory",
                      "not enough memory: %s are selected, %s are available; select less with "
                      "--tensors or --memory",
                      units_bytes(size, (double)needed), units_bytes(most, (double)available));
}

/* Reads all wanted pages, again if the kernel has evicted some while it read others. */
static errint_t
cache_warm(struct selection *selection)
{
    const bool had_failed = selection->failed; /* other files may still be incomplete */
    errint_t error = 0;

    selection->failed = false;
    for (int i = 0; !error && i < PASSES; i++) {
        error = warm_run(selection);
        selection_measure(selection);
        if (selection->failed || selection_total(selection).missing == 0)
            break;
    }
    selection->failed |= had_failed;
    return error;
}

/* Reports rows of which more than 1 % of the wanted pages are not cached. */
static void
cache_check_warm(struct selection *selection)
{
    for (size_t i = 0; i < selection->row_count; i++) {
        const struct selection_row *row = &selection->rows[i];
        char name[QUOTED_SIZE], size[UNITS_SIZE];

        if (row->missing <= row->wanted / 100)
            continue;
        complain("%s: the kernel has evicted %s again", quoted(name, row->path, strlen(row->path)),
                 units_bytes(size, (double)(row->missing * page_bytes())));
        selection->failed = true;
    }
}

static errint_t
cache_print(struct selection *selection, const struct cache_options *options, struct reason *reason)
{
    struct buffer out = BUFFER_INIT;
    errint_t error = 0;

    if (options->json)
        report_add_json(&out, selection);
    else
        report_add_table(&out, selection);
    if (out.length > 0 && !write_out(stdout, &out))
        error = reason_errno(reason, errno ? -errno : -ENOMEM, "cannot write the report");
    buffer_free(&out);
    return error;
}

/* Warms, keeps or evicts the pages, and measures. */
static errint_t
cache_act(struct selection *selection, const struct cache_options *options, struct hold *hold,
          struct reason *reason)
{
    bool fills = options->warm || options->keep;
    errint_t error = fills ? cache_limit_memory(selection, options, reason) : 0;

    if (error)
        return error;
    if (options->keep)
        error = hold_make(hold, selection, reason);
    if (error)
        return error;
    if (fills)
        error = cache_warm(selection);
    else if (options->evict)
        error = evict_run(selection);
    if (error)
        return reason_errno(reason, error, NULL);
    if (options->keep)
        hold_fill(hold);
    selection_measure(selection);
    if (fills)
        cache_check_warm(selection);
    return 0;
}

static int
cache_run(const struct cache_options *options, struct selection *selection, struct hold *hold)
{
    struct reason reason;
    errint_t error = selection_make(selection, options);

    if (error)
        reason_errno(&reason, error, NULL);
    else
        error = cache_act(selection, options, hold, &reason);
    if (!error && !progress_signal())
        error = cache_print(selection, options, &reason);
    if (progress_signal())
        return 128 + progress_signal();
    if (error) {
        complain("%s", reason.text);
        return STATUS_FAILED;
    }
    if (options->keep && hold->count > 0) {
        fputs("locked in memory until SIGINT, SIGTERM or SIGHUP\n", stderr);
        hold_wait(hold);
    }
    return selection->failed ? STATUS_FAILED : STATUS_DONE;
}

int
main(int argc, char **argv)
{
    struct selection selection = {.files = NULL};
    struct hold hold = {.selection = NULL};
    struct cache_options options;
    int status;

    options_parse(argc, argv, &options);
    progress_catch_signals();
    status = cache_run(&options, &selection, &hold);
    hold_free(&hold);
    selection_free(&selection);
    options_free(&options);
    return status;
}
