/* SPDX-License-Identifier: Apache-2.0 */
#include "loaders.h"

#include "base/file.h"
#include "common/json.h"

#include "loaders_script.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The script as a file, read from its start. */
static int
open_script(void)
{
    int fd = memfd_create("loaders.py", MFD_CLOEXEC);
    ssize_t length = (ssize_t)sizeof(loaders_script);

    if (fd >= 0 && (write(fd, loaders_script, sizeof(loaders_script)) != length ||
                    lseek(fd, 0, SEEK_SET) < 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The last line of the output, without its end: the answer in JSON, or "!" and an error. */
static const char *
last_line(struct buffer *output)
{
    char *line;

    buffer_add_text(output, "");
    if (!output->data)
        return "";
    while (output->length > 0 && output->data[output->length - 1] == '\n')
        output->data[--output->length] = '\0';
    line = strrchr(output->data, '\n');
    return line ? line + 1 : output->data;
}

struct python_job {
    char **arguments;
    int script;
};

/* Executes python3 with the script as its standard input. */
static void __attribute__((noreturn)) python_process(void *arg, unsigned number, int out)
{
    const struct python_job *job = arg;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    (void)number;
    dup2(job->script, 0);
    dup2(out, 1);
    dup2(null, 2);
    setenv("HF_HUB_OFFLINE", "1", 1); /* no network access */
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    execvp("python3", job->arguments);
    child_fail(out, errno == ENOENT ? CHILD_UNAVAILABLE : 1, "python3: %s", strerror(errno));
}

/* Runs the script. The caller frees *answer. */
static errint_t
python_run(char **arguments, struct progress *progress, cJSON **answer, uint64_t *memory,
           struct reason *reason)
{
    struct python_job job = {arguments, open_script()};
    struct buffer output = BUFFER_INIT;
    errint_t error;

    *answer = NULL;
    if (job.script < 0)
        return reason_set(reason, -errno, "Python", "memfd_create: %s", strerror(errno));
    error = children_run(1, python_process, &job, progress, &output, memory, reason);
    close(job.script);
    if (error == -EIO && last_line(&output)[0] == '!')
        reason_fill(reason, "Python", "%.400s", last_line(&output) + 1);
    if (!error)
        *answer = cJSON_Parse(last_line(&output));
    if (!error && !*answer)
        error = reason_set(reason, -EIO, "Python", "python3 printed no result");
    buffer_free(&output);
    return error;
}

errint_t
loaders_list(struct method methods[METHODS_MOST], unsigned *count, struct reason *reason)
{
    char *arguments[] = {(char *)"python3", (char *)"-", (char *)"list", NULL};
    struct progress progress = {0};
    struct reason cause;
    cJSON *answer, *one;
    uint64_t memory;
    errint_t error = python_run(arguments, &progress, &answer, &memory, &cause);

    if (error)
        return reason_set(reason, error, "Loaders", "--loaders: %.400s", cause.text);
    cJSON_ArrayForEach(one, cJSON_GetObjectItem(answer, "loaders"))
    {
        struct method *method = &methods[*count];

        if (*count == METHODS_MOST)
            break;
        *method = (struct method){.kind = METHOD_LOADER, .order = ORDER_NAMES, .has_warm = true};
        snprintf(method->name, sizeof(method->name), "%s", json_text(one, "name"));
        snprintf(method->text, sizeof(method->text), "%s", json_text(one, "text"));
        snprintf(method->missing, sizeof(method->missing), "%s", json_text(one, "missing"));
        (*count)++;
    }
    cJSON_Delete(answer);
    return 0;
}

/* python3 - run NAME DIRECTORY FILE... ; NULL: no memory. */
static char **
python_make_arguments(const char *name, const struct model *model, const char *directory)
{
    char **arguments = calloc(model->file_count + 6, sizeof(*arguments));
    const char *const first[] = {"python3", "-", "run", name, directory};
    size_t count = 0;

    if (!arguments)
        return NULL;
    for (; count < sizeof(first) / sizeof(*first); count++)
        arguments[count] = strdup(first[count]);
    for (size_t i = 0; i < model->file_count; i++, count++)
        arguments[count] = path_join(directory, model->names[i]);
    return arguments;
}

errint_t
loader_run(const char *name, const struct model *model, const char *directory,
           struct progress *progress, struct reader_result *result, bool *has_sum,
           struct reason *reason)
{
    char **arguments = python_make_arguments(name, model, directory);
    cJSON *answer;
    errint_t error;

    if (!arguments)
        return reason_no_memory(reason);
    error = python_run(arguments, progress, &answer, &result->memory, reason);
    for (char **one = arguments; *one; one++)
        free(*one);
    free(arguments);
    if (error)
        return error;
    result->seconds = json_number(answer, "seconds");
    result->bytes = (uint64_t)json_number(answer, "bytes");
    result->sum = (uint64_t)json_number(answer, "sum");
    *has_sum = cJSON_IsNumber(cJSON_GetObjectItem(answer, "sum"));
    cJSON_Delete(answer);
    return 0;
}
