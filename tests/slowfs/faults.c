/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define RULES_MOST 64
#define HANG_POLL_US 10000

enum action {
    ACTION_ERROR,
    ACTION_SHORT,
    ACTION_FLIP,
    ACTION_ZEROS,
    ACTION_DELAY,
    ACTION_HANG,
    ACTION_TRUNCATE,
    ACTION_REWRITE,
    ACTION_REMOVE,
    ACTION_REPLACE,
};

enum value { VALUE_NONE, VALUE_NUMBER, VALUE_ERROR, VALUE_PATH };

static const struct {
    const char *name;
    enum value value;
} actions[] = {
    [ACTION_ERROR] = {"error", VALUE_ERROR},        [ACTION_SHORT] = {"short", VALUE_NUMBER},
    [ACTION_FLIP] = {"flip", VALUE_NONE},           [ACTION_ZEROS] = {"zeros", VALUE_NONE},
    [ACTION_DELAY] = {"delay", VALUE_NUMBER},       [ACTION_HANG] = {"hang", VALUE_NONE},
    [ACTION_TRUNCATE] = {"truncate", VALUE_NUMBER}, [ACTION_REWRITE] = {"rewrite", VALUE_NONE},
    [ACTION_REMOVE] = {"remove", VALUE_NONE},       [ACTION_REPLACE] = {"replace", VALUE_PATH},
};

struct rule {
    char operation[16];
    char pattern[256];
    off_t from, to; /* bytes of the file: [from, to) */
    enum action action;
    long value;
    char other[FAULTS_OTHER_SIZE];
    long left; /* matches; negative: unlimited */
};

struct faults {
    pthread_mutex_t lock; /* guards all below */
    char *file;
    struct stat seen; /* the file when it was read */
    struct rule rules[RULES_MOST];
    size_t count;
    unsigned changes; /* times the file was read */
};

static const struct {
    const char *name;
    int number;
} errors[] = {
    {"EIO", EIO},
    {"ESTALE", ESTALE},
    {"EAGAIN", EAGAIN},
    {"EINTR", EINTR},
    {"EINPROGRESS", EINPROGRESS},
    {"EINVAL", EINVAL},
    {"ENOENT", ENOENT},
    {"EACCES", EACCES},
    {"ENOMEM", ENOMEM},
    {"EOPNOTSUPP", EOPNOTSUPP},
};

struct faults *
faults_new(const char *file)
{
    struct faults *faults = calloc(1, sizeof(*faults));

    if (!faults)
        return NULL;
    pthread_mutex_init(&faults->lock, NULL);
    faults->file = realpath(file, NULL); /* slowfs changes its working directory */
    if (!faults->file)
        faults->file = strdup(file);
    if (faults->file)
        return faults;
    free(faults);
    return NULL;
}

static int
error_number(const char *name)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
        if (strcmp(name, errors[i].name) == 0)
            return errors[i].number;
    }
    return 0;
}

static bool
parse_value(struct rule *rule, const char *text)
{
    switch (actions[rule->action].value) {
    case VALUE_NONE:
        return !text;
    case VALUE_NUMBER:
        rule->value = text ? strtol(text, NULL, 10) : 0;
        return text != NULL;
    case VALUE_ERROR:
        rule->value = text ? error_number(text) : 0;
        return rule->value != 0;
    case VALUE_PATH:
        if (!text || strlen(text) >= sizeof(rule->other))
            return false;
        strcpy(rule->other, text);
        return true;
    }
    return false;
}

static bool
parse_action(struct rule *rule, char *text)
{
    char *value = strchr(text, '=');

    if (value)
        *value++ = '\0';
    for (size_t i = 0; i < sizeof(actions) / sizeof(*actions); i++) {
        if (strcmp(text, actions[i].name) != 0)
            continue;
        rule->action = (enum action)i;
        return parse_value(rule, value);
    }
    return false;
}

static bool
parse_rule(struct rule *rule, char *line)
{
    long long from, length;
    char *word, *rest = NULL;
    bool has_action = false;

    *rule = (struct rule){.to = INT64_MAX, .left = -1};
    word = strtok_r(line, " \t\n", &rest);
    if (!word || strlen(word) >= sizeof(rule->operation))
        return false;
    strcpy(rule->operation, word);
    word = strtok_r(NULL, " \t\n", &rest);
    if (!word || strlen(word) >= sizeof(rule->pattern))
        return false;
    strcpy(rule->pattern, word);
    while ((word = strtok_r(NULL, " \t\n", &rest))) {
        if (sscanf(word, "%lld+%lld", &from, &length) == 2) {
            rule->from = from;
            rule->to = from + length;
        } else if (sscanf(word, "x%ld", &rule->left) != 1) {
            has_action = parse_action(rule, word);
            if (!has_action)
                return false;
        }
    }
    return has_action;
}

