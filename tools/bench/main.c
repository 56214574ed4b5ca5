/* SPDX-License-Identifier: Apache-2.0 */
/* fstfs-bench: measures how fast a model loads, bare and through fstfs. */
#include "bench.h"
#include "common/command.h"
#include "common/output.h"
#include "common/progress.h"
#include "machine.h"
#include "options.h"
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The results of all models. */
struct outcome {
    struct bench *benches;
    unsigned count;
    bool measured; /* at least one row */
    bool wrong; /* something failed, or a model has no measured row */
};

static void
outcome_add(const struct bench *bench, struct outcome *outcome)
{
    bool measured = false;

    for (unsigned i = 0; i < bench->row_count; i++) {
        measured = measured || bench->rows[i].rounds > 0;
        outcome->wrong = outcome->wrong || bench->rows[i].failed;
    }
    outcome->measured = outcome->measured || measured;
    outcome->wrong = outcome->wrong || !measured;
}

/* Writes to standard output; complains if that fails. */
static bool
print_text(const struct buffer *text)
{
    bool done = write_out(stdout, text);

    if (!done)
        complain("standard output: %s", buffer_failed(text) ? "no memory" : strerror(errno));
    return done;
}

static void
run_model(const char *path, const struct bench_options *options, const struct device *device,
          struct outcome *outcome)
{
    struct bench *bench = &outcome->benches[outcome->count];
    struct buffer text = BUFFER_INIT;
    char name[QUOTED_SIZE];
    struct reason reason;
    errint_t error = bench_open(path, options, device, bench, &reason);

    if (!error)
        bench_run(bench);
    if (progress_signal())
        progress_cancel_deadline(); /* unmounting and the table take a limited time */
    if (error) {
        if (error != -EINTR)
            complain("%s: %s", quoted(name, path, strlen(path)), reason.text);
        bench_close(bench);
        outcome->wrong = true;
        return;
    }
    outcome->count++;
    outcome_add(bench, outcome);
    if (!options->json) {
        report_table(&text, bench);
        outcome->wrong = !print_text(&text) || outcome->wrong;
        buffer_free(&text);
    }
}

/* Writes the chart atomically. An existing link or device is written to instead of replaced. */
static errint_t
write_svg(const char *path, const struct buffer *text, struct reason *reason)
{
    struct stat st;
    FILE *file;
    errint_t error;

    if (buffer_failed(text))
        return reason_no_memory(reason);
    if (lstat(path, &st) < 0 || S_ISREG(st.st_mode))
        return output_write(path, text, true, reason);
    file = fopen(path, "we");
    error = file && write_out(file, text) ? 0 : reason_errno(reason, -errno, NULL);
    if (file)
        fclose(file); /* flushed already */
    return error;
}

/* Whether the path is a regular file with content other than a chart, for instance a model. */
static bool
is_other_file(const char *path)
{
    static const char begin[] = "<svg";
    char found[sizeof(begin) - 1] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    bool is_other =
        fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
        (pread(fd, found, sizeof(found), 0) < 0 || memcmp(found, begin, sizeof(found)) != 0);

    if (fd >= 0)
        close(fd);
    return is_other;
}

/* Checks before the measurement whether the chart can be written. */
static bool
check_svg(const char *path)
{
    char *copy = strdup(path);
    bool can = copy && (access(path, W_OK) == 0 ||
                        (errno == ENOENT && access(dirname(copy), W_OK | X_OK) == 0));

    if (!can)
        complain("%s: %s", path, strerror(errno));
    free(copy);
    if (can && is_other_file(path)) {
        complain("--svg=%s: exists and is not an SVG file; it is kept", path);
        return false;
    }
    return can;
}

/* Prints what will be measured. Fails for anything known to be wrong before reading. */
static bool
check_and_announce(const struct bench_options *options, const struct machine *machine,
                   struct device *device)
{
    struct buffer text = BUFFER_INIT;
    struct reason reason;
    bool done = true;

    if (options->device && device_find(options->device, device, &reason)) {
        complain("--device: %s", reason.text);
        return false;
    }
    if (options->svg && !check_svg(options->svg))
        return false;
    if (!options->json) {
        report_machine(&text, machine);
        buffer_add_char(&text, '\n');
        if (options->device)
            buffer_addf(&text, "%s: %s, %.0f GB of memory\n", device->name, device->model,
                        (double)device->memory / 1e9);
        done = print_text(&text);
        buffer_free(&text);
    }
    return done;
}

static void
write_reports(const struct bench_options *options, const struct machine *machine,
              const struct device *device, struct outcome *outcome)
{
    struct buffer text = BUFFER_INIT;
    struct reason reason;

    if (options->json) {
        report_json(&text, machine, device, outcome->benches, outcome->count);
        outcome->wrong = !print_text(&text) || outcome->wrong;
        buffer_free(&text);
    }
    if (options->svg && outcome->measured) {
        report_svg(&text, machine, outcome->benches, outcome->count);
        if (write_svg(options->svg, &text, &reason)) {
            complain("%s: %s", options->svg, reason.text);
            outcome->wrong = true;
        }
        buffer_free(&text);
    }
}

static int
run_models(const struct bench_options *options)
{
    struct outcome outcome = {0};
    const struct device *device;
    struct device found;
    struct machine machine;

    progress_catch_signals();
    machine_describe(&machine);
    if (!check_and_announce(options, &machine, &found))
        return 1;
    device = options->device ? &found : NULL;
    outcome.benches = calloc((size_t)options->path_count, sizeof(*outcome.benches));
    if (!outcome.benches) {
        complain("no memory");
        return 1;
    }
    for (int i = 0; i < options->path_count && !progress_signal(); i++)
        run_model(options->paths[i], options, device, &outcome);
    progress_cancel_deadline();
    write_reports(options, &machine, device, &outcome);
    for (unsigned i = 0; i < outcome.count; i++)
        bench_close(&outcome.benches[i]);
    free(outcome.benches);
    if (progress_signal())
        return 128 + progress_signal();
    return outcome.wrong ? 1 : 0;
}

int
main(int argc, char **argv)
{
    struct bench_options options;

    options_parse(argc, argv, &options);
    return run_models(&options);
}
