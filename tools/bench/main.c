/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-bench: how fast a model of the user's is read, bare and through fstfs.
 */
#include "bench.h"
#include "common/output.h"
#include "common/progress.h"
#include "common/say.h"
#include "machine.h"
#include "options.h"
#include "report.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What all models together came to. */
struct outcome {
    struct bench *benches;
    unsigned count;
    bool measured; /* there is something to draw */
    bool wrong; /* something failed, or gave nothing */
};

static void
judge(const struct bench *bench, struct outcome *outcome)
{
    bool measured = false;

    for (unsigned i = 0; i < bench->row_count; i++) {
        measured = measured || bench->rows[i].rounds > 0;
        outcome->wrong = outcome->wrong || bench->rows[i].failed;
    }
    outcome->measured = outcome->measured || measured;
    outcome->wrong = outcome->wrong || !measured;
}

/* To standard output; says so where that does not go. */
static bool
print(const struct buffer *text)
{
    bool done = write_out(stdout, text);

    if (!done)
        complain("standard output: %s", buffer_failed(text) ? "no memory" : strerror(errno));
    return done;
}

static void
run_model(const char *path, const struct options *options, const struct device *device,
          struct outcome *outcome)
{
    struct bench *bench = &outcome->benches[outcome->count];
    struct buffer text = BUFFER_INIT;
    char name[QUOTED_SIZE];
    struct reason reason;
    errint_t error = bench_open(path, options, device, bench, &reason);

    if (error) {
        if (error != -EINTR)
            complain("%s: %s", quoted(name, path, strlen(path)), reason.text);
        bench_close(bench);
        outcome->wrong = true;
        return;
    }
    bench_run(bench);
    outcome->count++;
    judge(bench, outcome);
    if (!options->json) {
        report_table(&text, bench);
        outcome->wrong = !print(&text) || outcome->wrong;
        buffer_free(&text);
    }
}

/* What is there and no plain file (a link, a device) is written into as it is. */
static errint_t
write_svg(const char *path, const struct buffer *text, struct reason *reason)
{
    struct stat st;
    FILE *file;
    bool done;

    if (buffer_failed(text))
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    if (lstat(path, &st) < 0 || S_ISREG(st.st_mode))
        return output_write(path, text, true, reason);
    file = fopen(path, "we");
    done = file && write_out(file, text);
    if (!done)
        reason_set(reason, -errno, "IoError", "%s", strerror(errno));
    if (file)
        fclose(file); /* all of it has been flushed */
    return done ? 0 : -EIO;
}

/* Whether the chart can be written in the end, as far as that can be told before. */
static bool
check_svg(const char *path)
{
    char *copy = strdup(path);
    bool can = copy && (access(path, W_OK) == 0 ||
                        (errno == ENOENT && access(dirname(copy), W_OK | X_OK) == 0));

    if (!can)
        complain("%s: %s", path, strerror(errno));
    free(copy);
    return can;
}

/* What can be wrong before anything is read. */
static bool
begin(const struct options *options, const struct machine *machine, struct device *device)
{
    struct progress progress = {0};
    struct watch watch = {progress_tick, &progress};
    struct buffer text = BUFFER_INIT;
    struct reason reason;
    bool done = true;

    if (options->device && device_look(options->device, device, &watch, &reason)) {
        complain("--device: %s", reason.text);
        return false;
    }
    if (options->svg && !check_svg(options->svg))
        return false;
    if (!options->json) {
        report_table_machine(&text, machine, options->device ? device : NULL);
        done = print(&text);
        buffer_free(&text);
    }
    return done;
}

static void
end(const struct options *options, const struct machine *machine, const struct device *device,
    struct outcome *outcome)
{
    struct buffer text = BUFFER_INIT;
    struct reason reason;

    if (options->json) {
        report_json(&text, machine, device, outcome->benches, outcome->count);
        outcome->wrong = !print(&text) || outcome->wrong;
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
    for (unsigned i = 0; i < outcome->count; i++)
        bench_close(&outcome->benches[i]);
    free(outcome->benches);
}

static int
run(const struct options *options)
{
    const struct device *device = NULL;
    struct outcome outcome = {0};
    struct device found;
    struct machine machine;

    progress_catch_signals();
    machine_look(&machine);
    if (!begin(options, &machine, &found))
        return 1;
    if (options->device)
        device = &found;
    outcome.benches = calloc((size_t)options->path_count, sizeof(*outcome.benches));
    if (!outcome.benches) {
        complain("no memory");
        return 1;
    }
    for (int i = 0; i < options->path_count && !progress_signal(); i++)
        run_model(options->paths[i], options, device, &outcome);
    end(options, &machine, device, &outcome);
    if (progress_signal())
        return 128 + progress_signal();
    return outcome.wrong ? 1 : 0;
}

int
main(int argc, char **argv)
{
    struct options options;

    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_RUN:
        return run(&options);
    case OPTIONS_DONE:
        return 0;
    default:
        return 2;
    }
}
