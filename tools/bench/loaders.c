/* SPDX-License-Identifier: Apache-2.0 */
#include "loaders.h"

#include "loaders_script.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* In the child: becomes python3 with the script as its standard input. */
static void __attribute__((noreturn))
become_python(pid_t parent, int script, int out, char **arguments)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    child_begin(parent);
    dup2(script, 0);
    dup2(out, 1);
    dup2(null, 2);
    setenv("HF_HUB_OFFLINE", "1", 1); /* nothing here is to ask the network */
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    execvp("python3", arguments);
    dprintf(out, "python3: %s", strerror(errno));
    _exit(errno == ENOENT ? CHILD_UNAVAILABLE : 1);
}

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

/* The last line of what was said: the answer, or "!" and why there is none. */
static const char *
last_line(struct buffer *said)
{
    char *line;

    buffer_add_text(said, "");
    if (!said->data)
        return "";
    while (said->length > 0 && said->data[said->length - 1] == '\n')
        said->data[--said->length] = '\0';
    line = strrchr(said->data, '\n');
    return line ? line + 1 : said->data;
}

static errint_t
run_python(char **arguments, const struct watch *watch, cJSON **answer, uint64_t *memory,
           struct reason *reason)
{
    struct buffer said = BUFFER_INIT;
    pid_t parent = getpid(), child;
    int script = open_script(), ends[2];
    errint_t error;

    *answer = NULL;
    if (script < 0)
        return reason_set(reason, -errno, "Python", "memfd_create: %s", strerror(errno));
    if (pipe2(ends, O_CLOEXEC) < 0) {
        close(script);
        return reason_set(reason, -errno, "Python", "pipe: %s", strerror(errno));
    }
    child = fork();
    if (child == 0)
        become_python(parent, script, ends[1], arguments);
    close(script);
    close(ends[1]);
    error = child_wait(&child, child > 0 ? 1 : 0, ends[0], watch, &said, memory, reason);
    if (child < 0)
        error = reason_set(reason, -EAGAIN, "Python", "fork failed");
    if (error == -EIO && last_line(&said)[0] == '!')
        reason_set(reason, error, "Python", "%.400s", last_line(&said) + 1);
    if (!error)
        *answer = cJSON_Parse(last_line(&said));
    if (!error && !*answer)
        error = reason_set(reason, -EIO, "Python", "python3 gave no answer");
    buffer_free(&said);
    return error;
}

static const char *
text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));

    return text ? text : "";
}

errint_t
loaders_list(struct loader loaders[LOADERS_MOST], unsigned *count, const struct watch *watch,
             struct reason *reason)
{
    char *arguments[] = {(char *)"python3", (char *)"-", (char *)"list", NULL};
    cJSON *answer, *one;
    uint64_t memory;
    errint_t error = run_python(arguments, watch, &answer, &memory, reason);

    *count = 0;
    if (error)
        return error;
    cJSON_ArrayForEach(one, cJSON_GetObjectItem(answer, "loaders"))
    {
        struct loader *loader = &loaders[*count];

        if (*count == LOADERS_MOST)
            break;
        snprintf(loader->name, sizeof(loader->name), "%s", text_of(one, "name"));
        snprintf(loader->title, sizeof(loader->title), "%s", text_of(one, "title"));
        snprintf(loader->package, sizeof(loader->package), "%s %s", text_of(one, "package"),
                 text_of(one, "version"));
        snprintf(loader->missing, sizeof(loader->missing), "%s", text_of(one, "missing"));
        (*count)++;
    }
    cJSON_Delete(answer);
    return 0;
}

/* python3 - run NAME DIRECTORY FILE... ; NULL: no memory. */
static char **
make_arguments(const char *name, const struct model *model, const char *directory)
{
    char **arguments = calloc(model->file_count + 6, sizeof(*arguments));
    const char *where = directory ? directory : model->directory;
    const char *const first[] = {"python3", "-", "run", name, where};
    size_t count = 0;

    if (!arguments)
        return NULL;
    for (; count < sizeof(first) / sizeof(*first); count++)
        arguments[count] = strdup(first[count]);
    for (size_t i = 0; i < model->file_count; i++, count++) {
        if (asprintf(&arguments[count], "%s/%s", where, model->names[i]) < 0)
            arguments[count] = NULL;
    }
    return arguments;
}

errint_t
loader_run(const char *name, const struct model *model, const char *directory,
           const struct watch *watch, struct reader_result *result, bool *has_sum,
           struct reason *reason)
{
    char **arguments = make_arguments(name, model, directory);
    const cJSON *sum;
    cJSON *answer;
    errint_t error;

    if (!arguments)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    error = run_python(arguments, watch, &answer, &result->memory, reason);
    for (char **one = arguments; *one; one++)
        free(*one);
    free(arguments);
    if (error)
        return error;
    result->seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(answer, "seconds"));
    result->bytes = (uint64_t)cJSON_GetNumberValue(cJSON_GetObjectItem(answer, "bytes"));
    sum = cJSON_GetObjectItem(answer, "sum");
    *has_sum = cJSON_IsNumber(sum);
    result->sum = *has_sum ? (uint64_t)cJSON_GetNumberValue(sum) : 0;
    cJSON_Delete(answer);
    return 0;
}
