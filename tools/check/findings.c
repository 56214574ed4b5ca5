/* SPDX-License-Identifier: Apache-2.0 */
#include "findings.h"

#include "base/array.h"
#include "common/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
findings_init(struct findings *findings)
{
    *findings = (struct findings){0};
    pthread_mutex_init(&findings->lock, NULL);
}

void
findings_free(struct findings *findings)
{
    findings_truncate(findings, 0);
    free(findings->all);
    pthread_mutex_destroy(&findings->lock);
}

void
findings_add(struct findings *findings, char *path, bool unchecked, const char *format, ...)
{
    struct finding finding = {.path = path, .unchecked = unchecked};
    va_list arguments;
    bool added;

    va_start(arguments, format);
    if (vasprintf(&finding.text, format, arguments) < 0)
        finding.text = NULL;
    va_end(arguments);
    pthread_mutex_lock(&findings->lock);
    added = path && finding.text && array_add(findings->all, findings->count, finding);
    findings->unchecked += added && unchecked;
    findings->failed = findings->failed || !added;
    pthread_mutex_unlock(&findings->lock);
    if (!added) {
        free(path);
        free(finding.text);
    }
}

void
findings_truncate(struct findings *findings, size_t count)
{
    pthread_mutex_lock(&findings->lock);
    while (findings->count > count) {
        struct finding *last = &findings->all[--findings->count];

        findings->unchecked -= last->unchecked;
        free(last->path);
        free(last->text);
    }
    pthread_mutex_unlock(&findings->lock);
}

static int
compare_findings(const void *a, const void *b)
{
    const struct finding *x = a, *y = b;
    int order = strcmp(x->path, y->path);

    return order ? order : strcmp(x->text, y->text);
}

/* Sorts from `first` on and removes duplicates, which occur if a directory was listed twice. */
static void
findings_sort_locked(struct findings *findings, size_t first)
{
    size_t kept = first;

    if (findings->count - first < 2)
        return;
    qsort(findings->all + first, findings->count - first, sizeof(*findings->all), compare_findings);
    for (size_t i = first; i < findings->count; i++) {
        if (kept > first && compare_findings(&findings->all[kept - 1], &findings->all[i]) == 0) {
            free(findings->all[i].path);
            free(findings->all[i].text);
        } else {
            findings->all[kept++] = findings->all[i];
        }
    }
    findings->count = kept;
}

void
findings_print(struct findings *findings)
{
    struct buffer out = BUFFER_INIT;

    pthread_mutex_lock(&findings->lock);
    findings_sort_locked(findings, findings->printed);
    while (findings->printed < findings->count) {
        const struct finding *finding = &findings->all[findings->printed++];

        buffer_add_quoted(&out, finding->path, strlen(finding->path), SIZE_MAX);
        buffer_addf(&out, ": %s\n", finding->text);
    }
    if (out.length > 0 && !write_out(stdout, &out))
        findings->failed = true;
    pthread_mutex_unlock(&findings->lock);
    buffer_free(&out);
}

void
findings_json(struct findings *findings, struct buffer *out)
{
    pthread_mutex_lock(&findings->lock);
    findings_sort_locked(findings, 0);
    buffer_add_char(out, '[');
    for (size_t i = 0; i < findings->count; i++) {
        const struct finding *finding = &findings->all[i];

        buffer_add_text(out, i ? ",\n    {\"path\": " : "\n    {\"path\": ");
        buffer_add_json_name(out, finding->path, strlen(finding->path));
        buffer_add_text(out, ", \"text\": ");
        buffer_add_json_name(out, finding->text, strlen(finding->text));
        buffer_addf(out, ", \"checked\": %s}", finding->unchecked ? "false" : "true");
    }
    buffer_add_text(out, findings->count ? "\n  ]" : "]");
    pthread_mutex_unlock(&findings->lock);
}