/* With the lock held. A missing file has no rules. */
static void
load(struct faults *faults)
{
    struct stat now = {0};
    char line[512];
    FILE *f;

    if (stat(faults->file, &now) == 0 && now.st_ino == faults->seen.st_ino &&
        now.st_size == faults->seen.st_size && now.st_mtim.tv_sec == faults->seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == faults->seen.st_mtim.tv_nsec)
        return;
    faults->seen = now;
    faults->count = 0;
    faults->changes++;
    f = fopen(faults->file, "re");
    if (!f)
        return;
    fstat(fileno(f), &faults->seen); /* it may have been replaced since stat() */
    while (faults->count < RULES_MOST && fgets(line, sizeof(line), f)) {
        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (parse_rule(&faults->rules[faults->count], line))
            faults->count++;
        else
            fprintf(stderr, "slowfs: %s: not a rule: %s\n", faults->file, line);
    }
    fclose(f);
}

/* Whether a rule for `wide` also applies to `operation`: "read" covers "read-direct". */
static bool
covers(const char *wide, const char *operation)
{
    size_t length = strlen(wide);

    if (strcmp(wide, "*") == 0)
        return true;
    return strncmp(operation, wide, length) == 0 &&
           (operation[length] == '\0' || operation[length] == '-');
}

static bool
rule_matches(const struct rule *rule, const char *operation, const char *path, off_t offset,
             size_t length)
{
    if (rule->left == 0)
        return false;
    if (!covers(rule->operation, operation))
        return false;
    if (covers("read", operation) && (offset >= rule->to || offset + (off_t)length <= rule->from))
        return false;
    return fnmatch(rule->pattern, path, 0) == 0;
}

/* Finds the first rule that matches, and counts its use. False: none. */
static bool
find(struct faults *faults, const char *operation, const char *path, off_t offset, size_t length,
     struct rule *found, unsigned *changes)
{
    bool any = false;

    pthread_mutex_lock(&faults->lock);
    load(faults);
    for (size_t i = 0; i < faults->count && !any; i++) {
        struct rule *rule = &faults->rules[i];

        any = rule_matches(rule, operation, path, offset, length);
        if (!any)
            continue;
        if (rule->left > 0)
            rule->left--;
        *found = *rule;
    }
    *changes = faults->changes;
    pthread_mutex_unlock(&faults->lock);
    return any;
}

static void
wait_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};

    while (nanosleep(&t, &t) < 0 && errno == EINTR) {
    }
}

/* Waits until the rules have changed: until their count of changes is no longer `changes`. */
static void
hang(struct faults *faults, unsigned changes)
{
    bool same = true;

    while (same) {
        wait_us(HANG_POLL_US);
        pthread_mutex_lock(&faults->lock);
        load(faults);
        same = faults->changes == changes;
        pthread_mutex_unlock(&faults->lock);
    }
}

struct fault
faults_for_request(struct faults *faults, const char *operation, const char *path, off_t offset,
                   size_t length)
{
    struct fault fault = {0};
    struct rule rule;
    unsigned changes;

    while (find(faults, operation, path, offset, length, &rule, &changes)) {
        switch (rule.action) {
        case ACTION_HANG:
            hang(faults, changes);
            continue;
        case ACTION_DELAY:
            wait_us(rule.value);
            break;
        case ACTION_ERROR:
            fault.error = (int)rule.value;
            break;
        case ACTION_SHORT:
            fault.is_short = true;
            fault.most = (size_t)rule.value;
            break;
        case ACTION_FLIP:
            fault.flips = true;
            fault.flip_at = offset > rule.from ? offset : rule.from;
            break;
        case ACTION_ZEROS:
            fault.zeros = true;
            break;
        case ACTION_TRUNCATE:
            fault.change = CHANGE_TRUNCATE;
            fault.size = rule.value;
            break;
        case ACTION_REWRITE:
            fault.change = CHANGE_REWRITE;
            break;
        case ACTION_REMOVE:
            fault.change = CHANGE_REMOVE;
            break;
        case ACTION_REPLACE:
            fault.change = CHANGE_REPLACE;
            strcpy(fault.other, rule.other);
            break;
        }
        break;
    }
    return fault;
}
